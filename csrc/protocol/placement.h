// Which summation service is the root of which partition. Pure.
//
// With n worker machines, k CPU machines and equal NICs the optimum gives each CPU machine 2(n-1)/D and each
// worker machine (n-k)/D of the bytes, D = n^2 + kn - 2k, for 0 <= k <= n; for k > n all on CPU machines. A single
// worker keeps all to itself: nothing has to travel.
// Source: Jiang et al., "A Unified Architecture for Accelerating Distributed DNN Training in Heterogeneous
// GPU/CPU Clusters", OSDI 2020, section 4.1.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace byteps::protocol {

enum class PlacementPolicy : uint8_t {
  kAuto,       // the optimum above
  kAllReduce,  // worker processes only, equal shares
  kPs,         // CPU machines only, equal shares; without any: as kAllReduce
};
Result<PlacementPolicy> placement_policy_from(std::string_view text);  // "auto", "allreduce", "ps"

// Share of the bytes for each service: workers by rank, then servers by number. Sums to 1.
std::vector<double> service_shares(uint32_t num_workers, uint32_t num_servers, PlacementPolicy policy);

// Hands out services so that the bytes of each are less than a partition away from its share, at every moment.
// Source: Tijdeman, "The chairman assignment problem", Discrete Mathematics 32, 1980.
class Placer {
 public:
  explicit Placer(std::vector<double> shares);
  // The service for the next partition: of those behind their share, the one that would soonest be a partition
  // behind. Deterministic.
  uint16_t place(uint64_t bytes);
  // By service; an empty partition counts as one byte, so that they take turns as well.
  const std::vector<uint64_t>& placed_bytes() const { return placed_bytes_; }

 private:
  std::vector<double> shares_;
  std::vector<uint64_t> placed_bytes_;
  uint64_t total_bytes_ = 0;
};

}  // namespace byteps::protocol
