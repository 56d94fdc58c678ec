// Cutting a tensor into partitions. Pure.
#pragma once

#include <cstdint>
#include <string>

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
  bool operator==(const Partitioning&) const = default;
};

// Ok if a tensor can have this size; else kInvalidArgument: no multiple of the element size, or larger than
// kMaxTensorBytes.
Status check_tensor_bytes(uint64_t bytes, DType dtype);
// "25 elements of float32".
std::string describe_elements(uint64_t bytes, DType dtype);

// Pieces of nearly equal size, at most `wanted_bytes` rounded up to a page, each but the last a multiple of a
// page (hence of every element size). kInvalidArgument: as check_tensor_bytes, or
// more than kMaxPartitions.
Result<Partitioning> partition_tensor(uint64_t bytes, DType dtype, uint64_t wanted_bytes);

}  // namespace byteps::protocol
