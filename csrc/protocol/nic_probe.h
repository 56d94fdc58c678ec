// How fast a network card is, measured by one process (the hub) with the help of a few others. Pure.
//
// The hub keeps frames under way to all of its helpers at once; each is answered with a frame of the same size. So its
// card is loaded both ways, by several connections, as a root's is, while the helpers' cards have an easy time. What
// came back in a second is what the card carries, unless it is faster than all helpers together.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "base/status.h"

namespace byteps::protocol {

inline constexpr uint32_t kMaxProbeFrameBytes = 256 << 10;
// Of one connection. Who answers holds no more than this back for one that does not read.
inline constexpr uint64_t kMaxProbeWindowBytes = 4 << 20;

// How much one of the hub's connections has under way: an eighth of what has been answered. That is enough soon, as
// the window grows by the eighth part each round trip, and never more than an eighth of the time until now can drain.
class ProbeWindow {
 public:
  // Bytes of the next frame to send; 0: not before another answer.
  uint32_t next_frame();
  // kDataLoss: more was answered than asked.
  Status on_answer(uint64_t bytes);

 private:
  uint64_t window_bytes() const;

  uint64_t asked_bytes_ = 0;
  uint64_t answered_bytes_ = 0;
};

// The rate of the answers that come to one thread of the hub. The beginning does not count: connections are slow at
// first, and a token bucket is full.
class ProbeMeter {
 public:
  explicit ProbeMeter(TimeUs start_us) : start_us_(start_us) {}

  void on_answer(uint64_t bytes, TimeUs now);
  // Later answers are not needed.
  bool done(TimeUs now) const;
  // By then it is done, whatever came.
  TimeUs deadline_us() const;
  // Payload each way; 0: not enough came.
  double bytes_per_s() const;

 private:
  TimeUs start_us_;
  // Since the first answer that is not of the beginning, which itself does not count.
  TimeUs first_us_ = kNever;
  TimeUs last_us_ = 0;
  uint64_t bytes_ = 0;
  uint32_t count_ = 0;
};

}  // namespace byteps::protocol
