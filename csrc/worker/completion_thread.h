// Runs the callbacks of finished push_pulls on one thread ("bps-completion").
//
// Callbacks belong to a framework and may block, for example until another push_pull is done. On a
// data loop that would be a deadlock. The thread starts with the first callback.
#pragma once

#include <condition_variable>
#include <thread>
#include <utility>
#include <vector>

#include "base/annotations.h"
#include "worker/handle_table.h"

namespace byteps::worker {

class CompletionThread final : public Completions {
 public:
  CompletionThread() = default;
  ~CompletionThread() override { CompletionThread::close(); }
  CompletionThread(const CompletionThread&) = delete;
  CompletionThread& operator=(const CompletionThread&) = delete;

  void post(OnDone on_done, Status status) override BPS_EXCLUDES(mutex_);
  void close() override BPS_EXCLUDES(mutex_);

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
