// How push_pulls of a name are counted, so that those of all ranks which belong together have one number. Pure.
//
// Without steps a rank's n-th push_pull of a name is round n. With steps, which the caller counts, the first one in step s
// is one certain round whatever was before: a rank that has left a push_pull out, as its step broke off halfway, meets
// the others again in the next step.
#pragma once

#include <cstdint>
#include <string>

namespace byteps::protocol {

inline constexpr uint64_t kMaxStep = (1ull << 42) - 1;

// The round after `last`, or the first one of `step` if that is later. 0: it is of no step; at most kMaxStep.
uint64_t next_round(uint64_t last, uint64_t step);

// "round 3"; "step 3"; "step 3, round 2" of what comes several times in a step.
std::string describe_round(uint64_t round);

}  // namespace byteps::protocol
