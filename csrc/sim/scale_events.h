// What waits for its time in a simulated job: events, and work for a core. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/unique_function.h"

namespace byteps::sim {

class ScaleEvents {
 public:
  using Event = UniqueFunction<void()>;

  // Events of equal times run in the order of the calls.
  void at(double when_s, Event event) {
    heap_.push_back({when_s, next_sequence_++, std::move(event)});
    std::push_heap(heap_.begin(), heap_.end());
  }
  double now_s() const { return now_s_; }

  // Runs until there are no more events. Returns false if `keep_going`, which is called at times,
  // returned false.
  bool run(const std::function<bool()>& keep_going) {
    constexpr uint64_t kEventsBetweenQuestions = 1 << 18;  // about a tenth of a second
    for (uint64_t count = 0; !heap_.empty(); ++count) {
      if (count % kEventsBetweenQuestions == 0 && !keep_going()) return false;
      std::pop_heap(heap_.begin(), heap_.end());
      Entry entry = std::move(heap_.back());
      heap_.pop_back();
      now_s_ = entry.when_s;
      entry.event();
    }
    return true;
  }

 private:
  struct Entry {
    double when_s;
    uint64_t sequence;
    Event event;
    // A heap has its largest element first, so the order is reversed.
    bool operator<(const Entry& other) const {
      return when_s != other.when_s ? when_s > other.when_s : sequence > other.sequence;
    }
  };

  std::vector<Entry> heap_;
  uint64_t next_sequence_ = 0;
  double now_s_ = 0;
};

// A thread that does one thing after the other.
class ScaleCore {
 public:
  explicit ScaleCore(ScaleEvents& events) : events_(events) {}
  // `done` is called when the work, and all that was given earlier, is done.
  void work(double seconds, ScaleEvents::Event done) {
    if (seconds <= 0 && free_s_ <= events_.now_s()) return done();
    free_s_ = std::max(free_s_, events_.now_s()) + seconds;
    events_.at(free_s_, std::move(done));
  }

 private:
  ScaleEvents& events_;
  double free_s_ = 0;
};

}  // namespace byteps::sim
