// Queue pairs that fail are replaced: frames arrive once, in order, and at their places.
#include <array>
#include <random>
#include <thread>

#include "support/log_reader.h"
#include "transport/rdma_rounds.h"

namespace byteps::transport::rdma {
namespace {

constexpr TimeUs kLongUs = 20'000'000;

class RdmaRenewalTest : public RdmaRoundsTest {
 protected:
  void set_up_with_limit(TimeUs limit_us, const FakeNicOptions& card = {}) {
    const Process process{.cards = {card}, .renewal_limit_us = limit_us};
    set_up_and_connect(process, process);
    start_both();
  }
  // From small ones, which go through the rings, to some that take many writes.
  void use_tensors_of_all_sizes() {
    most_bytes_ = kMostBytes;
    for (size_t i = 0; i < kTensors; ++i) {
      const size_t bytes = std::array<size_t, 5>{64, 4'000, 9'000, 60'000, 300'000}[i % 5];
      tensors_.push_back(memory_.bytes().subspan(i * kMostBytes, bytes));
    }
  }
  void expect_order() {
    for (const int side : {kA, kB}) {
      const auto frames = recorders_[side].seen.get().frames;
      for (size_t i = 0; i < frames.size(); ++i) {
        ASSERT_EQ(std::stoul(frames[i].head), i % kTensors) << "frame " << i << " of side " << side;
      }
    }
  }
  void expect_open() {
    for (const int side : {kA, kB}) {
      const auto closed = recorders_[side].seen.get().closed;
      EXPECT_TRUE(closed.empty()) << closed.front();
    }
  }

  static constexpr size_t kTensors = 25;
  static constexpr size_t kMostBytes = 300'000;

 private:
  Slab memory_{kTensors * kMostBytes};
};

class RdmaRenewalOfCardsTest : public RdmaRenewalTest, public testing::WithParamInterface<uint64_t> {};

INSTANTIATE_TEST_SUITE_P(MostBytesOfAWrite, RdmaRenewalOfCardsTest, testing::Values(4096, 1 << 30));

TEST_P(RdmaRenewalOfCardsTest, WhateverFailsEverythingComesOnce) {
  set_up_with_limit(kLongUs, {.max_message_bytes = GetParam()});
  use_tensors_of_all_sizes();
  {
    LogReader log;
    break_queue_pair(kA);
    ASSERT_TRUE(log.wait_for("nothing is lost"));
  }
  std::atomic<bool> is_over = false;
  std::thread breaks([&] {
    std::minstd_rand random(1);
    while (!is_over) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 6'000));
      break_queue_pair(static_cast<int>(random() % 2));
      if (random() % 4 == 0) break_queue_pair(static_cast<int>(random() % 2));
    }
  });
  for (int i = 0; i < 40 && !HasFatalFailure(); ++i) round(kTensors);
  is_over = true;
  breaks.join();
  expect_order();
  expect_open();
  round(kTensors);
}

TEST_F(RdmaRenewalTest, WhatHasArrivedIsTakenFirst) {
  set_up_with_limit(kLongUs);
  recorders_[kB].frame = nullptr;
  {
    const StoppedLoop stands(loop(kB));
    const uint64_t before = fabric_.statistics().immediates;
    run_on(loop(kA), [&] {
      for (int i = 0; i < 100; ++i) end(kA).send(as_bytes(std::to_string(i)), {}, sent_.expect_one());
    });
    expect_all_sent();
    ASSERT_TRUE(eventually([&] { return fabric_.statistics().immediates >= before + 100; }));
    break_queue_pair(kA);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // until the offer has come by TCP
  }
  ASSERT_TRUE(recorders_[kB].wait_for_frames(100));
  send(kA, "after it");
  ASSERT_TRUE(recorders_[kB].wait_for_frames(101));
  expect_open();
  const auto frames = recorders_[kB].seen.get().frames;
  for (size_t i = 0; i < 100; ++i) EXPECT_EQ(frames[i].head, std::to_string(i));
}

TEST_F(RdmaRenewalTest, ACutMayLastLongerThanTheCardsTry) {
  set_up_with_limit(kLongUs);
  use_tensors_of_all_sizes();
  round(kTensors);
  fabric_.set_options({.unreachable_retry_us = 10'000});
  LogReader log;
  fabric_.cut(card(kA), card(kB));
  std::thread mends([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    fabric_.mend(card(kA), card(kB));
  });
  round(kTensors);
  mends.join();
  EXPECT_TRUE(log.wait_for("transport retry counter exceeded"));
  EXPECT_TRUE(log.wait_for("nothing is lost"));
  expect_order();
  expect_open();
}

TEST_F(RdmaRenewalTest, ACutForLongerThanTheLimitEndsBothEnds) {
  set_up_with_limit(200'000);
  fabric_.set_options({.unreachable_retry_us = 10'000});
  fabric_.cut(card(kA), card(kB));
  send(kA, "does not arrive");
  const Status why = recorders_[kA].why_closed();
  EXPECT_EQ(why.code(), StatusCode::kUnavailable) << why;
  EXPECT_TRUE(mentions(why, "transport retry counter exceeded")) << why;
  EXPECT_TRUE(mentions(why, end(kA).peer())) << why;
  EXPECT_EQ(recorders_[kB].why_closed().code(), StatusCode::kUnavailable);
  EXPECT_EQ(sent_.all().size(), 1u);
}

TEST_F(RdmaRenewalTest, AnEndThatGetsNoOtherQueuePairSaysSo) {
  for (const int side : {kA, kB}) {
    SCOPED_TRACE(side);
    if (side == kA) {
      set_up_with_limit(kLongUs);
    } else {
      ASSERT_NO_FATAL_FAILURE(connect_another());
      start_both();
    }
    card(side).fail_next_queue_pair(unavailable("too many queue pairs"));
    break_queue_pair(kA);
    const Status why = recorders_[side].why_closed();
    EXPECT_TRUE(mentions(why, "too many queue pairs")) << why;
    EXPECT_TRUE(mentions(why, end(side).peer())) << why;
    EXPECT_EQ(recorders_[1 - side].why_closed().code(), StatusCode::kUnavailable);
  }
}

TEST_F(RdmaRenewalTest, WithoutARouteItIsTriedAgain) {
  set_up_with_limit(kLongUs);
  use_tensors_of_all_sizes();
  for (const int side : {kA, kB}) {
    card(side).fail_next_connect(unavailable("no route"));
    card(side).fail_next_connect(unavailable("no route"));
    LogReader log;
    break_queue_pair(1 - side);
    round(kTensors);
    EXPECT_TRUE(log.wait_for("nothing is lost"));
  }
  card(kA).fail_next_connect(invalid_argument("no such card"));
  break_queue_pair(kB);
  EXPECT_TRUE(mentions(recorders_[kA].why_closed(), "no such card"));
  EXPECT_EQ(recorders_[kB].why_closed().code(), StatusCode::kUnavailable);
  expect_order();
}

TEST_F(RdmaRenewalTest, WithoutAPathTheEndOfThePeerIsToldAtOnce) {
  set_up_with_limit(kLongUs);
  fabric_.set_options({.unreachable_retry_us = 1'000});
  fabric_.cut(card(kA), card(kB));
  send(kA, "does not arrive");
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  destroy(kB);
  EXPECT_EQ(recorders_[kA].why_closed().code(), StatusCode::kUnavailable);
  EXPECT_EQ(sent_.all().size(), 1u);
}

TEST_F(RdmaRenewalTest, TheLimitDoesNotCountFromAFailureThatIsOver) {
  recorders_[kB].frame = nullptr;
  set_up_with_limit(500'000);
  {
    LogReader log;
    break_queue_pair(kA);
    for (const int each : {0, 1}) ASSERT_TRUE(log.wait_for("nothing is lost")) << each;
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  fabric_.set_options({.unreachable_retry_us = 10'000});
  fabric_.cut(card(kA), card(kB));
  send(kA, "the first frame since");
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  fabric_.mend(card(kA), card(kB));
  EXPECT_TRUE(recorders_[kB].wait_for_frames(1));
  expect_open();
}

// The other end is not started, so it would not close a connection that goes on.
TEST_F(RdmaRenewalTest, AfterTheEndHasArrivedNoQueuePairIsReplaced) {
  const Process process{.renewal_limit_us = kLongUs};
  set_up_and_connect(process, process);
  start(kB);
  const uint64_t before = fabric_.statistics().immediates;
  run_on(loop(kB), [&] { end(kB).close_when_sent(soon_us(60)); });
  ASSERT_TRUE(eventually([&] { return fabric_.statistics().immediates > before; }));
  break_queue_pair(kB);
  EXPECT_TRUE(recorders_[kB].why_closed().is_ok()) << recorders_[kB].why_closed();
}

}  // namespace
}  // namespace byteps::transport::rdma
