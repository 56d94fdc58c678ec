// Predicts the time of one training step of a whole job, on machines with network cards of given
// speeds. Placement, partitions, priority, credit and pacing are those of protocol/; how long bytes
// and sums take (scale_wire, scale_events), and how long a machine computes (scale_model), is
// modelled.
//
// All machines are taken to do the same at the same time. So one machine stands for all: what it
// sends to a root arrives there together with what the others send, and so do the answers. Hence
// the cost depends on the number of partitions, not of messages.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/status.h"
#include "protocol/placement.h"
#include "sim/scale_model.h"

namespace byteps::sim {

struct ScaleOptions {
  std::vector<protocol::ReducerHost> reducer_hosts;  // worker machines, then servers; with speeds
  protocol::PlacementPolicy placement = {};
  ScaleModel model;
  bool waits_for_all = false;       // an optimizer that waits for all sums, and uses no priorities
  uint64_t partition_bytes = 0;     // 0: as protocol::PartitionRule chooses
  uint64_t credit_bytes = 1 << 20;  // per connection
  double latency_s = 10e-6;         // between any two machines
  uint32_t ranks_per_machine = 1;
  uint32_t threads = 1;          // of each process: its shards
  double sum_bytes_per_s = 7e9;  // of each thread: bytes of contributions
};

struct ScaleResult {
  double predicted_s = 0;  // bound on the communication alone
  double summed_s = 0;     // from the first gradient until every machine has all sums
  double step_s = 0;       // from the start of backward to the end of the next forward pass
  uint64_t partitions = 0;
  // 0: those of a job; else the simulation took larger ones of this size, to be bearable.
  uint64_t larger_partition_bytes = 0;
};

// Deterministic. Its time grows with the number of partitions times the number of reducer hosts (to
// place them): 40,000 partitions on 1,536 take a fifth of a second. Where that product exceeds 300
// million, or there are more than half a million partitions, larger ones are simulated.
// kInvalidArgument: a speed is unknown, a gradient is larger than a tensor may be, the placement
// does not fit the machines, or the job would have more than kMaxNodes processes. kAborted:
// `keep_going`, which is called about every tenth of a second, returned false.
Result<ScaleResult> simulate(const ScaleOptions& options, const std::function<bool()>& keep_going);

}  // namespace byteps::sim
