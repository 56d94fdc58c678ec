#include "protocol/failure_history.h"

#include <gtest/gtest.h>

#include <string>

namespace byteps::protocol {
namespace {

TEST(FailureHistoryTest, FindsTheFirstFailureFromARoundOn) {
  FailureHistory failures;
  EXPECT_TRUE(failures.find(1).is_ok());
  failures.add(3, internal("three"));
  failures.add(5, internal("five"));
  failures.add(5, internal("again"));
  failures.add(4, internal("failed already"));
  for (uint64_t round = 1; round <= 3; ++round) EXPECT_EQ(failures.find(round).message(), "three");
  EXPECT_EQ(failures.find(4).message(), "five");
  EXPECT_EQ(failures.find(5).message(), "five");
  EXPECT_TRUE(failures.find(6).is_ok());
}

TEST(FailureHistoryTest, ForgetsWhatNobodyAsksForAnyMore) {
  FailureHistory failures;
  failures.add(3, internal("three"));
  failures.add(5, internal("five"));
  failures.forget(3);
  EXPECT_EQ(failures.find(4).message(), "five");
  failures.forget(5);
  EXPECT_TRUE(failures.find(4).is_ok());
}

TEST(FailureHistoryTest, OfManyTheOldestAreForgotten) {
  FailureHistory failures;
  for (uint64_t round = 1; round <= 100; ++round) failures.add(round, internal(std::to_string(round)));
  EXPECT_EQ(failures.find(100).message(), "100");
  EXPECT_EQ(failures.find(1).message(), "93");
}

}  // namespace
}  // namespace byteps::protocol
