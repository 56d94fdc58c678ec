// An event that happens once: threads wait for it, and callbacks run when it happens.
#pragma once

#include <utility>
#include <vector>

#include "base/annotations.h"
#include "base/event_flag.h"
#include "base/unique_function.h"

namespace byteps {

// Thread-safe.
class Milestone {
 public:
  // Wakes the threads, then calls the callbacks on this thread. Idempotent.
  void reach() {
    std::vector<UniqueFunction<void()>> callbacks;
    {
      MutexLock lock(mutex_);
      reached_.set();
      callbacks.swap(callbacks_);
    }
    for (auto& callback : callbacks) callback();
  }
  bool is_reached() const { return reached_.is_set(); }
  // Calls `callback` once: in reach(), or immediately if that was called before.
  void when_reached(UniqueFunction<void()> callback) {
    {
      MutexLock lock(mutex_);
      if (!reached_.is_set()) return callbacks_.push_back(std::move(callback));
    }
    callback();
  }
  // For threads that wait.
  EventFlag& flag() { return reached_; }

 private:
  EventFlag reached_;
  Mutex mutex_;
  std::vector<UniqueFunction<void()>> callbacks_ BPS_GUARDED_BY(mutex_);
};

}  // namespace byteps
