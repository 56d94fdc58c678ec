// How tensors are cut, and how much of them is on its way at a time: one byte that travels with every data head. Pure.
//
// Rank 0 may ask for another plan at any time (protocol/tuner.h): its contributions say which one it wants next, the
// services repeat that in their answers, and every rank takes up the plan of a tensor's push_pull for its next one. As
// all ranks get the same answers, all change at the same push_pull, whatever they are doing otherwise.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace byteps::protocol {

inline constexpr uint8_t kMaxCut = 7;
inline constexpr uint8_t kMaxCredit = 15;

struct Plan {
  uint8_t cut = 0;     // partitions of plan_bytes(cut), at most kMaxCut; 0: as configured
  uint8_t credit = 0;  // plan_bytes(credit), at most kMaxCredit; 0: as configured
  bool operator==(const Plan&) const = default;
};

constexpr uint64_t plan_bytes(uint8_t code) { return uint64_t{32 << 10} << code; }
// Those of plan_bytes that `configured` stands for in a plan.
constexpr uint64_t plan_bytes_or(uint8_t code, uint64_t configured) {
  return code == 0 ? configured : plan_bytes(code);
}
inline constexpr uint64_t kMaxCutBytes = plan_bytes(kMaxCut);

constexpr uint8_t encode(const Plan& plan) { return static_cast<uint8_t>(plan.cut | plan.credit << 4); }
inline Result<Plan> plan_from(uint8_t byte) {
  const Plan plan{.cut = static_cast<uint8_t>(byte & 0xf), .credit = static_cast<uint8_t>(byte >> 4)};
  if (plan.cut <= kMaxCut) return plan;
  return data_loss("plan: expected a cut of at most " + std::to_string(kMaxCut) + ", got " +
                   std::to_string(plan.cut));
}

}  // namespace byteps::protocol
