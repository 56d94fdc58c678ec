// What does not depend on time in a simulated job: its processes, and the least time of its sums.
// Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "protocol/tree.h"
#include "sim/scale_job.h"

namespace byteps::sim {

// kInvalidArgument: a speed is unknown, or the job would have more than kMaxNodes processes.
Status check_cluster(const ScaleOptions& options);

// Precondition, here and below: check_cluster(options) is ok.
protocol::Tree tree_of(const ScaleOptions& options);

// The least time for `bytes` bytes: that of the busiest card (protocol/placement), of the sums of
// the busiest root, or of the sums inside machines, whichever is longest.
double bound_of(const ScaleOptions& options, const protocol::Tree& tree, const std::vector<double>& shares,
                uint64_t bytes);

// bound_of() for the shares of options.placement. kInvalidArgument as simulate().
Result<double> bound_seconds(const ScaleOptions& options, uint64_t bytes);

}  // namespace byteps::sim
