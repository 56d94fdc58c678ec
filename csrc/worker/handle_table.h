// The push_pulls that callers wait for: handle -> done, and with what.
//
// Any thread. A handle lives from open() until its wait() has returned, or its callback is called; nothing in here polls.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>

#include "base/annotations.h"
#include "base/clock.h"
#include "base/event_flag.h"
#include "base/metrics.h"
#include "base/status.h"
#include "protocol/push_pull_table.h"
#include "worker/completions.h"

namespace byteps::worker {

class HandleTable {
 public:
  HandleTable(Metrics& metrics, const Clock& clock) : metrics_(metrics), clock_(clock) {}

  // A new handle for a push_pull of `bytes`. With `on_done` it is not for wait(): that is called, once, instead.
  protocol::Handle open(uint64_t bytes, OnDone on_done = {});
  // Forgets a handle that was never started; gives its callback back.
  OnDone cancel(protocol::Handle handle);
  // Once for each handle.
  void finish(protocol::Handle handle, Status status);

  // kInvalidArgument: unknown, or waited for already.
  Result<bool> poll(protocol::Handle handle);
  // Blocks until the handle is done and frees it. kDeadlineExceeded leaves it as it was, and so does a signal
  // (`interrupted` becomes true).
  Status wait(protocol::Handle handle, TimeUs deadline_us, bool& interrupted);

  // The oldest push_pull that a callback waits for, if none of any kind has begun or ended since `before_us`; and the time
  // since when none has.
  struct Stuck {
    protocol::Handle handle;
    TimeUs since_us;
  };
  std::optional<Stuck> stuck_callback(TimeUs before_us);

  // For who reacts to many handles on one thread. `next_done` blocks until a handle that was given to `announce` is
  // done, and gives each of them once, in the order of completion; after `close` those that are left, then nothing. kInvalidArgument as `poll`.
  Status announce(protocol::Handle handle);
  std::optional<protocol::Handle> next_done();
  // When all are finished. Returns when all callbacks have been called.
  void close();

 private:
  struct Entry {
    EventFlag done;
    bool announced = false;  // under the table's lock
    bool finished = false;   // likewise
    Status status;           // before `done` is set: of the finishing thread only; afterwards constant
    OnDone on_done;          // constant until finished
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
  TimeUs last_change_us_ BPS_GUARDED_BY(mutex_) = 0;          // something has begun or ended
  std::deque<protocol::Handle> done_ BPS_GUARDED_BY(mutex_);  // announced and not given yet
  bool closed_ BPS_GUARDED_BY(mutex_) = false;
  std::condition_variable_any more_done_;
  Completions completions_;
};

}  // namespace byteps::worker
