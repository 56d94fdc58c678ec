// Predicts the time of one training step of a whole job, on machines with network cards of given
// speeds. The decisions are those of protocol/; the network (scale_network) and the GPUs
// (scale_model) are models. Sums and transfers inside a machine take no time: a machine is one
// worker, however many GPUs it has.
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
  uint64_t partition_bytes = 1 << 20;
  uint64_t credit_bytes = 4 << 20;  // per card
  double latency_s = 10e-6;         // between any two machines
};

struct ScaleResult {
  double predicted_s = 0;  // bound on the communication alone (protocol/placement)
  double summed_s = 0;     // from the first gradient until every machine has all sums
  double step_s = 0;       // from the start of backward to the end of the next forward pass
  uint64_t messages = 0;   // between and inside machines
};

// Deterministic. Its time and memory grow with the number of messages: at least half a million per
// second, about 40 bytes for each. kInvalidArgument: a speed is unknown, a layer cannot be cut into
// such partitions, the placement does not fit the machines, or there are more than 16384 machines.
// kAborted: `keep_going`, which is called about every tenth of a second, returned false.
Result<ScaleResult> simulate(const ScaleOptions& options, const std::function<bool()>& keep_going);

}  // namespace byteps::sim
