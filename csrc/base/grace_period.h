// How long to wait for a slow peer to take the data that it has been sent. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/clock.h"

namespace byteps {

// The wait ends at `deadline_us`. While data is outstanding, it goes on after that until there has
// been no progress for `stall_us`.
struct GracePeriod {
  GracePeriod(TimeUs deadline_us, TimeUs stall_us = 0) : deadline_us(deadline_us), stall_us(stall_us) {}
  // Deadline for waiting on several objects that each use this grace period and always finish.
  TimeUs outer_deadline_us() const { return stall_us > 0 ? kNever : deadline_us; }
  TimeUs deadline_us;
  TimeUs stall_us;
};

class GraceWait {
 public:
  GraceWait(GracePeriod grace_period, TimeUs now) : grace_(grace_period), progress_us_(now) {}

  // `state` changes with every progress; `outstanding`: not all data has been taken. Returns the
  // time of the next check, or nullopt when the wait is over.
  std::optional<TimeUs> look(uint64_t state, bool outstanding, TimeUs now) {
    if (state_ && *state_ != state) progress_us_ = now;
    state_ = state;
    const TimeUs end_us =
        outstanding ? std::max(grace_.deadline_us, later(progress_us_, grace_.stall_us)) : grace_.deadline_us;
    if (now >= end_us) return std::nullopt;
    return std::min(end_us, now + kCheckUs);
  }

 private:
  static constexpr TimeUs kCheckUs = 1'000'000;

  GracePeriod grace_;
  std::optional<uint64_t> state_;
  TimeUs progress_us_;
};

}  // namespace byteps
