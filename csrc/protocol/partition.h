// Cutting a tensor into partitions. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/numbers.h"
#include "base/status.h"
#include "protocol/placement.h"

namespace byteps::protocol {

// `bytes` in pieces of `partition_bytes` each, but for the last, which has the rest. Never zero pieces: a tensor
// without elements has one empty partition.
struct Partitioning {
  uint64_t bytes = 0;
  uint64_t partition_bytes = 1;

  uint32_t count() const;
  uint64_t offset(uint32_t partition) const;
  uint64_t size(uint32_t partition) const;
  bool operator==(const Partitioning&) const = default;
};

// Ok if a tensor can have this size; else kInvalidArgument: no multiple of the element size, or larger than
// kMaxTensorBytes.
Status check_tensor_bytes(uint64_t bytes, DType dtype);
// "25 elements of float32".
std::string describe_elements(uint64_t bytes, DType dtype);

// Pieces of nearly equal size, at most `wanted_bytes` rounded up to a page, each but the last a multiple of a
// page (hence of every element size); larger ones where they would be more than kMaxPartitions. `bytes` is at most
// kMaxTensorBytes.
Partitioning cut_evenly(uint64_t bytes, uint64_t wanted_bytes);

// How large partitions of a tensor shall be, unless somebody has said so.
//
// The first round of a tensor lasts a partition on each connection longer than its bytes need, and so does the last one;
// shares are met to a partition. So there shall be many for each reducer_host, but none so small that its messages cost more
// than its bytes. On one machine, a partition shall fit into the second-level cache.
class PartitionRule {
 public:
  // `fixed_bytes` for all tensors; 0: by the reducer_hosts.
  PartitionRule(const std::vector<ReducerHost>& reducer_hosts, uint64_t fixed_bytes);
  uint64_t wanted_bytes(uint64_t tensor_bytes) const;
  // How a tensor is cut under a plan (protocol/plan.h). Alike on all nodes of a job.
  Partitioning partition(uint64_t tensor_bytes, uint8_t partition_scale = 0) const;

 private:
  uint64_t fixed_bytes_;
  uint64_t num_sites_;
  uint64_t least_bytes_;
};

}  // namespace byteps::protocol
