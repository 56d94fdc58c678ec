#include "sim/virtual_network.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace byteps::sim {
namespace {

// Remembers what comes in.
class Inbox final : public Receiver {
 public:
  void on_head(Endpoint&, const Frame& frame) override { heads.push_back(number_of(frame)); }
  void on_frame(Endpoint&, const Frame& frame) override {
    frames.push_back(number_of(frame));
    leases.push_back(frame.lease);
    payloads.push_back(frame.payload);
  }
  void on_starving(Endpoint&) override { ++times_starving; }
  void on_closed(Endpoint&, const Status& why) override {
    closed = true;
    reason = why;
  }
  static int number_of(const Frame& frame) { return static_cast<int>(frame.head.front()); }

  std::vector<int> heads;
  std::vector<int> frames;
  std::vector<LeaseId> leases;
  std::vector<View> payloads;
  int times_starving = 0;
  bool closed = false;
  Status reason;
};

class VirtualNetworkTest : public testing::TestWithParam<uint64_t> {
 protected:
  explicit VirtualNetworkTest(Carriage carriage = Carriage::kCopy) : carriage_(carriage) {}
  void SetUp() override {
    network.listen(right, "right", [this](Endpoint& endpoint) {
      far = &endpoint;
      endpoint.start(&at_right);
    });
    const auto connected = [this](Result<Endpoint*> endpoint) {
      near = *endpoint;
      near->start(&at_left);
    };
    network.connect(left, "right", 1'000'000, connected, carriage_);
    while (near == nullptr) ASSERT_TRUE(clock.run_one(1'000'000));
  }
  void run() {
    while (clock.run_one(kNever - 1)) {
    }
  }
  View payload(size_t bytes) { return {std::make_shared<Memory>(findings, "payload", bytes), 0, bytes}; }
  void send(int number, size_t payload_bytes, SentCallback on_sent = nullptr) {
    near->send(
        {.head = {static_cast<std::byte>(number)}, .payload = payload(payload_bytes), .reply_space = {}},
        std::move(on_sent));
  }

  const Carriage carriage_;
  Random random{GetParam()};
  Findings findings;
  VirtualClock clock;
  NetworkOptions options{.window_bytes = 100, .arena_bytes = 100};
  VirtualNetwork network{clock, random, findings, options};
  VirtualProcess left{clock, "left"};
  VirtualProcess right{clock, "right"};
  Inbox at_left;
  Inbox at_right;
  Endpoint* near = nullptr;
  Endpoint* far = nullptr;
};

TEST_P(VirtualNetworkTest, FramesArriveInOrder) {
  std::vector<int> sent;
  for (int i = 0; i < 50; ++i) {
    send(i, random.below(200));
    sent.push_back(i);
  }
  near->close_when_sent(GracePeriod(kNever));
  run();
  EXPECT_EQ(at_right.heads, sent);
  EXPECT_EQ(at_right.frames, sent);
  EXPECT_TRUE(at_right.closed);
  EXPECT_TRUE(at_left.closed);
  EXPECT_TRUE(at_left.reason.is_ok()) << at_left.reason;
}

TEST_P(VirtualNetworkTest, StoppedReceiverStallsTheSenderUntilItGoesOn) {
  int written = 0;
  right.stop();
  for (int i = 0; i < 10; ++i) send(i, 60, [&](const Status& status) { written += status.is_ok(); });
  run();
  EXPECT_EQ(written, 1);  // a second one does not fit into the window
  EXPECT_TRUE(at_right.frames.empty());
  right.resume();
  run();
  EXPECT_EQ(written, 10);
  EXPECT_EQ(at_right.frames.size(), 10u);
}

TEST_P(VirtualNetworkTest, DeathEndsConnectionsAfterSomeOfWhatWasUnderWay) {
  for (int i = 0; i < 10; ++i) send(i, 10);
  for (int i = 0; i < 6; ++i) clock.run_one(kNever - 1);
  left.end();
  network.on_process_gone(left);
  run();
  EXPECT_TRUE(at_right.closed);
  EXPECT_FALSE(at_right.reason.is_ok());
  EXPECT_FALSE(at_left.closed);
  for (size_t i = 0; i < at_right.frames.size(); ++i) EXPECT_EQ(at_right.frames[i], static_cast<int>(i));
}

TEST_P(VirtualNetworkTest, CutIsSeenByBothSides) {
  for (int i = 0; i < 10; ++i) send(i, 10);
  const auto [first, second] = network.cut_one();
  EXPECT_NE(first, second);
  run();
  EXPECT_TRUE(at_left.closed);
  EXPECT_TRUE(at_right.closed);
  EXPECT_LE(at_right.frames.size(), 10u);
}

TEST_P(VirtualNetworkTest, MemoryUsedAfterItsReleaseIsAFinding) {
  const View view = payload(10);
  near->send({.head = {std::byte{1}}, .payload = view, .reply_space = {}}, nullptr);
  view.memory->release();
  run();
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_NE(findings[0].find("was read after"), std::string::npos);
}

TEST_P(VirtualNetworkTest, NobodyAnswersBeforeTheDeadline) {
  Status failure;
  TimeUs failed_us = 0;
  network.connect(left, "nowhere", clock.now() + 5'000, [&](Result<Endpoint*> endpoint) {
    failure = endpoint.status();
    failed_us = clock.now();
  });
  const TimeUs started_us = clock.now();
  run();
  EXPECT_EQ(failure.code(), StatusCode::kUnavailable);
  EXPECT_EQ(failed_us, started_us + 5'000);
}

// Two processes of one machine; the arena of `left` has room for two payloads of 40 bytes.
class SharedMemoryTest : public VirtualNetworkTest {
 protected:
  SharedMemoryTest() : VirtualNetworkTest(Carriage::kShare) {}
};

TEST_P(SharedMemoryTest, FramesWithoutRoomWaitAndTheOtherEndIsTold) {
  for (int i = 0; i < 4; ++i) send(i, 40);
  run();
  EXPECT_EQ(at_right.frames, (std::vector{0, 1}));
  EXPECT_EQ(at_right.times_starving, 1);
  far->return_lease(at_right.leases[0]);
  run();
  EXPECT_EQ(at_right.frames, (std::vector{0, 1, 2}));
  EXPECT_EQ(at_right.times_starving, 2);
}

TEST_P(SharedMemoryTest, AnAnswerGivesItsLeaseBack) {
  for (int i = 0; i < 3; ++i) send(i, 40);
  run();
  far->send({.head = {std::byte{9}}, .payload = {}, .reply_space = {}, .returns_lease = at_right.leases[1]},
            nullptr);
  run();
  EXPECT_EQ(at_left.frames, std::vector{9});
  EXPECT_EQ(at_right.frames, (std::vector{0, 1, 2}));
}

TEST_P(SharedMemoryTest, PayloadsLargerThanTheArenaTravel) {
  send(1, 500);
  run();
  EXPECT_EQ(at_right.frames, std::vector{1});
  EXPECT_EQ(at_right.leases, std::vector{kNoLease});
}

TEST_P(SharedMemoryTest, UseOfALoanThatWasGivenBackIsAFinding) {
  send(1, 40);
  run();
  EXPECT_EQ(at_right.payloads[0].read().size(), 40u);
  EXPECT_TRUE(findings.empty());
  far->return_lease(at_right.leases[0]);
  at_right.payloads[0].read();
  EXPECT_EQ(findings.size(), 1u);
}

TEST_P(SharedMemoryTest, ALoanGivenBackTwiceIsAFinding) {
  send(1, 40);
  run();
  far->return_lease(at_right.leases[0]);
  far->return_lease(at_right.leases[0]);
  run();
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_NE(findings[0].find("not lent"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Seeds, SharedMemoryTest, testing::Range<uint64_t>(1, 10));
INSTANTIATE_TEST_SUITE_P(Seeds, VirtualNetworkTest, testing::Range<uint64_t>(1, 20));

}  // namespace
}  // namespace byteps::sim
