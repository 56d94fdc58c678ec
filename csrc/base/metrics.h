// Counters of one process since its start. Any thread may add; reading is a snapshot without a common instant.
#pragma once

#include <atomic>
#include <cstdint>

namespace byteps {

using Counter = std::atomic<uint64_t>;

inline void add(Counter& counter, uint64_t amount) { counter.fetch_add(amount, std::memory_order_relaxed); }

struct Metrics {
  Counter push_pulls{0};       // completed, with or without success
  Counter push_pull_bytes{0};  // tensor bytes of those that succeeded
  Counter push_pull_us{0};     // summed time from start to completion
  Counter busy_us{0};          // time with at least one in flight
  Counter bytes_sent{0};       // payload on connections to other processes
  Counter bytes_received{0};
  Counter sums{0};       // rounds that this process's service completed
  Counter sum_bytes{0};  // bytes of their results
  Counter sum_us{0};     // time spent in reductions
  // Of this worker, as they are now:
  Counter partition_scale{0};  // protocol/plan.h
  Counter credit_bytes{0};
  Counter plan_changes{0};  // how often they have changed
};

}  // namespace byteps
