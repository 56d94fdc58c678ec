#include "base/event_flag.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>

namespace byteps {
namespace {

long futex(std::atomic<uint32_t>* word, int operation, uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, timeout, nullptr,
                 FUTEX_BITSET_MATCH_ANY);
}

}  // namespace

void EventFlag::set() {
  if (state_.exchange(kSetValue, std::memory_order_acq_rel) == 1) {
    futex(&state_, FUTEX_WAKE, INT_MAX, nullptr);
  }
}

EventFlag::Wake EventFlag::wait(TimeUs deadline_us) {
  while (true) {
    uint32_t seen = 0;
    state_.compare_exchange_strong(seen, 1, std::memory_order_acq_rel);
    if (seen == kSetValue) return Wake::kSet;
    const timespec deadline{deadline_us / 1'000'000, (deadline_us % 1'000'000) * 1000};
    // FUTEX_WAIT_BITSET takes an absolute CLOCK_MONOTONIC time.
    const long result = futex(&state_, FUTEX_WAIT_BITSET, 1, deadline_us == kNever ? nullptr : &deadline);
    if (is_set()) return Wake::kSet;
    if (result == 0) continue;
    if (errno == ETIMEDOUT) return Wake::kTimeout;
    if (errno == EINTR) return Wake::kInterrupted;
  }
}

Status wait_for(EventFlag& flag, TimeUs deadline_us, const KeepWaiting& keep_waiting) {
  // Checks for a signal that has arrived before the wait, because it does not interrupt the wait.
  if (!keep_waiting()) return aborted("interrupted");
  while (true) {
    switch (flag.wait(deadline_us)) {
      case EventFlag::Wake::kSet: return Status::ok();
      case EventFlag::Wake::kTimeout: return deadline_exceeded("timed out");
      case EventFlag::Wake::kInterrupted:
        if (!keep_waiting()) return aborted("interrupted");
    }
  }
}

}  // namespace byteps
