// Items of one summation shard that wait for other ranks, with their deadlines. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <list>
#include <utility>

#include "base/clock.h"

namespace byteps::protocol {

struct WaitLimits {
  TimeUs stall_warning_us;  // waiting time after which a single warning is due; kNever: no warning
  TimeUs op_timeout_us;     // waiting time after which the item fails; kNever: no limit
};

// Items must be added in the order of their times. Allocates only when more items wait than ever
// before.
template <typename T>
class WaitingList {
 public:
  struct Wait {
    T what;
    TimeUs started_us;
    bool warned;
  };
  using Iterator = typename std::list<Wait>::iterator;

  explicit WaitingList(WaitLimits limits) : limits_(limits) {}

  size_t size() const { return fresh_.size() + overdue_.size(); }
  // Stands for no item.
  Iterator none() { return spare_.end(); }

  // Valid until the item is removed.
  Iterator add(T what, TimeUs now) {
    if (spare_.empty()) spare_.emplace_back();
    const Iterator item = spare_.begin();
    *item = {std::move(what), now, false};
    fresh_.splice(fresh_.end(), spare_, item);
    return item;
  }
  void remove(Iterator item) { spare_.splice(spare_.end(), item->warned ? overdue_ : fresh_, item); }

  // All items begin to wait now; warnings are not repeated.
  void restart(TimeUs now) {
    for (auto* list : {&overdue_, &fresh_}) {
      for (Wait& item : *list) item.started_us = now;
    }
  }

  // `f` may remove the item that it is called with.
  template <typename F>
  void for_each(F&& f) {
    for (auto* list : {&overdue_, &fresh_}) {
      for (auto next = list->begin(); next != list->end();) f(next++);
    }
  }
  // Like for_each, for the items whose time is over; `f` must remove them.
  template <typename F>
  void for_each_timed_out(TimeUs now, F&& f) {
    for (auto* list : {&overdue_, &fresh_}) {
      while (!list->empty() && later(list->front().started_us, limits_.op_timeout_us) <= now)
        f(list->begin());
    }
  }
  // Marks the items whose warning is due as warned, and calls `f` once with the oldest of them and
  // their number: usually one slow rank delays all of them, so one line is enough.
  template <typename F>
  void warn(TimeUs now, F&& f) {
    size_t count = 0;
    while (!fresh_.empty() && later(fresh_.front().started_us, limits_.stall_warning_us) <= now) {
      fresh_.front().warned = true;
      overdue_.splice(overdue_.end(), fresh_, fresh_.begin());
      ++count;
    }
    if (count > 0) f(*std::prev(overdue_.end(), static_cast<ptrdiff_t>(count)), count);
  }
  // Time of the next warning or failure; kNever if nothing waits.
  TimeUs next_us() const {
    TimeUs next = kNever;
    if (!fresh_.empty()) {
      next = later(fresh_.front().started_us, std::min(limits_.stall_warning_us, limits_.op_timeout_us));
    }
    if (!overdue_.empty()) next = std::min(next, later(overdue_.front().started_us, limits_.op_timeout_us));
    return next;
  }

 private:
  WaitLimits limits_;
  // Each list is ordered by start, so its first item is due first.
  std::list<Wait> fresh_;
  std::list<Wait> overdue_;  // warned already
  std::list<Wait> spare_;
};

}  // namespace byteps::protocol
