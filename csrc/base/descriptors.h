// How many files and connections this process may have open.
#pragma once

#include <cstdint>

namespace byteps {

// A rank 0 with a thousand others needs more than the usual soft limit of 1024. Raises it to the hard limit, but not above
// kMostDescriptors: programs that close all descriptors that there may be would take long. Children inherit it.
// Returns the limit.
uint64_t raise_descriptor_limit();

inline constexpr uint64_t kMostDescriptors = 1 << 17;

}  // namespace byteps
