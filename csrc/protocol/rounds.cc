#include "protocol/rounds.h"

#include <algorithm>

#include "base/check.h"

namespace byteps::protocol {
namespace {

constexpr int kStepShift = 20;  // the lower bits count within a step
constexpr uint64_t kOfSteps = 1ull << 62;

}  // namespace

uint64_t next_round(uint64_t last, uint64_t step) {
  BPS_CHECK(step <= kMaxStep) << "step " << step;
  return step == 0 ? last + 1 : std::max(last + 1, kOfSteps | step << kStepShift);
}

std::string describe_round(uint64_t round) {
  if (round < kOfSteps) return "round " + std::to_string(round);
  const uint64_t step = (round - kOfSteps) >> kStepShift;
  const uint64_t earlier = round & ((1ull << kStepShift) - 1);
  const std::string text = "step " + std::to_string(step);
  return earlier == 0 ? text : text + ", round " + std::to_string(earlier + 1);
}

}  // namespace byteps::protocol
