// A one-shot flag that threads can wait for without polling, and that a signal can interrupt.
//
// set() may be called from any thread, any number of times; wait() by any number of threads. Built on
// futex(2): std::condition_variable hides EINTR, and Ctrl-C must reach a Python program that waits here.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace byteps {

class EventFlag {
 public:
  enum class Wake { kSet, kTimeout, kInterrupted };

  void set();
  bool is_set() const { return state_.load(std::memory_order_acquire) == kSetValue; }
  // Blocks until set, until `deadline_us` (now_us() time; kNever: no deadline), or until a signal handler ran.
  Wake wait(TimeUs deadline_us);

 private:
  static constexpr uint32_t kSetValue = 2;
  std::atomic<uint32_t> state_{0};  // 0 clear, 1 clear with waiters, 2 set
};

}  // namespace byteps
