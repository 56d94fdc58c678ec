#include "protocol/rounds.h"

#include <gtest/gtest.h>

namespace byteps::protocol {
namespace {

TEST(RoundsTest, WithoutStepsTheyAreCounted) {
  EXPECT_EQ(next_round(0, 0), 1u);
  EXPECT_EQ(next_round(7, 0), 8u);
  EXPECT_EQ(describe_round(8), "round 8");
}

TEST(RoundsTest, AStepBeginsAtItsOwnRound) {
  const uint64_t fifth = next_round(0, 5);
  EXPECT_EQ(next_round(1000, 5), fifth);
  EXPECT_EQ(next_round(next_round(0, 4), 5), fifth);
  EXPECT_EQ(describe_round(fifth), "step 5");
}

TEST(RoundsTest, RepetitionsInAStepAreCountedInIt) {
  const uint64_t second = next_round(next_round(0, 5), 5);
  EXPECT_EQ(describe_round(second), "step 5, round 2");
  EXPECT_LT(second, next_round(0, 6));
}

TEST(RoundsTest, TheLastStepFits) {
  const uint64_t last = next_round(0, kMaxStep);
  EXPECT_EQ(describe_round(last), "step " + std::to_string(kMaxStep));
  EXPECT_LT(next_round(last, kMaxStep), UINT64_MAX) << "kEveryRound";
}

}  // namespace
}  // namespace byteps::protocol
