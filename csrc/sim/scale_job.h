// One training step of a whole job, by the code that a job runs, on reducer_hosts with network cards of given speeds.
//
// From protocol/: placement, place_giver and tensor_directory say where partitions go, push_pull_table cuts and counts
// them at each machine, outbox orders what goes to the wire, aggregation knows when a sum is complete. Only the network
// (scale_network) and the GPUs (scale_model) are models. Sums take no time, and neither does what stays inside a
// machine: a machine is one worker here, however many GPUs it has.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/status.h"
#include "protocol/placement.h"
#include "sim/scale_model.h"

namespace byteps::sim {

struct ScaleOptions {
  std::vector<protocol::ReducerHost> reducer_hosts;  // worker machines, then servers; all speeds known
  protocol::PlacementPolicy placement = {};
  ScaleModel model;
  uint64_t partition_bytes = 1 << 20;
  uint64_t credit_bytes = 4 << 20;  // of a card
  double latency_s = 10e-6;         // from any reducer_host to any other
};

struct ScaleResult {
  double predicted_s = 0;  // protocol/placement's bound on the communication alone
  double summed_s = 0;     // from the first gradient until every machine has all sums
  double step_s = 0;       // from the start of the backward pass to the end of the next forward pass
  uint64_t messages = 0;   // between and inside reducer_hosts
};

// Contributions and results that simulate() would have to deal with. Its time grows with them (half a million a second
// or more), and so does its memory (about 40 bytes each).
uint64_t count_messages(const ScaleOptions& options);

// Deterministic. Invalid argument: a speed is unknown, a layer cannot be cut into such partitions, the placement does
// not fit the reducer_hosts, or more than 16384 reducer_hosts. Aborted: `keep_going`, asked every tenth of a second or so, said no.
Result<ScaleResult> simulate(const ScaleOptions& options, const std::function<bool()>& keep_going);

}  // namespace byteps::sim
