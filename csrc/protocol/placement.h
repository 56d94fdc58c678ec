// Where partitions are summed: the share of each reducer_host, and the reducer_host of each partition. Pure.
//
// A *reducer_host* is a place that sums and has a network card of its own: a worker machine, or a server on a CPU machine.
// With n worker machines, M bytes to sum, m of them at a reducer_host of B bytes/s, a reducer_host's card is busy in each direction for
//   (M + (n-2) m) / B    on a worker machine: it sends M - m of its own bytes, and m results to n-1 others;
//   n m / B              on a server: it receives m from each machine, and sends the results back.
// The busiest reducer_host takes the time T that the whole push_pull cannot be faster than. `auto` minimises T. As every
// machine sends M, T is at least M / B of the slowest; from there on each reducer_host can take so many bytes within T:
//   (T B - M) / (n-2)    a worker machine (any number, if n = 2);
//   T B / n              a server,
// so the least T at which they add up to M has a closed form (water-filling with one level, T). With equal cards and
// 0 <= k <= n servers it gives each server 2(n-1)/D and each machine (n-k)/D of the bytes, D = n^2 + kn - 2k, which is
// all-reduce for k = 0 and a parameter server for k >= n.
// Source of the model and of the case with equal cards: Jiang et al., "A Unified Architecture for Accelerating
// Distributed DNN Training in Heterogeneous GPU/CPU Clusters", OSDI 2020, section 4.1.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace byteps::protocol {

struct ReducerHost {
  bool is_server = false;
  double nic_mbps = 0;  // of its network card, per direction, in Mbit/s; 0 (or no sensible speed): unknown
  // Of a server process on a machine that has workers, too: that machine's reducer_host. It has no card of its own: `auto` gives
  // it nothing, and what others give it passes the machine's card.
  std::optional<uint32_t> host = std::nullopt;
};

struct PlacementPolicy {
  enum class Kind : uint8_t {
    kAuto,       // the optimum above
    kAllReduce,  // worker machines only, equal shares
    kPs,         // servers only, equal shares; without any: as kAllReduce
    kWeights,    // in proportion to `weights`
  };
  Kind kind = Kind::kAuto;
  std::vector<double> weights =
      {};  // kWeights only: one per reducer_host; not negative, one at least positive
};
// "auto", "allreduce", "ps", or "weights:" and numbers with commas between them. Invalid argument if it is none.
Result<PlacementPolicy> placement_policy_from(std::string_view text);

// Share of the bytes for each reducer_host; they sum to 1. `reducer_hosts`: worker machines (one at least), then servers.
// A card of unknown speed counts as the mean of the known ones, all alike if none is known. Where several shares are
// optimal (two machines; a machine that alone fixes T), servers are filled first, then machines in proportion to what
// they can take. A single machine keeps all: nothing has to travel.
// Invalid argument: the weights are not one per reducer_host.
Result<std::vector<double>> reducer_host_shares(const std::vector<ReducerHost>& reducer_hosts,
                                                const PlacementPolicy& policy);

// T of the model above for any shares: the bound on one push_pull of `bytes` bytes. Payload only: for a time that can
// be measured, speeds have to be those of payload, too. What a guest (ReducerHost::host) sums counts as its machine's.
// Infinite if something has to travel and no card's speed is known.
double predicted_seconds(const std::vector<ReducerHost>& reducer_hosts, const std::vector<double>& shares,
                         uint64_t bytes);

// Hands out reducer_hosts so that the bytes of each are less than a partition away from its share at every moment, and
// therefore less than two partitions in every run of consecutive partitions: no reducer_host is a hot spot for a while.
// Source: Tijdeman, "The chairman assignment problem", Discrete Mathematics 32, 1980.
class Placer {
 public:
  explicit Placer(std::vector<double> shares);
  // The reducer_host for the next partition: of those behind their share, the one that would soonest be a partition
  // behind. Deterministic.
  uint16_t place(uint64_t bytes);
  // By reducer_host; an empty partition counts as one byte, so that they take turns as well.
  const std::vector<uint64_t>& placed_bytes() const { return placed_bytes_; }

 private:
  std::vector<double> shares_;
  std::vector<uint64_t> placed_bytes_;
  uint64_t total_bytes_ = 0;
};

}  // namespace byteps::protocol
