// The push_pulls in flight, by handle: whether they are done, and their status. Thread-safe.
//
// A handle is valid from open() until its wait() has returned or its callback has been posted.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/annotations.h"
#include "base/clock.h"
#include "base/event_flag.h"
#include "base/metrics.h"
#include "base/status.h"
#include "base/unique_function.h"
#include "protocol/push_pull_table.h"

namespace byteps::worker {

// Gets the status of the push_pull. May start push_pulls; must not destroy the node.
using OnDone = UniqueFunction<void(const Status&)>;

// Runs the callbacks of finished push_pulls. Thread-safe. The destructor calls close().
class Completions {
 public:
  virtual ~Completions() = default;
  // Calls `on_done` later, in the order of posts, on a thread where it may block: no data loop's.
  // After close(): immediately, on this thread.
  virtual void post(OnDone on_done, Status status) = 0;
  // Returns when all posted callbacks have run. Inside a callback it returns immediately, and the
  // remaining callbacks run after it. Idempotent.
  virtual void close() = 0;
};

class HandleTable {
 public:
  HandleTable(Metrics& metrics, const Clock& clock, std::unique_ptr<Completions> completions)
      : metrics_(metrics), clock_(clock), completions_(std::move(completions)) {}

  // Returns a new handle for a push_pull of `bytes` bytes. If `on_done` is set, it is called once
  // (Completions), and the handle must not be passed to wait().
  protocol::Handle open(uint64_t bytes, OnDone on_done = {});
  // Frees the handle of a push_pull that could not start. Returns its callback, perhaps empty.
  OnDone cancel(protocol::Handle handle);
  // The push_pull is done. Call once per handle.
  void finish(protocol::Handle handle, Status status);

  // Returns whether the push_pull is done. kInvalidArgument: unknown, or waited for already.
  Result<bool> poll(protocol::Handle handle);
  // Blocks until the push_pull is done, frees the handle, and returns the push_pull's status. The
  // handle stays valid at kDeadlineExceeded, and after a signal, which sets `interrupted` and
  // returns ok. kInvalidArgument as poll().
  Status wait(protocol::Handle handle, TimeUs deadline_us, bool& interrupted);

  // Returns the oldest push_pull with a callback, and the time of the last start or end of any
  // push_pull; nullopt if that time is later than `before_us`, or if there is no such push_pull.
  struct Stuck {
    protocol::Handle handle;
    TimeUs since_us;
  };
  std::optional<Stuck> stuck_callback(TimeUs before_us);

  // For a thread that waits for many handles: next_done() blocks until an announced handle is done
  // and returns each of them once, in the order of completion. After close() it returns the
  // remaining ones, then nullopt. kInvalidArgument as poll().
  Status announce(protocol::Handle handle);
  std::optional<protocol::Handle> next_done();
  // Precondition: all push_pulls are done. Returns when all callbacks have run.
  void close();

 private:
  struct Entry {
    EventFlag done;
    bool announced = false;  // guarded by mutex_
    bool finished = false;   // guarded by mutex_
    Status status;           // written before `done` is set, constant afterwards
    OnDone on_done;          // constant until the push_pull is done
    TimeUs started_us;
    uint64_t bytes;
  };
  void put_done(protocol::Handle handle) BPS_REQUIRES(mutex_);
  std::shared_ptr<Entry> find(protocol::Handle handle) BPS_EXCLUDES(mutex_);

  Metrics& metrics_;
  const Clock& clock_;
  Mutex mutex_;
  std::unordered_map<protocol::Handle, std::shared_ptr<Entry>> entries_ BPS_GUARDED_BY(mutex_);
  protocol::Handle next_ BPS_GUARDED_BY(mutex_) = 1;
  uint64_t unfinished_ BPS_GUARDED_BY(mutex_) = 0;
  TimeUs busy_since_us_ BPS_GUARDED_BY(mutex_) = 0;
  TimeUs last_change_us_ BPS_GUARDED_BY(mutex_) = 0;  // last start or end of a push_pull
  // Announced and done, not yet returned by next_done().
  std::deque<protocol::Handle> done_ BPS_GUARDED_BY(mutex_);
  bool closed_ BPS_GUARDED_BY(mutex_) = false;
  std::condition_variable_any more_done_;
  const std::unique_ptr<Completions> completions_;
};

}  // namespace byteps::worker
