// What every event loop keeps for its own thread: timers and requested turns. EpollLoop and the
// simulator's loops share them, so both worlds have the same order. Not thread-safe. Callbacks may
// add, request and cancel, but not run or clear.
#pragma once

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "transport/event_loop.h"

namespace byteps::transport {

class TimerQueue {
 public:
  using Task = EventLoop::Task;
  using TimerId = EventLoop::TimerId;

  TimerId add(TimeUs at_us, Task task) {
    times_.emplace(++last_, at_us);
    tasks_.emplace(std::pair(at_us, last_), std::move(task));
    return last_;
  }
  void cancel(TimerId timer) {
    const auto found = times_.find(timer);
    if (found == times_.end()) return;
    // Destroyed last, as it may own the caller.
    const auto node = tasks_.extract({found->second, timer});
    times_.erase(found);
  }
  // Time of the first timer; kNever: there is none.
  TimeUs next_us() const { return tasks_.empty() ? kNever : tasks_.begin()->first.first; }
  // Runs what is due, while `goes_on` returns true. Timers that a timer sets wait for the next call.
  template <typename Predicate>
  void run(TimeUs now_us, Predicate goes_on) {
    const TimerId newest = last_;
    while (!tasks_.empty() && goes_on()) {
      const auto [at_us, id] = tasks_.begin()->first;
      if (at_us > now_us || id > newest) return;
      auto node = tasks_.extract(tasks_.begin());
      times_.erase(id);
      node.mapped()();
    }
  }
  // Destroys the tasks one by one, as objects that they own may call cancel() in their destructors.
  void clear() {
    times_.clear();
    while (!tasks_.empty()) tasks_.extract(tasks_.begin());
  }

 private:
  std::map<std::pair<TimeUs, TimerId>, Task> tasks_;
  std::unordered_map<TimerId, TimeUs> times_;
  TimerId last_ = 0;
};

class TurnQueue {
 public:
  bool empty() const { return requested_.empty(); }
  void request(TurnHandler* handler) { requested_.push_back(handler); }
  void cancel(TurnHandler* handler) {
    std::erase(requested_, handler);
    std::ranges::replace(running_, handler, nullptr);
  }
  // Gives the requested turns, while `goes_on` returns true; turns requested meanwhile wait for the
  // next call.
  template <typename Predicate>
  void run(Predicate goes_on) {
    running_.clear();
    running_.swap(requested_);
    for (size_t i = 0; i < running_.size() && goes_on(); ++i) {
      if (TurnHandler* const handler = running_[i]) handler->on_turn();
    }
    running_.clear();
  }

 private:
  std::vector<TurnHandler*> requested_;
  std::vector<TurnHandler*> running_;
};

}  // namespace byteps::transport
