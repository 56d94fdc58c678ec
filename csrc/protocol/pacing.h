// How fast each connection may go, so that the connections of a job do not get into each other's way. Pure.
//
// The shares of the reducer_hosts say how many bytes each connection carries in the least time T (protocol/placement). A
// connection that is held to that rate leaves the others theirs: every card is busy all the time and all connections
// end at once. Left alone, TCP gives some connections more than others for seconds; those end early, and their cards
// idle while the others go on.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "protocol/tree.h"

namespace byteps::protocol {

// What a card of so many Mbit/s carries of payload, in bytes/s: frames of 1514 bytes with 1448 bytes of payload, and the
// acknowledgements of what comes the other way.
double payload_bytes_per_s(double nic_mbps);
// The other way round: of a card that was seen to carry this.
double nic_mbps_of_payload(double bytes_per_s);

// How many threads of one process are worth while beside such a card: connections of fewer threads stay better in step
// (protocol/outbox).
uint32_t useful_shards(double nic_mbps);

// Rates of payload in bytes/s; 0: not to be held back.
class Pace {
 public:
  // `shares` by reducer_host. Nobody is held back where a card's speed is unknown, or nothing has to travel.
  Pace(const Tree& tree, const std::vector<double>& shares);

  // Of a connection over which `from` contributes to the root at `to` (nodes), and `to` answers.
  uint64_t rate(uint32_t from, uint32_t to, const Tree& tree) const;

 private:
  std::vector<double> rate_of_site_;  // of all bytes from one machine to the root at this reducer_host
};

// What the connections of one thread may send at full speed after a pause, all together: what each of them may send on
// its own would overflow the queue before a card that many connections share.
class Burst {
 public:
  // `bytes` are handed over at `now`: whether they and all since the last pause are few.
  bool covers(uint64_t bytes, TimeUs now, TimeUs pause_us);

 private:
  uint64_t bytes_ = 0;  // since the last pause
  TimeUs last_us_ = 0;
};

// Holds back a connection of a thread that has much to carry, and not of one with a few partitions now and then.
class Pacer {
 public:
  explicit Pacer(uint64_t bytes_per_s) : bytes_per_s_(bytes_per_s) {}
  // `bytes` are handed over at `now`; `burst` is the thread's. A value: the connection's rate changes to it; 0: as fast
  // as it can. `rest`: only answers are left, which need not leave room for contributions: the connection is not held.
  std::optional<uint64_t> on_send(uint64_t bytes, TimeUs now, Burst& burst, bool rest = false);

 private:
  uint64_t bytes_per_s_;
  bool held_ = false;
};

}  // namespace byteps::protocol
