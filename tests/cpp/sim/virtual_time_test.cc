#include "sim/virtual_time.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "transport/loop_conformance.h"

namespace byteps::sim {
namespace {

using transport::LoopConformance;
using transport::LoopKind;

struct Driven {
  VirtualTime time{1};
  VirtualTime::Driver driver{time};
};

std::unique_ptr<transport::EventLoop> make_driven(std::shared_ptr<void>& context) {
  if (!context) context = std::make_shared<Driven>();
  return static_cast<Driven*>(context.get())->time.make_loop("conformance");
}

class VirtualTimeTest : public testing::Test {
 protected:
  bool never() {
    return time_.run_until(kNever, [] { return false; });
  }

  VirtualTime time_{7};
};

TEST_F(VirtualTimeTest, JumpsToTheNextTimer) {
  const auto loop = time_.make_loop("a");
  std::vector<TimeUs> at_us;
  loop->run_and_wait([&] {
    loop->run_at(3'600'000'000, [&] { at_us.push_back(loop->now_us()); });
    loop->run_at(5, [&] { at_us.push_back(loop->now_us()); });
  });
  EXPECT_FALSE(time_.run_until(100, [] { return false; }));
  EXPECT_EQ(time_.now_us(), 100);
  EXPECT_FALSE(never());
  EXPECT_EQ(at_us, (std::vector<TimeUs>{5, 3'600'000'000}));
}

TEST_F(VirtualTimeTest, StandsStillWhileLoopsHaveSomethingToDo) {
  const auto first = time_.make_loop("a");
  const auto second = time_.make_loop("b");
  int passes = 0;
  UniqueFunction<void()> pass_on;
  pass_on = [&] {
    if (++passes == 1000) return;
    transport::EventLoop& other = first->in_loop() ? *second : *first;
    other.post([&] { pass_on(); });
  };
  first->post([&] { pass_on(); });
  EXPECT_FALSE(never());
  EXPECT_EQ(passes, 1000);
  EXPECT_EQ(time_.now_us(), 0);
}

std::string interleaving(uint64_t seed) {
  VirtualTime time(seed);
  const auto first = time.make_loop("a");
  const auto second = time.make_loop("b");
  std::string order;
  for (int i = 0; i < 20; ++i) {
    first->post([&, &loop = *first] { loop.post([&] { order += 'a'; }); });
    second->post([&, &loop = *second] { loop.post([&] { order += 'b'; }); });
  }
  UniqueFunction<void()> again;
  int left = 40;
  again = [&] {
    order += first->in_loop() ? 'x' : 'y';
    if (--left > 0) (left % 2 ? *first : *second).post([&] { again(); });
  };
  first->post([&] { again(); });
  second->post([&] { again(); });
  time.run_until(kNever, [] { return false; });
  return order;
}

TEST_F(VirtualTimeTest, ASeedDecidesTheInterleaving) {
  EXPECT_EQ(interleaving(1), interleaving(1));
  std::set<std::string> seen;
  for (uint64_t seed = 0; seed < 20; ++seed) seen.insert(interleaving(seed));
  EXPECT_GT(seen.size(), 5u);
}

TEST_F(VirtualTimeTest, APreemptedLoopStandsStillWhileOthersRun) {
  const auto slow = time_.make_loop("slow");
  const auto quick = time_.make_loop("quick");
  slow->preempt(1'000);
  TimeUs latest_us = 0;
  std::vector<int> ran;
  for (int i = 0; i < 300; ++i) {
    quick->schedule(time_.now_us() + 1, [&] {
      slow->post([&, posted_us = slow->now_us(), number = static_cast<int>(ran.size())] {
        ran.push_back(number);
        latest_us = std::max(latest_us, slow->now_us() - posted_us);
      });
    });
    never();
  }
  EXPECT_EQ(ran.size(), 300u);
  EXPECT_TRUE(std::ranges::is_sorted(ran));
  EXPECT_GT(latest_us, 0);
  EXPECT_LE(latest_us, 1'000);
}

TEST_F(VirtualTimeTest, APausedLoopRunsLaterWhatCameMeanwhile) {
  const auto loop = time_.make_loop("a");
  std::string order;
  loop->run_and_wait([&] { loop->run_at(10, [&] { order += "timer "; }); });
  loop->pause(true);
  loop->post([&] { order += "task "; });
  EXPECT_FALSE(time_.run_until(1'000, [] { return false; }));
  EXPECT_EQ(order, "");
  loop->pause(false);
  EXPECT_FALSE(never());
  EXPECT_EQ(order, "task timer ");
}

TEST_F(VirtualTimeTest, AKilledLoopRunsNothingAnyMore) {
  const auto loop = time_.make_loop("a");
  int ran = 0;
  loop->post([&] {
    ++ran;
    loop->kill();
  });
  loop->post([&] { ++ran; });
  loop->run_and_wait([&] { loop->run_at(10, [&] { ++ran; }); });
  EXPECT_FALSE(never());
  loop->stop();
  EXPECT_EQ(ran, 1);
}

INSTANTIATE_TEST_SUITE_P(Virtual, LoopConformance, testing::Values(LoopKind{"", make_driven}));

}  // namespace
}  // namespace byteps::sim
