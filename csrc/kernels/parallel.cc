#include "kernels/parallel.h"

#include <algorithm>
#include <atomic>
#include <system_error>

#include "base/check.h"
#include "base/log.h"
#include "kernels/float_environment.h"
#include "kernels/sum_targets.h"

namespace byteps::kernels {
namespace {

// Waking a thread costs tens of microseconds, in which one core alone moves about a megabyte. Below this many
// bytes read and written there is nothing to gain.
constexpr size_t kWorthSharingBytes = size_t{4} << 20;
// Of dst, per claim: small enough that a helper which wakes late still finds work and none is waited for
// long, large enough that claiming costs nothing.
constexpr size_t kPieceBytes = size_t{128} << 10;

}  // namespace

struct Team::Job {
  Kernel kernel;
  Call call;
  size_t piece;  // elements
  std::atomic<size_t> next{0};

  // Takes pieces until none is left.
  void work() {
    const DefaultFloatEnvironment environment;
    for (;;) {
      const size_t begin = next.fetch_add(piece, std::memory_order_relaxed);
      if (begin >= call.end) return;
      Call part = call;
      part.begin = begin;
      part.end = std::min(begin + piece, call.end);
      kernel(part);
    }
  }
};

Team::Team(int threads) {
  BPS_CHECK(threads >= 1) << threads;
  try {
    while (this->threads() < threads) helpers_.emplace_back(&Team::help, this);
  } catch (const std::system_error& error) {
    BPS_LOG(kWarning) << "summation threads: expected " << threads << ", got " << this->threads() << ": "
                      << error.what();
  }
}

Team::~Team() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void Team::reduce_n(const Reduction& reduction, void* dst, std::span<const void* const> srcs, size_t count) {
  const size_t element_bytes = size_of(reduction.dtype);
  const size_t size_bytes = count * element_bytes;
  if (helpers_.empty() || size_bytes * (srcs.size() + 1) < kWorthSharingBytes) {
    return kernels::reduce_n(reduction, dst, srcs, count);
  }
  Job job{.kernel = find_kernel(best_isa(), reduction),
          .call = make_call(reduction, dst, srcs, count, choose_stores(dst, srcs, size_bytes)),
          .piece = kPieceBytes / element_bytes};
  const bool offered = offer(job);
  job.work();
  if (offered) take_back();
}

bool Team::offer(Job& job) {
  {
    MutexLock lock(mutex_);
    if (job_ != nullptr) return false;
    job_ = &job;
    ++jobs_;
  }
  changed_.notify_all();
  return true;
}

// All pieces are claimed; waits for those that helpers still work on.
void Team::take_back() {
  MutexLock lock(mutex_);
  while (helping_ > 0) changed_.wait(mutex_);
  job_ = nullptr;
}

void Team::help() {
  uint64_t seen = 0;
  MutexLock lock(mutex_);
  for (;;) {
    while (!stop_ && (job_ == nullptr || jobs_ == seen)) changed_.wait(mutex_);
    if (stop_) return;
    seen = jobs_;
    ++helping_;
    Job& job = *job_;
    mutex_.unlock();
    job.work();
    mutex_.lock();
    if (--helping_ == 0) changed_.notify_all();
  }
}

}  // namespace byteps::kernels
