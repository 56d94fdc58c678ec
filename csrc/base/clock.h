// Time in microseconds of the monotonic clock. Pure code gets the time as an argument.
#pragma once

#include <cstdint>
#include <ctime>

namespace byteps {

using TimeUs = int64_t;
inline constexpr TimeUs kNever = INT64_MAX;

inline TimeUs seconds_to_us(double seconds) { return static_cast<TimeUs>(seconds * 1e6); }

inline TimeUs now_us() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000LL + now.tv_nsec / 1000;
}

// A source of times. Any thread.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimeUs now_us() const = 0;
};

// Returns `start_us` + `wait_us`; either may be kNever.
inline TimeUs later(TimeUs start_us, TimeUs wait_us) {
  return wait_us < kNever - start_us ? start_us + wait_us : kNever;
}

}  // namespace byteps
