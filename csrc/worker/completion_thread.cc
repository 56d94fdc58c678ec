#include "worker/completion_thread.h"

#include <pthread.h>

namespace byteps::worker {

void CompletionThread::post(OnDone on_done, Status status) {
  {
    MutexLock lock(mutex_);
    if (!closed_) {
      if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
      posted_.emplace_back(std::move(on_done), std::move(status));
      if (std::exchange(waiting_, false)) more_.notify_one();
      return;
    }
  }
  on_done(status);
}

void CompletionThread::close() {
  std::thread thread;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    more_.notify_one();
    if (thread_.get_id() != std::this_thread::get_id()) thread.swap(thread_);
  }
  if (thread.joinable()) thread.join();
}

void CompletionThread::run() {
  pthread_setname_np(pthread_self(), "bps-completion");
  std::vector<Posted> batch;
  while (true) {
    {
      MutexLock lock(mutex_);
      while (posted_.empty() && !closed_) {
        waiting_ = true;
        more_.wait(mutex_);
      }
      if (posted_.empty()) return;
      batch.swap(posted_);
    }
    for (auto& [on_done, status] : batch) on_done(status);
    batch.clear();
  }
}

}  // namespace byteps::worker
