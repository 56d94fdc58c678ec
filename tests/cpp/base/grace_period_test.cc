#include "base/grace_period.h"

#include <gtest/gtest.h>

namespace byteps {
namespace {

constexpr TimeUs kSecond = 1'000'000;

// Not inlined, as GCC 12 then warns of an empty optional's value.
[[gnu::noinline]] GraceWait begin(GracePeriod grace_period) { return {grace_period, 0}; }

TEST(GracePeriodTest, WithNothingOutstandingOnlyTheDeadlineCounts) {
  GraceWait wait = begin({5 * kSecond, 30 * kSecond});
  EXPECT_EQ(wait.look(7, false, 0), kSecond);
  EXPECT_EQ(wait.look(8, false, 5 * kSecond - 1), 5 * kSecond);
  EXPECT_EQ(wait.look(9, false, 5 * kSecond), std::nullopt);
}

TEST(GracePeriodTest, WhatMovesIsWaitedForAndWhatDoesNotIsNot) {
  GraceWait wait = begin({5 * kSecond, 30 * kSecond});
  uint64_t taken = 0;
  TimeUs now = 0;
  for (; now < 200 * kSecond; now += 20 * kSecond) EXPECT_TRUE(wait.look(++taken, true, now)) << now;
  now -= 20 * kSecond;  // time of the last progress
  EXPECT_EQ(wait.look(taken, true, now + 30 * kSecond - 1), now + 30 * kSecond);
  EXPECT_EQ(wait.look(taken, true, now + 30 * kSecond), std::nullopt);
}

TEST(GracePeriodTest, WithoutATimeForStallsTheDeadlineIsTheEnd) {
  GraceWait wait = begin(GracePeriod(5 * kSecond));
  EXPECT_TRUE(wait.look(1, true, 5 * kSecond - 1));
  EXPECT_EQ(wait.look(2, true, 5 * kSecond), std::nullopt);
}

}  // namespace
}  // namespace byteps
