// Splitting a tensor into partitions. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/numbers.h"
#include "base/status.h"
#include "protocol/placement.h"

namespace byteps::protocol {

// `bytes` split into partitions of `partition_bytes`; the last one has the remainder. Never without
// partitions: a tensor without elements has one empty partition.
struct Partitioning {
  uint64_t bytes = 0;
  uint64_t partition_bytes = 1;

  uint32_t count() const;
  uint64_t offset(uint32_t partition) const;
  uint64_t size(uint32_t partition) const;
  bool operator==(const Partitioning&) const = default;
};

// kInvalidArgument if `bytes` is not a multiple of the element size, or exceeds kMaxTensorBytes.
Status check_tensor_bytes(uint64_t bytes, DType dtype);
// "25 elements of float32".
std::string describe_elements(uint64_t bytes, DType dtype);

// Partitions of nearly equal size, at most `wanted_bytes` rounded up to a page. Each but the last
// is a multiple of a page, hence of every element size. Partitions are larger where there would be
// more than kMaxPartitions. Precondition: `bytes` <= kMaxTensorBytes.
Partitioning cut_evenly(uint64_t bytes, uint64_t wanted_bytes);

class Tree;

// The default partition size of a tensor.
//
// The first and the last round of a tensor take one partition per connection longer than their
// bytes need, and shares are met up to one partition. So each reducer host should get many
// partitions, but none so small that its messages cost more than its bytes. The more machines, the
// longer a root waits for one partition of each; and each of the connections between two machines
// (one for every rank and shard) has only its part of the card (protocol/pacing.h). So partitions
// may be smaller where there are many. On one machine, partitions of small tensors fit into the
// second-level cache.
class PartitionRule {
 public:
  // `fixed_bytes` for all tensors; 0: depends on the tensor and the job. `connections`: the largest
  // number between two machines.
  PartitionRule(const std::vector<ReducerHost>& reducer_hosts, uint64_t fixed_bytes,
                uint64_t connections = 1);
  PartitionRule(const Tree& tree, uint64_t fixed_bytes);
  uint64_t wanted_bytes(uint64_t tensor_bytes) const;
  // The partitioning under a plan (protocol/plan.h). Equal on all nodes of a job.
  Partitioning partition(uint64_t tensor_bytes, uint8_t partition_scale = 0) const;

 private:
  uint64_t fixed_bytes_;
  uint64_t num_hosts_;
  uint64_t least_bytes_;
};

}  // namespace byteps::protocol
