// Counters of one process since its start. Any thread may add. A reader does not see all counters
// at the same instant.
#pragma once

#include <atomic>
#include <cstdint>

namespace byteps {

using Counter = std::atomic<uint64_t>;
using Ratio = std::atomic<double>;

inline void add(Counter& counter, uint64_t amount) { counter.fetch_add(amount, std::memory_order_relaxed); }

// Type, name, meaning. Python's byteps.metrics() and byteps._core.METRICS are made of these rows.
#define BPS_METRICS(X)                                                                           \
  X(Counter, push_pulls, "number of completed push_pulls, successful or not")                    \
  X(Counter, push_pull_bytes, "tensor bytes of successful push_pulls")                           \
  X(Counter, push_pull_us, "sum of the times of push_pulls from start to completion")            \
  X(Counter, busy_us, "time with at least one push_pull in flight")                              \
  X(Counter, bytes_sent, "payload bytes sent to other processes")                                \
  X(Counter, bytes_received, "payload bytes received from other processes")                      \
  X(Counter, sums, "number of rounds completed by this process's service")                       \
  X(Counter, sum_bytes, "bytes of the results of these rounds")                                  \
  X(Counter, sum_us, "time that the service spent in reductions")                                \
  X(Counter, reclaimed, "number of contributions that the service copied to free shared memory") \
  X(Ratio, partition_factor, "current size of partitions, relative to the configured size")      \
  X(Counter, credit_bytes, "current number of bytes that a connection may have in flight")       \
  X(Counter, plan_changes, "number of changes of these two (BYTEPS_AUTOTUNE)")                   \
  X(Counter, placement_moves, "number of placements that push_pulls have moved to")              \
  X(Counter, servers_lost, "number of servers without which the job has gone on")                \
  X(Counter, servers_added, "number of servers that have joined the running job")                \
  X(Counter, schedulers_lost, "number of schedulers whose place rank 0 has taken")               \
  X(Counter, held_sent, "number of held results sent for ranks that a lost server left without") \
  X(Counter, staged_bytes, "bytes copied from devices to host memory")                           \
  X(Counter, unpinned_bytes, "bytes of such copies for which pinned memory was full")

struct Metrics {
#define BPS_MEMBER(type, name, meaning) type name{0};
  BPS_METRICS(BPS_MEMBER)
#undef BPS_MEMBER
};

// Adds each counter to that of `sums`; ratios, and counters that are present values, replace it.
void add_metrics(Metrics& sums, const Metrics& more);

}  // namespace byteps
