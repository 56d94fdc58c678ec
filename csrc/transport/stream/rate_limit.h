// The sending rate of a TCP connection, and the congestion control that suits it.
//
// BBR sends as fast as it has seen the peer receive. Under a rate limit it sees at most that rate,
// and slows down after a pause. Without a limit, or with one much above the wanted rate, its
// connections share a link unevenly, and a step ends with the slowest. In the lab, jobs of 4 workers
// and 2 servers take 7 % longer than with reno, and 1 % at 5 ms of delay. Reno does not interfere
// with a limit, but cannot keep up a rate where the window that it needs is larger than losses
// allow. It starts to lose time long before: with 0.1 % of losses and 5 ms, steps took 5 % longer
// than with BBR. So a limited connection uses reno instead of BBR on paths where reno reaches the
// limit with great ease, and the congestion control of the administrator on all others. The limit of
// BBR is 1.02 times the wanted rate, which leaves room for what is sent again: with 1.0 to 1.05 steps
// took 0.93 to 0.95 s, with 1.08 0.97 s, with 1.5 1.31 s (1 % of losses, 5 ms). Where the wanted rate
// itself is too low, protocol/link_speeds.h finds that out. Algorithms other than BBR are never replaced.
//
// Linux sends bursts of at most half a window. It makes reno's window small after a pause, and while
// a limit leaves most of it unused (tcp_slow_start_after_idle); under a limit it never grows again.
// Short bursts cost CPU time: 64 MiB between 4 workers at 1000 Mbit/s took 1.35 times as much. BBR
// is exempt. So a connection returns to BBR when it is not limited, and for a while if its window is
// small.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"

namespace byteps::transport {

// What a connection has seen of its path.
struct PathQuality {
  TimeUs min_rtt_us = 0;
  double loss = 0;  // part of the bytes that is sent again (LossMeter::loss)
  uint32_t packet_bytes = 1448;
  uint64_t window_bytes = 0;  // congestion window
};

// Whether reno reaches this rate on the path with ease. Pure.
//
// Source: Mathis et al., "The Macroscopic Behavior of the TCP Congestion Avoidance Algorithm",
// CCR 1997: with a loss p, reno has 1.22 / sqrt(p) packets in flight on average.
bool suits_reno(const PathQuality& path, uint64_t bytes_per_s);

// The part of the bytes of a connection that is sent again. Older bytes count less. Pure.
class LossMeter {
 public:
  // Totals since the connection began.
  void look(uint64_t sent_bytes, uint64_t resent_bytes);
  // The largest part that what was seen does not rule out: n packets without a loss do not show that
  // fewer than one in n gets lost. 1: nothing was seen, or the kernel does not count what is sent
  // again, and limited connections keep their congestion control.
  double loss(uint32_t packet_bytes) const;

 private:
  uint64_t seen_sent_ = 0;
  uint64_t seen_resent_ = 0;
  double sent_ = 0;
  double resent_ = 0;
};

// One per connection, on its thread. Does nothing where the kernel refuses it.
class RateLimit {
 public:
  // Limits the sending rate of the TCP socket `fd`, evenly spread by the kernel; 0: no limit.
  void set(int fd, uint64_t bytes_per_s);
  // `bytes` more have been written. While the rate is limited, looks at the path now and then.
  void on_written(int fd, uint64_t bytes);

 private:
  bool is_bbr() const { return own_.starts_with("bbr"); }
  void apply(int fd);
  void choose_congestion_control(int fd);
  void use_reno(int fd, bool wanted);
  PathQuality look(int fd);

  uint64_t bytes_per_s_ = 0;
  uint64_t limit_ = ~uint64_t{0};  // of the socket
  bool suits_reno_ = false;        // the path, at the last look
  bool grows_ = false;             // BBR makes the window larger
  uint64_t unlooked_bytes_ = 0;    // written since the last look at the path
  LossMeter losses_;
  std::string own_;  // of the administrator; empty until the first limit
  bool uses_reno_ = false;
};

}  // namespace byteps::transport
