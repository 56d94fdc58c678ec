// The plan of a push_pull: how its tensor is partitioned, where the partitions are summed, and how
// many bytes are in flight at a time. Two bytes, which every data head carries. Pure.
//
// Rank 0's contributions carry the plan that it wants next (protocol/tuner.h, and the placement
// that the scheduler has told it), the services repeat it in their results, and every rank uses the
// plan of a tensor's last result for the next push_pull of that tensor. All ranks get the same
// results, so all of them change the plan at the same push_pull.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace byteps::protocol {

inline constexpr uint8_t kMaxPartitionScale = 7;
inline constexpr uint8_t kMaxCredit = 15;

struct Plan {
  // Partitions have 2^(scale - kUnscaled) times their initial size; 0: unscaled.
  uint8_t partition_scale = 0;
  uint8_t credit = 0;  // code of the credit in bytes (credit_of_code); 0: as configured
  // Number of the placement (protocol/tensor_directory.h), modulo 256; 0: the first one.
  uint8_t placement = 0;
  bool operator==(const Plan&) const = default;
};

// Scaling stays within these sizes, unless the initial size is outside of them.
inline constexpr uint64_t kMinScaledBytes = 64 << 10;
inline constexpr uint64_t kMaxScaledBytes = 4 << 20;
inline constexpr uint8_t kUnscaled = 4;

constexpr double scale_factor(uint8_t partition_scale) {
  return partition_scale == 0 ? 1 : static_cast<double>(1 << partition_scale) / (1 << kUnscaled);
}
// Partition size, where the initial placement of the tensor uses `first_bytes`.
constexpr uint64_t scaled_partition_bytes(uint8_t partition_scale, uint64_t first_bytes) {
  if (partition_scale == 0) return first_bytes;
  return std::clamp((first_bytes << partition_scale) >> kUnscaled, std::min(first_bytes, kMinScaledBytes),
                    std::max(first_bytes, kMaxScaledBytes));
}

constexpr uint64_t credit_of_code(int code) { return uint64_t{32 << 10} << code; }
constexpr uint64_t credit_bytes(uint8_t code, uint64_t configured) {
  return code == 0 ? configured : credit_of_code(code);
}

// Scale and credit; a data head has the placement in a byte of its own.
constexpr uint8_t encode(const Plan& plan) {
  return static_cast<uint8_t>(plan.partition_scale | plan.credit << 4);
}
inline Result<Plan> plan_from(uint8_t byte) {
  const Plan plan{.partition_scale = static_cast<uint8_t>(byte & 0xf),
                  .credit = static_cast<uint8_t>(byte >> 4)};
  if (plan.partition_scale <= kMaxPartitionScale) return plan;
  return data_loss("plan: expected a partition scale of at most " + std::to_string(kMaxPartitionScale) +
                   ", got " + std::to_string(plan.partition_scale));
}

}  // namespace byteps::protocol
