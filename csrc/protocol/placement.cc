#include "protocol/placement.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"

namespace byteps::protocol {

Result<PlacementPolicy> placement_policy_from(std::string_view text) {
  if (text == "auto") return PlacementPolicy::kAuto;
  if (text == "allreduce") return PlacementPolicy::kAllReduce;
  if (text == "ps") return PlacementPolicy::kPs;
  return invalid_argument("placement: expected auto, allreduce or ps, got '" + std::string(text) + "'");
}

std::vector<double> service_shares(uint32_t num_workers, uint32_t num_servers, PlacementPolicy policy) {
  BPS_CHECK(num_workers > 0) << "a job has workers";
  const double n = num_workers;
  const double k = num_servers;
  double worker_share = 0;
  double server_share = 0;
  if (policy == PlacementPolicy::kAllReduce || num_servers == 0) {
    worker_share = 1 / n;
  } else if (policy == PlacementPolicy::kPs || (num_servers >= num_workers && num_workers > 1)) {
    server_share = 1 / k;
  } else if (num_workers == 1) {
    worker_share = 1;
  } else {
    const double d = n * n + k * n - 2 * k;
    worker_share = (n - k) / d;
    server_share = 2 * (n - 1) / d;
  }
  std::vector<double> shares(num_workers, worker_share);
  shares.resize(num_workers + num_servers, server_share);
  return shares;
}

Placer::Placer(std::vector<double> shares) : shares_(std::move(shares)), placed_bytes_(shares_.size()) {}

// To serve whoever is furthest behind is not enough: beside one large share, small ones can fall more than a
// partition behind all at once.
uint16_t Placer::place(uint64_t bytes) {
  const uint64_t charged_bytes = std::max<uint64_t>(bytes, 1);
  total_bytes_ += charged_bytes;
  std::optional<std::pair<bool, double>> first;  // not behind, deadline: the smaller goes first
  size_t chosen = 0;
  for (size_t i = 0; i < shares_.size(); ++i) {
    if (shares_[i] <= 0) continue;
    bool behind = static_cast<double>(placed_bytes_[i]) < shares_[i] * static_cast<double>(total_bytes_);
    std::pair candidate(!behind, static_cast<double>(placed_bytes_[i] + charged_bytes) / shares_[i]);
    if (first && *first <= candidate) continue;
    first = candidate;
    chosen = i;
  }
  placed_bytes_[chosen] += charged_bytes;
  return static_cast<uint16_t>(chosen);
}

}  // namespace byteps::protocol
