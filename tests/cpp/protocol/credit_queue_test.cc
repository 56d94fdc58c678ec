#include "protocol/credit_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace byteps::protocol {
namespace {

TEST(CreditQueue, HandsOutByPriorityThenByOrderOfPushing) {
  CreditQueue<char> queue(100);
  queue.push(0, 1, 'a');
  queue.push(5, 1, 'b');
  queue.push(-3, 1, 'c');
  queue.push(5, 1, 'd');
  std::string order;
  while (auto item = queue.pop()) order += *item;
  EXPECT_EQ(order, "bdac");
  EXPECT_TRUE(queue.empty());
}

TEST(CreditQueue, StopsAtTheCreditUntilBytesAreWritten) {
  CreditQueue<int> queue(100);
  for (int i = 0; i < 3; ++i) queue.push(0, 50, i);
  EXPECT_EQ(queue.pop(), 0);
  EXPECT_EQ(queue.pop(), 1);
  EXPECT_EQ(queue.pop(), std::nullopt);
  queue.give_back(49);
  EXPECT_EQ(queue.pop(), std::nullopt);
  queue.give_back(1);
  EXPECT_EQ(queue.pop(), 2);
}

TEST(CreditQueue, AnItemLargerThanTheCreditPassesAlone) {
  CreditQueue<int> queue(10);
  queue.push(0, 4, 1);
  queue.push(0, 1000, 2);
  queue.push(0, 1, 3);
  EXPECT_EQ(queue.pop(), 1);
  EXPECT_EQ(queue.pop(), std::nullopt) << "3 would fit, but 2 is first";
  queue.give_back(4);
  EXPECT_EQ(queue.pop(), 2);
  EXPECT_EQ(queue.pop(), std::nullopt);
  queue.give_back(1000);
  EXPECT_EQ(queue.pop(), 3);
}

TEST(CreditQueue, UrgentItemWaitsOnlyForWhatIsOutstanding) {
  CreditQueue<int> queue(8);
  for (int i = 0; i < 1000; ++i) queue.push(0, 4, i);
  ASSERT_TRUE(queue.pop() && queue.pop());
  queue.push(1, 4, -1);
  queue.give_back(4);
  EXPECT_EQ(queue.pop(), -1);
}

TEST(CreditQueue, HoldsItemsThatCanOnlyBeMoved) {
  CreditQueue<std::unique_ptr<int>> queue(1);
  queue.push(0, 0, std::make_unique<int>(7));
  EXPECT_EQ(**queue.pop(), 7);
}

TEST(CreditQueue, LosesNothingAndKeepsTheCreditForAnySequence) {
  std::mt19937 random(1);
  for (int run = 0; run < 50; ++run) {
    const uint64_t credit = 1 + random() % 100;
    CreditQueue<uint64_t> queue(credit);  // the item is its size
    std::vector<uint64_t> outstanding;
    uint64_t pushed = 0;
    uint64_t popped = 0;
    for (int step = 0; step < 400; ++step) {
      if (random() % 2 == 0) {
        const uint64_t bytes = random() % 60;
        queue.push(static_cast<int32_t>(random() % 4), bytes, bytes);
        ++pushed;
      }
      while (auto bytes = queue.pop()) {
        outstanding.push_back(*bytes);
        ++popped;
      }
      uint64_t sum = 0;
      for (uint64_t bytes : outstanding) sum += bytes;
      ASSERT_EQ(queue.outstanding_bytes(), sum);
      ASSERT_TRUE(sum <= credit || sum == *std::max_element(outstanding.begin(), outstanding.end()));
      ASSERT_TRUE(queue.empty() || sum > 0) << "stuck with nothing outstanding";
      if (!outstanding.empty() && random() % 2 == 0) {
        queue.give_back(outstanding.back());
        outstanding.pop_back();
      }
    }
    while (!queue.empty()) {
      for (uint64_t bytes : std::exchange(outstanding, {})) queue.give_back(bytes);
      while (auto bytes = queue.pop()) outstanding.push_back(*bytes), ++popped;
    }
    ASSERT_EQ(popped, pushed);
  }
}

}  // namespace
}  // namespace byteps::protocol
