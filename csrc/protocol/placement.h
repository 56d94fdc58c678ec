// Placement: the share of each reducer host, and the reducer host of each partition. Pure.
//
// A *reducer host* sums and has a network card of its own: a worker machine, or a server on a CPU
// machine. With n worker machines and M bytes to sum, m of them on a reducer host of B bytes/s, its
// card is busy in each direction for
//   (M + (n-2) m) / B    on a worker machine: it sends M - m of its own bytes, and m bytes of
//                        results to each of n-1 others;
//   n m / B              on a server: it receives m from each machine, and sends the results back.
// The busiest reducer host determines the time T, the lower bound for the whole push_pull. `auto`
// minimizes T. Every machine sends M, so T is at least M / B of the slowest machine. Within T a
// reducer host can sum
//   (T B - M) / (n-2)    bytes on a worker machine (any number if n = 2);
//   T B / n              bytes on a server.
// They are filled to the smallest level T at which they add up to M (water-filling); machines that
// cannot even send M within T sum nothing, and hold up the job. So the load of all other cards is
// as low as possible, too. Of two machines, each must send M whoever sums: servers cannot help, and
// get nothing. With n > 2 machines, 0 <= k <= n servers and equal cards, each server gets 2(n-1)/D
// and each machine (n-k)/D of the bytes, where D = n^2 + kn - 2k: all-reduce for k = 0, a parameter
// server for k >= n.
//
// Source of the model and of the case with equal cards: Jiang et al., "A Unified Architecture for
// Accelerating Distributed DNN Training in Heterogeneous GPU/CPU Clusters", OSDI 2020, section 4.1.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace byteps::protocol {

struct ReducerHost {
  bool is_server = false;
  // Speed of its network card per direction, Mbit/s; 0 or implausible: unknown.
  double nic_mbps = 0;
  // Only for a server process on a machine that has workers: the reducer host of that machine. Such
  // a server has no card of its own: `auto` gives it nothing, and the bytes that other policies
  // give it pass through the machine's card.
  std::optional<uint32_t> host = std::nullopt;
  bool is_lost = false;  // gets nothing
};

struct PlacementPolicy {
  enum class Kind : uint8_t {
    kAuto,       // the optimum above
    kAllReduce,  // worker machines only, equal shares
    kPs,         // servers only, equal shares; without servers as kAllReduce
    kWeights,    // proportional to `weights`
  };
  Kind kind = Kind::kAuto;
  // kWeights only: one per reducer host; none negative, at least one positive.
  std::vector<double> weights = {};
};
// Parses "auto", "allreduce", "ps", or "weights:" and comma-separated numbers. kInvalidArgument
// otherwise.
Result<PlacementPolicy> placement_policy_from(std::string_view text);

// The share of the bytes for each reducer host; shares sum to 1. `reducer_hosts`: worker machines
// (at least one), then servers. A card of unknown speed counts as the mean of the known ones; if
// none is known, all count as equal. A single machine keeps everything: nothing has to travel. Two
// share it equally. kInvalidArgument if the number of weights differs from the number of reducer
// hosts.
Result<std::vector<double>> reducer_host_shares(const std::vector<ReducerHost>& reducer_hosts,
                                                const PlacementPolicy& policy);

// Shares as messages have them.
std::vector<uint32_t> in_parts_per_billion(const std::vector<double>& shares);

// T of the model above for any shares, in seconds: the lower bound for one push_pull of `bytes`
// bytes. Counts payload only, so compare it with measured times only if the speeds are those of
// payload. Bytes of a server on a worker machine (ReducerHost::host) count as bytes of that
// machine. Infinite if bytes have to travel and no card's speed is known.
double predicted_seconds(const std::vector<ReducerHost>& reducer_hosts, const std::vector<double>& shares,
                         uint64_t bytes);

// Assigns reducer hosts to consecutive partitions so that the bytes of each are always within one
// partition of its share, and within two in every run of consecutive partitions: no reducer host
// becomes a temporary hot spot. Deterministic. Source: Tijdeman, "The chairman assignment problem",
// Discrete Mathematics 32, 1980.
class Placer {
 public:
  explicit Placer(std::vector<double> shares);
  // The reducer host for the next partition: among those behind their share, the one that would be
  // a whole partition behind soonest.
  uint16_t place(uint64_t bytes);
  // Indexed by reducer host. An empty partition counts as one byte, so that empty ones are spread
  // too.
  const std::vector<uint64_t>& placed_bytes() const { return placed_bytes_; }

 private:
  std::vector<double> shares_;
  std::vector<uint64_t> placed_bytes_;
  uint64_t total_bytes_ = 0;
};

}  // namespace byteps::protocol
