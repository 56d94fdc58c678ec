// Runs the callbacks of finished push_pulls: the interface.
#pragma once

#include "base/status.h"
#include "base/unique_function.h"

namespace byteps::worker {

// Gets the status of the push_pull. May start push_pulls; must not destroy the node.
using OnDone = UniqueFunction<void(const Status&)>;

// Thread-safe. The destructor calls close().
class Completions {
 public:
  virtual ~Completions() = default;
  // Calls `on_done` later, in the order of posts. After close(): immediately, on this thread.
  virtual void post(OnDone on_done, Status status) = 0;
  // Returns when all posted callbacks have run. Inside a callback it returns immediately, and the
  // remaining callbacks run after it. Idempotent.
  virtual void close() = 0;
};

}  // namespace byteps::worker
