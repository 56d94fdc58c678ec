#include "protocol/waiting_list.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace byteps::protocol {
namespace {

using List = WaitingList<int>;
constexpr WaitLimits kLimits{.stall_warning_us = 10, .op_timeout_us = 30};

std::vector<int> timed_out(List& list, TimeUs now) {
  std::vector<int> items;
  list.for_each_timed_out(now, [&](List::Iterator item) {
    items.push_back(item->what);
    list.remove(item);
  });
  return items;
}

// The oldest of the items whose warning is due, and their number; {0, 0}: none.
std::pair<int, size_t> warned(List& list, TimeUs now) {
  std::pair<int, size_t> of{0, 0};
  list.warn(now, [&of](const List::Wait& oldest, size_t count) { of = {oldest.what, count}; });
  return of;
}

TEST(WaitingListTest, EachItemIsWarnedOfOnceAndThenTimesOut) {
  List list(kLimits);
  EXPECT_EQ(list.next_us(), kNever);
  list.add(1, 100);
  list.add(2, 105);
  EXPECT_EQ(list.next_us(), 110);
  EXPECT_EQ(warned(list, 109), std::pair(0, size_t{0}));
  EXPECT_EQ(warned(list, 110), std::pair(1, size_t{1}));
  EXPECT_EQ(list.next_us(), 115);
  EXPECT_EQ(warned(list, 120), std::pair(2, size_t{1}));
  EXPECT_EQ(list.next_us(), 130);
  EXPECT_EQ(timed_out(list, 129), std::vector<int>{});
  EXPECT_EQ(timed_out(list, 130), std::vector<int>{1});
  EXPECT_EQ(list.next_us(), 135);
  EXPECT_EQ(timed_out(list, 200), std::vector<int>{2});
  EXPECT_EQ(list.size(), 0u);
  EXPECT_EQ(list.next_us(), kNever);
}

TEST(WaitingListTest, OneWarningStandsForAllThatAreDue) {
  List list(kLimits);
  for (const int item : {1, 2, 3}) list.add(item, 100);
  EXPECT_EQ(warned(list, 110), std::pair(1, size_t{3}));
  EXPECT_EQ(warned(list, 120), std::pair(0, size_t{0}));
}

TEST(WaitingListTest, AfterARestartAllWaitAnewAndNoWarningIsRepeated) {
  List list(kLimits);
  list.add(1, 100);
  EXPECT_EQ(warned(list, 110), std::pair(1, size_t{1}));
  list.add(2, 112);
  list.restart(120);
  list.add(3, 125);
  EXPECT_EQ(list.next_us(), 130);
  EXPECT_EQ(warned(list, 134), std::pair(2, size_t{1}));
  EXPECT_EQ(timed_out(list, 149), std::vector<int>{});
  EXPECT_EQ(timed_out(list, 150), (std::vector<int>{1, 2}));
  EXPECT_EQ(timed_out(list, 155), std::vector<int>{3});
}

TEST(WaitingListTest, ItemsTimeOutWithoutAWarning) {
  List list({.stall_warning_us = kNever, .op_timeout_us = 30});
  list.add(1, 100);
  EXPECT_EQ(list.next_us(), 130);
  EXPECT_EQ(timed_out(list, 130), std::vector<int>{1});
}

TEST(WaitingListTest, ARemovedItemIsForgottenWhetherWarnedOfOrNot) {
  List list(kLimits);
  const List::Iterator first = list.add(1, 100);
  EXPECT_EQ(warned(list, 110), std::pair(1, size_t{1}));
  const List::Iterator second = list.add(2, 111);
  list.remove(first);
  EXPECT_EQ(list.next_us(), 121);
  list.remove(second);
  EXPECT_EQ(list.next_us(), kNever);
  EXPECT_EQ(timed_out(list, 1000), std::vector<int>{});
}

TEST(WaitingListTest, AnItemMayBeRemovedWhileAllAreVisited) {
  List list(kLimits);
  for (const int item : {1, 2, 3}) list.add(item, 100);
  list.for_each([&list](List::Iterator item) {
    if (item->what == 2) list.remove(item);
  });
  EXPECT_EQ(timed_out(list, 200), (std::vector<int>{1, 3}));
}

}  // namespace
}  // namespace byteps::protocol
