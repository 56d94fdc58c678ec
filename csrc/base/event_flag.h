// A one-shot flag. Thread-safe: any number of threads may call set() and wait(), any number of
// times. Built on futex(2) because std::condition_variable hides EINTR, and Ctrl-C must reach a
// Python program that waits here.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "base/clock.h"
#include "base/status.h"

namespace byteps {

class EventFlag {
 public:
  enum class Wake { kSet, kTimeout, kInterrupted };

  void set();
  bool is_set() const { return state_.load(std::memory_order_acquire) == kSetValue; }
  // Blocks until the flag is set, `deadline_us` (in now_us() time; kNever: no deadline) has passed,
  // or a signal handler has run.
  Wake wait(TimeUs deadline_us);

 private:
  static constexpr uint32_t kSetValue = 2;
  std::atomic<uint32_t> state_{0};  // 0: clear, 1: clear with waiters, 2: set
};

// Called on the waiting thread, once before the wait and after each signal that interrupts it. False
// ends the wait with kAborted.
using KeepWaiting = std::function<bool()>;

// Blocks until `flag` is set; resumes after signals while `keep_waiting` returns true. Errors:
// kDeadlineExceeded, kAborted.
Status wait_for(EventFlag& flag, TimeUs deadline_us, const KeepWaiting& keep_waiting);

}  // namespace byteps
