// Cutting a tensor into partitions. Pure.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/status.h"

namespace byteps::protocol {

inline constexpr uint64_t kPageBytes = 4096;

// `bytes` in pieces of `partition_bytes` each, but for the last, which has the rest. Never zero pieces: a tensor
// without elements has one empty partition.
struct Partitioning {
  uint64_t bytes = 0;
  uint64_t partition_bytes = 1;

  uint32_t count() const;
  uint64_t offset(uint32_t partition) const;
  uint64_t size(uint32_t partition) const;
};

// Pieces of nearly equal size, at most `wanted_bytes` rounded up to a page, each but the last a multiple of a
// page (hence of every element size). kInvalidArgument: `bytes` is no multiple of the element size, is larger
// than kMaxTensorBytes, or would give more than kMaxPartitions.
Result<Partitioning> partition_tensor(uint64_t bytes, DType dtype, uint64_t wanted_bytes);

}  // namespace byteps::protocol
