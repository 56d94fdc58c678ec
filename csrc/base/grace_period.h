// How long to wait for somebody who takes what is sent to him slowly, or not at all. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/clock.h"

namespace byteps {

// Until `deadline_us`; and while something is still to be taken until nothing of it has been taken for `stall_us`.
struct GracePeriod {
  GracePeriod(TimeUs deadline_us, TimeUs stall_us = 0) : deadline_us(deadline_us), stall_us(stall_us) {}
  // Until when to wait for several that wait like this themselves, and always come to an end.
  TimeUs outer_deadline_us() const { return stall_us > 0 ? kNever : deadline_us; }
  TimeUs deadline_us;
  TimeUs stall_us;
};

class GraceWait {
 public:
  GraceWait(GracePeriod grace_period, TimeUs now) : grace_(grace_period), moved_us_(now) {}

  // `state` changes whenever something is taken; `outstanding`: not all is. When to look next; none: the wait is over.
  std::optional<TimeUs> look(uint64_t state, bool outstanding, TimeUs now) {
    if (state_ && *state_ != state) moved_us_ = now;
    state_ = state;
    const TimeUs end_us =
        outstanding ? std::max(grace_.deadline_us, later(moved_us_, grace_.stall_us)) : grace_.deadline_us;
    if (now >= end_us) return std::nullopt;
    return std::min(end_us, now + kLookUs);
  }

 private:
  static constexpr TimeUs kLookUs = 1'000'000;

  GracePeriod grace_;
  std::optional<uint64_t> state_;
  TimeUs moved_us_;
};

}  // namespace byteps
