// Measures the speed of a network card: one process (the hub) measures with the help of a few
// others. Pure.
//
// The hub keeps frames in flight to all of its helpers, and each helper answers with a frame of the
// same size. So several connections load the hub's card in both directions, as on a root, and the
// helpers' cards only partly. The answers per second are the speed of the card, unless it is faster
// than all helpers together.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "base/status.h"

namespace byteps::protocol {

inline constexpr uint32_t kMaxProbeFrameBytes = 256 << 10;
// Per connection. A helper buffers at most this much for a hub that does not read.
inline constexpr uint64_t kMaxProbeWindowBytes = 4 << 20;

// The bytes that one of the hub's connections keeps in flight: an eighth of the bytes answered so
// far. The window grows by an eighth each round trip, so it is soon large enough, and it never
// holds more than drains in an eighth of the time elapsed.
class ProbeWindow {
 public:
  // Bytes of the next frame to send; 0: wait for another answer.
  uint32_t next_frame();
  // kDataLoss if more bytes were answered than sent.
  Status on_answer(uint64_t bytes);

 private:
  uint64_t window_bytes() const;

  uint64_t asked_bytes_ = 0;
  uint64_t answered_bytes_ = 0;
};

// The rate of the answers that arrive on one thread of the hub. Ignores the beginning, in which
// connections are slow and token buckets are full.
class ProbeMeter {
 public:
  explicit ProbeMeter(TimeUs start_us) : start_us_(start_us) {}

  void on_answer(uint64_t bytes, TimeUs now);
  // No further answers are needed.
  bool done(TimeUs now) const;
  // The measurement ends by then, whatever has arrived.
  TimeUs deadline_us() const;
  // Payload per direction; 0: too few answers arrived.
  double bytes_per_s() const;

 private:
  TimeUs start_us_;
  // Counted from the first answer after the beginning; its own bytes do not count.
  TimeUs first_us_ = kNever;
  TimeUs last_us_ = 0;
  uint64_t bytes_ = 0;
  uint32_t count_ = 0;
};

}  // namespace byteps::protocol
