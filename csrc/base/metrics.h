// Counters of one process since its start. Any thread may add. A reader does not see all counters
// at the same instant.
#pragma once

#include <atomic>
#include <cstdint>

namespace byteps {

using Counter = std::atomic<uint64_t>;

inline void add(Counter& counter, uint64_t amount) { counter.fetch_add(amount, std::memory_order_relaxed); }

struct Metrics {
  Counter push_pulls{0};       // completed, successfully or not
  Counter push_pull_bytes{0};  // tensor bytes of successful push_pulls
  Counter push_pull_us{0};     // sum of the times from start to completion
  Counter busy_us{0};          // time with at least one push_pull in flight
  Counter bytes_sent{0};       // payload bytes on connections to other processes
  Counter bytes_received{0};
  Counter sums{0};       // rounds completed by this process's service
  Counter sum_bytes{0};  // bytes of their results
  Counter sum_us{0};     // time spent in reductions
  // Current values of this worker:
  Counter partition_scale{0};  // protocol/plan.h
  Counter credit_bytes{0};
  Counter plan_changes{0};  // number of changes of the two
};

}  // namespace byteps
