// Numbers the push_pulls of a name, so that those of all ranks that belong together have equal
// numbers. Pure.
//
// Without steps a rank's n-th push_pull of a name is round n. With steps, which the caller counts,
// the first push_pull in step s has a fixed round number, whatever came before: a rank that skipped
// a push_pull because its step was aborted meets the others again in the next step.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

namespace byteps::protocol {

inline constexpr uint64_t kMaxStep = (1ull << 42) - 1;

// The round after `last`, or the first one of `step` if that is later. `step` is at most kMaxStep;
// 0: no step.
uint64_t next_round(uint64_t last, uint64_t step);

// The round of a rank that has forgotten a name in between: its first count of rounds ended at
// `last`, and the second one, from 0, is at `round` after `calls` calls. Equal to what one count of
// all calls would be at, because next_round is the larger one of `last` + 1 and a constant.
constexpr uint64_t resumed_round(uint64_t last, uint64_t round, uint64_t calls) {
  return std::max(round, last + calls);
}

// "round 3"; "step 3"; "step 3, round 2" for a repetition within a step.
std::string describe_round(uint64_t round);

}  // namespace byteps::protocol
