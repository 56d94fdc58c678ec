// The limit on open files and connections of this process.
#pragma once

#include <cstdint>

namespace byteps {

// Raises the soft limit of descriptors (usually 1024, too few for rank 0 of a job with a thousand
// nodes) to the hard limit, but to at most kMaxDescriptors: some programs close every possible
// descriptor, which would take long. Child processes inherit the limit. Returns the new limit.
uint64_t raise_descriptor_limit();

inline constexpr uint64_t kMaxDescriptors = 1 << 17;

}  // namespace byteps
