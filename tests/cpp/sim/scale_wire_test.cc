#include "sim/scale_wire.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>

namespace byteps::sim {
namespace {

using protocol::Outbox;
constexpr auto kContribution = Outbox::Kind::kContribution;
constexpr uint64_t kLarge = 1 << 20;  // larger than a burst

class ScaleWireTest : public testing::Test {
 protected:
  // Notes when each message arrives.
  void send(ScaleWire& wire, int number, uint64_t bytes, int32_t priority = 0) {
    wire.send(priority, bytes, [this, number] { arrived_s_[number] = events_.now_s(); });
  }
  void run() {
    EXPECT_TRUE(events_.run([] { return true; }));
  }

  ScaleEvents events_;
  Outbox outbox_{4 * kLarge};
  std::map<int, double> arrived_s_;
};

TEST_F(ScaleWireTest, MuchIsHeldToThePacedRate) {
  ScaleWire wire({.paced_bytes_per_s = kLarge, .free_bytes_per_s = 8.0 * kLarge}, kContribution, outbox_,
                 events_);
  send(wire, 1, 2 * kLarge);
  send(wire, 2, kLarge);
  run();
  EXPECT_EQ(arrived_s_, (std::map<int, double>{{1, 2}, {2, 3}}));
}

TEST_F(ScaleWireTest, LittleIsNotHeld) {
  ScaleWire wire({.paced_bytes_per_s = kLarge, .free_bytes_per_s = 8.0 * kLarge}, kContribution, outbox_,
                 events_);
  send(wire, 1, kLarge / 8);
  run();
  EXPECT_EQ(arrived_s_, (std::map<int, double>{{1, 1.0 / 64}}));
}

TEST_F(ScaleWireTest, WhatItStandsForCountsInTheBurstOfTheThread) {
  for (const auto& [count, seconds] : {std::pair{8u, 1.0 / 64}, std::pair{9u, 1.0 / 8}}) {
    Outbox outbox(4 * kLarge);
    ScaleEvents events;
    ScaleWire wire({.paced_bytes_per_s = kLarge, .free_bytes_per_s = 8.0 * kLarge, .count = count},
                   kContribution, outbox, events);
    double arrived_s = 0;
    wire.send(0, kLarge / 8, [&] { arrived_s = events.now_s(); });
    EXPECT_TRUE(events.run([] { return true; }));
    EXPECT_EQ(arrived_s, seconds) << count;
  }
}

TEST_F(ScaleWireTest, LatencyDelaysButDoesNotSlowDown) {
  ScaleWire wire({.free_bytes_per_s = kLarge, .latency_s = 3}, kContribution, outbox_, events_);
  send(wire, 1, kLarge);
  send(wire, 2, kLarge);
  run();
  EXPECT_EQ(arrived_s_, (std::map<int, double>{{1, 4}, {2, 5}}));
}

TEST_F(ScaleWireTest, UrgentMessagesGoFirstButForTheCredit) {
  Outbox outbox(kLarge);
  ScaleWire wire({.free_bytes_per_s = kLarge}, kContribution, outbox, events_);
  send(wire, 1, kLarge, 0);  // handed over at once
  send(wire, 2, kLarge, 0);
  send(wire, 3, kLarge, 1);
  run();
  EXPECT_EQ(arrived_s_, (std::map<int, double>{{1, 1}, {2, 3}, {3, 2}}));
}

TEST_F(ScaleWireTest, WiresOfDifferentRootsDoNotDisturbEachOther) {
  ScaleWire one({.free_bytes_per_s = kLarge}, kContribution, outbox_, events_);
  ScaleWire other({.free_bytes_per_s = kLarge}, kContribution, outbox_, events_);
  send(one, 1, kLarge);
  send(other, 2, kLarge);
  run();
  EXPECT_EQ(arrived_s_, (std::map<int, double>{{1, 1}, {2, 1}}));
}

TEST_F(ScaleWireTest, AnswersAreNotHeldOnceAllContributionsAreSent) {
  ScaleWire contributions({.free_bytes_per_s = kLarge}, kContribution, outbox_, events_);
  Outbox root(4 * kLarge);
  ScaleWire answers(
      {.paced_bytes_per_s = kLarge, .free_bytes_per_s = 8.0 * kLarge, .contributions = &outbox_},
      Outbox::Kind::kAnswer, root, events_);
  send(contributions, 1, kLarge);
  send(answers, 2, kLarge);                          // held: until 1
  events_.at(2, [&] { send(answers, 3, kLarge); });  // contributions are over
  run();
  EXPECT_EQ(arrived_s_, (std::map<int, double>{{1, 1}, {2, 1}, {3, 2.125}}));
}

TEST(ScaleEvents, RunInTheOrderOfTheirTimesAndThenOfTheCalls) {
  ScaleEvents events;
  std::vector<int> ran;
  for (const auto& [when_s, number] : {std::pair{2.0, 1}, {1.0, 2}, {2.0, 3}, {0.0, 4}})
    events.at(when_s, [&ran, number = number] { ran.push_back(number); });
  EXPECT_TRUE(events.run([] { return true; }));
  EXPECT_EQ(ran, (std::vector<int>{4, 2, 1, 3}));
  EXPECT_EQ(events.now_s(), 2);
}

TEST(ScaleCore, DoesOneThingAfterTheOther) {
  ScaleEvents events;
  ScaleCore core(events);
  std::map<int, double> done_s;
  const auto work = [&](int number, double seconds) {
    core.work(seconds, [&, number] { done_s[number] = events.now_s(); });
  };
  work(1, 2);
  work(2, 0);
  events.at(5, [&] { work(3, 1); });
  EXPECT_TRUE(events.run([] { return true; }));
  EXPECT_EQ(done_s, (std::map<int, double>{{1, 2}, {2, 2}, {3, 6}}));
}

}  // namespace
}  // namespace byteps::sim
