// Virtual time: tasks in the order of their times, and time that jumps from one to the next.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/unique_function.h"

namespace byteps::sim {

class VirtualClock {
 public:
  TimeUs now() const { return now_; }

  // Tasks of the same time run in the order of these calls. A time that has passed is now.
  void at(TimeUs when, UniqueFunction<void()> task) {
    heap_.push_back({std::max(when, now_), next_sequence_++, std::move(task)});
    std::push_heap(heap_.begin(), heap_.end());
  }

  // Runs the next task. False, and nothing happens, if there is none until `limit`.
  bool run_one(TimeUs limit) {
    if (heap_.empty() || heap_.front().when > limit) return false;
    std::pop_heap(heap_.begin(), heap_.end());
    Entry entry = std::move(heap_.back());
    heap_.pop_back();
    now_ = entry.when;
    entry.task();
    return true;
  }

 private:
  struct Entry {
    TimeUs when;
    uint64_t sequence;
    UniqueFunction<void()> task;
    bool operator<(const Entry& other) const {
      return when != other.when ? when > other.when : sequence > other.sequence;
    }
  };
  std::vector<Entry> heap_;
  TimeUs now_ = 0;
  uint64_t next_sequence_ = 0;
};

}  // namespace byteps::sim
