// Team: reduce_n spread over several cores.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

#include "base/annotations.h"
#include "kernels/sum.h"

namespace byteps::kernels {

// The result has the same bits whatever the number of threads. Helpers sleep while there is nothing to do.
// Any thread may call; while one caller has the helpers, another does all of its own work.
class Team {
 public:
  // `threads`: how many may work on one reduction, the caller's included. With 1 no thread is started; when
  // the system refuses one, the team is as large as it got (see threads()) and a warning is logged.
  explicit Team(int threads);
  // Precondition: no call is under way.
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int threads() const { return static_cast<int>(helpers_.size()) + 1; }

  // As kernels::reduce_n. Returns when dst is complete.
  void reduce_n(const Reduction& reduction, void* dst, std::span<const void* const> srcs, size_t count);

 private:
  struct Job;
  bool offer(Job& job);
  void take_back();
  void help();

  Mutex mutex_;
  std::condition_variable_any changed_;        // job_ was set, helping_ reached 0, or stop_
  Job* job_ BPS_GUARDED_BY(mutex_) = nullptr;  // open to helpers
  uint64_t jobs_ BPS_GUARDED_BY(mutex_) = 0;   // offered so far: tells a helper a new job from its last one
  int helping_ BPS_GUARDED_BY(mutex_) = 0;     // helpers inside job_
  bool stop_ BPS_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> helpers_;  // constant after construction
};

}  // namespace byteps::kernels
