#include "protocol/barriers.h"

#include <gtest/gtest.h>

namespace byteps::protocol {
namespace {

constexpr TimeUs kBarrierLimitUs = 1'000'000;

// Barriers of three ranks; the answers of the last call as text: "0:1 ok" is rank 0, barrier 1.
class BarriersTest : public testing::Test {
 protected:
  std::string arrive(uint32_t rank, uint32_t sequence, TimeUs now = 0) {
    Barriers::Answers answers;
    const Status status = barriers_.on_arrival(rank, sequence, now, answers);
    return status.is_ok() ? text(answers) : status.message();
  }
  std::string leave(uint32_t rank) {
    Barriers::Answers answers;
    barriers_.on_left(rank, answers);
    return text(answers);
  }
  std::string tick(TimeUs now) {
    Barriers::Answers answers;
    barriers_.on_tick(now, answers);
    return text(answers);
  }
  static std::string text(const Barriers::Answers& answers) {
    std::string text;
    for (const auto& [rank, sequence, status] : answers) {
      text += (text.empty() ? "" : ", ") + std::to_string(rank) + ":" + std::to_string(sequence) + " " +
              (status.is_ok() ? "ok" : status.message());
    }
    return text;
  }

  Barriers barriers_{{"rank 0", "rank 1", "rank 2"}, kBarrierLimitUs};
};

TEST_F(BarriersTest, OpensWhenAllHaveCome) {
  for (uint32_t sequence = 1; sequence < 4; ++sequence) {
    EXPECT_EQ(arrive(2, sequence), "");
    EXPECT_EQ(arrive(0, sequence), "");
    const std::string n = std::to_string(sequence);
    EXPECT_EQ(arrive(1, sequence), "2:" + n + " ok, 0:" + n + " ok, 1:" + n + " ok");
    EXPECT_EQ(barriers_.next_tick_us(), kNever);
  }
}

TEST_F(BarriersTest, TimeoutNamesTheMissingRanksAndFailsLateOnes) {
  EXPECT_EQ(arrive(1, 1, 5), "");
  EXPECT_EQ(barriers_.next_tick_us(), 5 + kBarrierLimitUs);
  EXPECT_EQ(tick(4 + kBarrierLimitUs), "");
  EXPECT_EQ(tick(5 + kBarrierLimitUs), "1:1 barrier: has waited 1 s for rank 0 and rank 2");
  EXPECT_EQ(barriers_.next_tick_us(), kNever);
  EXPECT_EQ(arrive(0, 1), "0:1 barrier: has waited 1 s for rank 0 and rank 2");
  EXPECT_EQ(arrive(0, 2), "");
  EXPECT_EQ(arrive(1, 2), "");
  EXPECT_EQ(arrive(2, 1), "2:1 barrier: has waited 1 s for rank 0 and rank 2");
  EXPECT_EQ(arrive(2, 2), "0:2 ok, 1:2 ok, 2:2 ok");
}

TEST_F(BarriersTest, WhenAServerIsLostBarriersWaitAnew) {
  EXPECT_EQ(arrive(1, 1, 5), "");
  barriers_.restart_waits(kBarrierLimitUs / 2);
  EXPECT_EQ(barriers_.next_tick_us(), kBarrierLimitUs / 2 + kBarrierLimitUs);
  EXPECT_EQ(tick(kBarrierLimitUs / 2 + kBarrierLimitUs - 1), "");
  EXPECT_EQ(tick(kBarrierLimitUs / 2 + kBarrierLimitUs), "1:1 barrier: has waited 1 s for rank 0 and rank 2");
}

TEST_F(BarriersTest, ARankThatHasLeftFailsTheBarriersThatLackIt) {
  EXPECT_EQ(arrive(0, 1), "");
  EXPECT_EQ(leave(2), "0:1 barrier: rank 2 has left the job");
  EXPECT_EQ(arrive(1, 1), "1:1 barrier: rank 2 has left the job");
  EXPECT_EQ(arrive(0, 2), "0:2 barrier: rank 2 has left the job");
  EXPECT_EQ(barriers_.next_tick_us(), kNever);
}

TEST_F(BarriersTest, ARankThatLeavesAfterItsArrivalHasArrived) {
  EXPECT_EQ(arrive(2, 1), "");
  EXPECT_EQ(leave(2), "");
  EXPECT_EQ(arrive(0, 1), "");
  EXPECT_EQ(arrive(1, 1), "2:1 ok, 0:1 ok, 1:1 ok");
}

TEST_F(BarriersTest, SequencesAreChecked) {
  EXPECT_EQ(arrive(0, 2), "barrier 2 after barrier 0");
  EXPECT_EQ(arrive(0, 1), "");
  EXPECT_EQ(arrive(0, 2), "barrier 2 before the end of barrier 1");
  EXPECT_EQ(arrive(0, 1), "barrier 1 before the end of barrier 1");
}

}  // namespace
}  // namespace byteps::protocol
