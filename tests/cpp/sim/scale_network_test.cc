#include "sim/scale_network.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <vector>

namespace byteps::sim {
namespace {

// Notes when each message (told apart by `tensor`) is complete.
class ScaleNetworkTest : public testing::Test, private ScaleEvents {
 protected:
  void make(const std::vector<double>& bytes_per_s, double latency_s = 0, uint64_t credit_bytes = 1000) {
    network_.emplace(
        ScaleNetworkOptions{.bytes_per_s = bytes_per_s, .latency_s = latency_s, .credit_bytes = credit_bytes},
        static_cast<ScaleEvents&>(*this));
  }
  void send(uint32_t number, uint16_t from, uint16_t to, uint32_t bytes, int32_t priority = 0) {
    network_->send(priority, {.tensor = number, .bytes = bytes, .from = from, .to = to});
  }
  void expect(const std::map<uint32_t, double>& completed_s) {
    EXPECT_TRUE(network_->run([] { return true; }));
    EXPECT_EQ(completed_s_, completed_s);
  }

  std::optional<ScaleNetwork> network_;

 private:
  void on_message(const ScaleMessage& message) override { completed_s_[message.tensor] = network_->now_s(); }
  void on_timer(uint32_t timer) override { completed_s_[timer] = network_->now_s(); }

  std::map<uint32_t, double> completed_s_;
};

TEST_F(ScaleNetworkTest, SendsOneMessageAfterTheOther) {
  make({10, 10, 10});
  send(1, 0, 1, 100);
  send(2, 0, 2, 50);
  expect({{1, 10}, {2, 15}});
}

TEST_F(ScaleNetworkTest, SendsAndReceivesAtOnce) {
  make({10, 10});
  send(1, 0, 1, 100);
  send(2, 1, 0, 100);
  expect({{1, 10}, {2, 10}});
}

TEST_F(ScaleNetworkTest, LatencyDelaysButDoesNotSlowDown) {
  make({10, 10}, 3);
  send(1, 0, 1, 100);
  send(2, 0, 1, 100);
  expect({{1, 13}, {2, 23}});
}

TEST_F(ScaleNetworkTest, SlowerCardOfTwoCounts) {
  make({5, 10, 20});
  send(1, 0, 1, 100);
  send(2, 2, 0, 100);
  expect({{1, 20}, {2, 20}});
}

TEST_F(ScaleNetworkTest, SendersTakeTurnsAtAReceiver) {
  make({10, 10, 10});
  for (const uint32_t number : {1, 2, 3}) send(number, 0, 2, 10);
  network_->at(0.5, 100);
  send(11, 1, 2, 10);
  expect({{1, 1}, {11, 2}, {2, 3}, {3, 4}, {100, 0.5}});
}

TEST_F(ScaleNetworkTest, SlowSenderDoesNotHoldUpOthers) {
  make({1, 10, 10});
  send(1, 0, 2, 100);
  send(2, 1, 2, 100);
  expect({{1, 100}, {2, 20}});
}

TEST_F(ScaleNetworkTest, UrgentMessagesGoFirstButForTheCredit) {
  make({10, 10}, 0, 10);
  send(1, 0, 1, 10, 0);
  send(2, 0, 1, 10, 1);
  send(3, 0, 1, 10, 2);
  expect({{1, 1}, {2, 3}, {3, 2}});
}

TEST_F(ScaleNetworkTest, WhatStaysAtASiteTakesNoTime) {
  make({10});
  send(1, 0, 0, 1000);
  expect({{1, 0}});
}

}  // namespace
}  // namespace byteps::sim
