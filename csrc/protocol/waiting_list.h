// What waits for others in one summation shard, and how long it may. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <list>
#include <utility>

#include "base/clock.h"

namespace byteps::protocol {

struct WaitLimits {
  TimeUs stall_warning_us;  // what waits so long is warned of, once; kNever: not
  TimeUs op_timeout_us;     // what waits so long fails; kNever: not
};

// Allocates only when more wait than ever before. Starts must be in order of time.
template <typename T>
class WaitingList {
 public:
  struct Wait {
    T what;
    TimeUs started_us;
    bool warned;
  };
  using RootLocation = typename std::list<Wait>::iterator;

  explicit WaitingList(WaitLimits limits) : limits_(limits) {}

  size_t size() const { return fresh_.size() + overdue_.size(); }
  // The place of nothing.
  RootLocation none() { return spare_.end(); }

  // Valid until it is removed.
  RootLocation add(T what, TimeUs now) {
    if (spare_.empty()) spare_.emplace_back();
    const RootLocation place = spare_.begin();
    *place = {std::move(what), now, false};
    fresh_.splice(fresh_.end(), spare_, place);
    return place;
  }
  void remove(RootLocation place) { spare_.splice(spare_.end(), place->warned ? overdue_ : fresh_, place); }

  // `f` may remove the place that it is called with.
  template <typename F>
  void for_each(F&& f) {
    for (auto* list : {&overdue_, &fresh_}) {
      for (auto next = list->begin(); next != list->end();) f(next++);
    }
  }
  // As for_each, of those that have waited too long; `f` must remove them.
  template <typename F>
  void for_each_timed_out(TimeUs now, F&& f) {
    for (auto* list : {&overdue_, &fresh_}) {
      while (!list->empty() && later(list->front().started_us, limits_.op_timeout_us) <= now)
        f(list->begin());
    }
  }
  // How many are to be warned of, for the first time; `f` is called with the oldest of them. Usually one slow rank holds
  // up all, so that one line is enough.
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
  // When somebody is to be warned of or fails next; kNever if nothing waits.
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
  // In the order of their start, so the first is due first.
  std::list<Wait> fresh_;
  std::list<Wait> overdue_;  // and warned of
  std::list<Wait> spare_;
};

}  // namespace byteps::protocol
