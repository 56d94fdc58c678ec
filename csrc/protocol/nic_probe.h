// Measures the speed of a network card: one process (the hub) measures with the help of a few
// others. Pure.
//
// The hub keeps frames in flight to all of its helpers, and each helper answers with a frame of the
// same size. So several connections load the hub's card in both directions, as on a root, and the
// helpers' cards only partly. The answers per second are the speed of the card, unless it is faster
// than all helpers together.
#pragma once

#include <cstdint>
#include <deque>

#include "base/clock.h"
#include "base/status.h"

namespace byteps::protocol {

inline constexpr uint32_t kMaxProbeFrameBytes = 256 << 10;
// Per connection. A helper buffers at most this much for a hub that does not read.
inline constexpr uint64_t kMaxProbeWindowBytes = 16 << 20;

// The bytes that one of the hub's connections keeps in flight. They double in each round trip until
// three round trips have brought no higher rate, so the window is soon large enough on a path of any
// length. From then on they are twice what the path holds at the highest rate seen.
//
// Source: Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue 2016 (startup).
class ProbeWindow {
 public:
  // Bytes of the next frame to send; 0: wait for another answer.
  uint32_t next_frame(TimeUs now);
  // Answers come in the order of the frames. kDataLoss if more bytes were answered than sent.
  Status on_answer(uint64_t bytes, TimeUs now);
  // The rate has stopped growing, and what was too much has drained.
  bool is_settled() const { return flat_rounds_ >= kFlatRounds + 2; }
  // The shortest time from a frame to its answer; kNever: no answer yet.
  TimeUs min_rtt_us() const { return min_rtt_us_; }

 private:
  struct Frame {
    uint32_t bytes;
    uint32_t round;
    TimeUs sent_us;
  };
  static constexpr int kFlatRounds = 3;

  bool is_full() const { return flat_rounds_ >= kFlatRounds; }
  void end_round(TimeUs now);

  uint64_t window_bytes_ = 32 << 10;
  std::deque<Frame> in_flight_;
  uint64_t in_flight_bytes_ = 0;
  uint64_t answered_bytes_ = 0;
  TimeUs min_rtt_us_ = kNever;
  uint32_t round_ = 0;  // ends when a frame that was sent in it is answered
  TimeUs round_began_us_ = kNever;
  uint64_t answered_before_round_ = 0;
  double best_bytes_per_s_ = 0;
  int flat_rounds_ = 0;
};

// What a hub has found out.
struct CardMeasurement {
  double bytes_per_s = 0;  // payload in each direction; 0: unknown
  TimeUs rtt_us = 0;       // the longest round trip; 0: unknown
  double loss = 0;         // the part of the hub's bytes that was sent again
};

// The rate of the answers that arrive on one thread of the hub. Ignores the beginning, in which
// connections are slow and token buckets are full.
class ProbeMeter {
 public:
  explicit ProbeMeter(TimeUs start_us) : start_us_(start_us) {}

  // `settled`: all windows are settled. `rtt_us`: the longest of their round trips.
  void on_answer(uint64_t bytes, TimeUs now, bool settled, TimeUs rtt_us);
  // The beginning is over.
  bool measures() const { return first_us_ != kNever; }
  // No further answers are needed.
  bool done(TimeUs now) const;
  // The measurement ends by then, whatever has arrived.
  TimeUs deadline_us() const;
  // Payload per direction; 0: too few answers arrived.
  double bytes_per_s() const;
  TimeUs rtt_us() const { return rtt_us_; }  // as given to on_answer(); 0: no answer yet

 private:
  TimeUs patience_us() const;

  TimeUs start_us_;
  TimeUs rtt_us_ = 0;
  // Counted from the first answer after the beginning; its own bytes do not count.
  TimeUs first_us_ = kNever;
  TimeUs last_us_ = 0;
  uint64_t bytes_ = 0;
  uint32_t count_ = 0;
};

}  // namespace byteps::protocol
