// The rate limit of each connection, which keeps the connections of a job from disturbing each
// other. Pure.
//
// Shares determine how many bytes each connection carries in the minimal time T
// (protocol/placement.h). Limited to that rate, all connections finish at once, and all cards are
// busy until then. Without limits TCP favors some connections for seconds; those finish early, and
// their cards idle while the others continue.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "protocol/tree.h"

namespace byteps::protocol {

// Payload of a card with this speed, in bytes/s: frames of 1514 bytes with 1448 bytes of payload,
// less the acknowledgements of the other direction.
double payload_bytes_per_s(double nic_mbps);
// The inverse: the speed of a card that was measured to carry this payload.
double nic_mbps_of_payload(double bytes_per_s);

// The number of threads per process that are worthwhile with such a card. The connections of fewer
// threads stay better in step (protocol/outbox.h).
uint32_t useful_shards(double nic_mbps);

// Payload rates in bytes/s; 0: unlimited.
class Pace {
 public:
  // `shares` by reducer host. No limits if a card's speed is unknown or nothing has to travel.
  Pace(const Tree& tree, const std::vector<double>& shares);

  // The rate of the connection on which node `from` contributes to the root at node `to`, and of
  // its answers. Where contributions and answers take turns (Tree::take_turns), each has the rate of
  // both; unlimited if it is the only connection then, which disturbs no other. Unlimited for a server that `tree` has got since this object was made: it has no share
  // yet.
  uint64_t rate(uint32_t from, uint32_t to, const Tree& tree) const;

 private:
  double rate_to_host_of(uint32_t node, const Tree& tree) const;

  // Rate of all bytes from one machine to the roots on each reducer host.
  std::vector<double> rate_of_host_;
};

// The bytes that may be sent at full speed after a pause, by a connection or by all of a thread.
class Burst {
 public:
  explicit Burst(uint64_t most_bytes) : most_bytes_(most_bytes) {}
  // Whether `bytes`, handed over at `now`, and all bytes since the last pause are within the burst.
  bool covers(uint64_t bytes, TimeUs now, TimeUs pause_us);

 private:
  uint64_t most_bytes_;
  uint64_t bytes_ = 0;  // since the last pause
  TimeUs last_us_ = 0;
};

// Until the first sums are there, a card sends contributions only, for which their limits leave half
// of it idle; so each connection begins with a burst. Where packets are lost, a larger one disturbs
// the others: with 1 MiB and 0.1 % lost, steps of two workers took 0.745 instead of 0.727 s.
inline constexpr uint64_t kConnectionBurstBytes = 256 << 10;
// Of all connections of a thread: they may lead to one card, which has one queue.
inline constexpr uint64_t kThreadBurstBytes = 1 << 20;

// Limits the rate of a connection while its thread has much to send, but not for a few partitions
// now and then.
class Pacer {
 public:
  explicit Pacer(uint64_t bytes_per_s) : bytes_per_s_(bytes_per_s) {}
  // `bytes` are handed over at `now`; `burst` is the thread's. Returns the connection's new rate if
  // it changes; 0: unlimited. `rest`: only answers remain, which need not leave room for
  // contributions, so the connection is not limited. `count`: of the thread's connections that do the
  // same at the same time, as in a model.
  std::optional<uint64_t> on_send(uint64_t bytes, TimeUs now, Burst& burst, bool rest = false,
                                  uint64_t count = 1);
  // The limit changes. Returns as on_send().
  std::optional<uint64_t> set_limit(uint64_t bytes_per_s);

 private:
  uint64_t bytes_per_s_;
  Burst own_burst_{kConnectionBurstBytes};
  bool held_ = false;
};

}  // namespace byteps::protocol
