// Runs the callbacks of finished push_pulls on one thread ("bps-completion"). Thread-safe.
//
// Callbacks belong to a framework and may block, for example until another push_pull is done. On a
// data loop that would be a deadlock. The thread starts with the first callback.
#pragma once

#include <condition_variable>
#include <thread>
#include <utility>
#include <vector>

#include "base/annotations.h"
#include "base/status.h"
#include "base/unique_function.h"

namespace byteps::worker {

// Gets the status of the push_pull. May start push_pulls; must not destroy the node.
using OnDone = UniqueFunction<void(const Status&)>;

class Completions {
 public:
  Completions() = default;
  ~Completions() { close(); }
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

  // Calls `on_done` later, in the order of posts. After close(): immediately, on this thread.
  void post(OnDone on_done, Status status) BPS_EXCLUDES(mutex_);
  // Returns when all posted callbacks have run. Inside a callback it returns immediately, and the
  // thread ends after the remaining callbacks. Idempotent.
  void close() BPS_EXCLUDES(mutex_);

 private:
  using Posted = std::pair<OnDone, Status>;
  void run() BPS_EXCLUDES(mutex_);

  Mutex mutex_;
  std::vector<Posted> posted_ BPS_GUARDED_BY(mutex_);
  bool waiting_ BPS_GUARDED_BY(mutex_) = false;  // the thread waits for more_
  bool closed_ BPS_GUARDED_BY(mutex_) = false;
  std::condition_variable_any more_;
  std::thread thread_ BPS_GUARDED_BY(mutex_);
};

}  // namespace byteps::worker
