// Calls back when push_pulls are done, on one thread of its own ("bps-completion").
//
// A thread of its own, because what is called belongs to a framework, which may run other work in it: a data loop that
// waited there could be what that work waits for. The thread starts with the first callback. Any thread may call.
#pragma once

#include <condition_variable>
#include <thread>
#include <utility>
#include <vector>

#include "base/annotations.h"
#include "base/status.h"
#include "base/unique_function.h"

namespace byteps::worker {

// With what the push_pull came to. It may start push_pulls, and must not destroy the node.
using OnDone = UniqueFunction<void(const Status&)>;

class Completions {
 public:
  Completions() = default;
  ~Completions() { close(); }
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

  // Calls in the order of posts. After close(): at once, here.
  void post(OnDone on_done, Status status) BPS_EXCLUDES(mutex_);
  // Returns when all that was posted has been called. Idempotent. From a callback it returns at once, and the thread ends
  // when it has called the rest.
  void close() BPS_EXCLUDES(mutex_);

 private:
  using Posted = std::pair<OnDone, Status>;
  void run() BPS_EXCLUDES(mutex_);

  Mutex mutex_;
  std::vector<Posted> posted_ BPS_GUARDED_BY(mutex_);
  bool waiting_ BPS_GUARDED_BY(mutex_) = false;  // the thread sleeps, or is about to
  bool closed_ BPS_GUARDED_BY(mutex_) = false;
  std::condition_variable_any more_;
  std::thread thread_ BPS_GUARDED_BY(mutex_);
};

}  // namespace byteps::worker
