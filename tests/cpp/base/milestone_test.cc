#include "base/milestone.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace byteps {
namespace {

TEST(MilestoneTest, CallsEachCallbackOnceInTheirOrder) {
  Milestone milestone;
  std::vector<int> called;
  milestone.when_reached([&] { called.push_back(1); });
  milestone.when_reached([&] { called.push_back(2); });
  EXPECT_FALSE(milestone.is_reached());
  milestone.reach();
  milestone.reach();
  EXPECT_TRUE(milestone.is_reached());
  EXPECT_EQ(called, (std::vector<int>{1, 2}));
  milestone.when_reached([&] { called.push_back(3); });
  EXPECT_EQ(called.back(), 3) << "immediately";
}

TEST(MilestoneTest, ACallbackMayUseTheMilestone) {
  Milestone milestone;
  int called = 0;
  milestone.when_reached([&] {
    milestone.reach();
    milestone.when_reached([&] { ++called; });
  });
  milestone.reach();
  EXPECT_EQ(called, 1);
}

TEST(MilestoneTest, WakesThreadsAndLosesNoCallback) {
  for (int i = 0; i < 200; ++i) {
    Milestone milestone;
    std::atomic<int> called = 0;
    std::thread waiter([&] {
      while (milestone.flag().wait(kNever) != EventFlag::Wake::kSet) {
      }
      ++called;
    });
    std::thread registrar([&] { milestone.when_reached([&] { ++called; }); });
    milestone.reach();
    waiter.join();
    registrar.join();
    EXPECT_EQ(called, 2);
  }
}

}  // namespace
}  // namespace byteps
