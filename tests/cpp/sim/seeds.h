// How many seeds the tests of the simulator run.
#pragma once

#include <cstdint>

namespace byteps::sim {

// All of a run is on one thread, where ThreadSanitizer finds nothing but takes ten times as long.
#if defined(__SANITIZE_THREAD__)
inline constexpr uint64_t kPartOfSeeds = 6;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
inline constexpr uint64_t kPartOfSeeds = 6;
#else
inline constexpr uint64_t kPartOfSeeds = 1;
#endif
#else
inline constexpr uint64_t kPartOfSeeds = 1;
#endif

// `all` seeds, or fewer: then they need not show everything.
constexpr uint64_t seeds(uint64_t all) { return all / kPartOfSeeds; }

}  // namespace byteps::sim
