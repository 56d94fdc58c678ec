#include "protocol/placement.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"

namespace byteps::protocol {
namespace {

constexpr std::string_view kWeightsPrefix = "weights:";
constexpr double kRounding = 1e-12;  // tolerance of shares; less than a byte of any model
constexpr double kMinNicMbps = 1e-3;
constexpr double kMaxNicMbps = 1e9;

std::optional<double> weight_from(std::string_view text) {
  double weight = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), weight);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (!std::isfinite(weight) || weight < 0) return std::nullopt;
  return weight;
}

Result<PlacementPolicy> weights_from(std::string_view text) {
  PlacementPolicy policy{.kind = PlacementPolicy::Kind::kWeights};
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find(',', start), text.size());
    const std::string_view word = text.substr(start, end - start);
    const std::optional<double> weight = weight_from(word);
    if (!weight) {
      return invalid_argument("placement: weight " + std::to_string(policy.weights.size() + 1) + " of '" +
                              std::string(text) + "': expected a number of 0 or more, got '" +
                              std::string(word) + "'");
    }
    policy.weights.push_back(*weight);
    start = end + 1;
  }
  const double sum = std::accumulate(policy.weights.begin(), policy.weights.end(), 0.0);
  if (sum > 0 && std::isfinite(sum)) return policy;
  return invalid_argument("placement: the weights '" + std::string(text) +
                          "': expected a positive, finite sum, got " + std::to_string(sum));
}

// Range of real cards. Values outside, which a peer may send, must not produce shares that are NaN.
bool is_known(double nic_mbps) { return nic_mbps >= kMinNicMbps && nic_mbps <= kMaxNicMbps; }

// Unknown speeds are replaced by the mean of the known ones, or by `unknown` if there are none.
std::vector<double> speeds_of(const std::vector<ReducerHost>& reducer_hosts, double unknown) {
  double sum = 0;
  double count = 0;
  std::vector<double> speeds;
  for (const ReducerHost& reducer_host : reducer_hosts) {
    speeds.push_back(reducer_host.nic_mbps);
    if (!is_known(reducer_host.nic_mbps)) continue;
    sum += reducer_host.nic_mbps;
    ++count;
  }
  std::ranges::replace_if(speeds, std::not_fn(is_known), count > 0 ? sum / count : unknown);
  return speeds;
}

double count_machines(const std::vector<ReducerHost>& reducer_hosts) {
  return static_cast<double>(std::ranges::count(reducer_hosts, false, &ReducerHost::is_server));
}

std::vector<double> in_proportion(std::vector<double> parts) {
  const double sum = std::accumulate(parts.begin(), parts.end(), 0.0);
  for (double& part : parts) part /= sum;
  return parts;
}

std::vector<double> equal_shares(const std::vector<ReducerHost>& reducer_hosts, bool on_servers) {
  std::vector<double> shares;
  for (const ReducerHost& reducer_host : reducer_hosts)
    shares.push_back(reducer_host.is_server == on_servers && !reducer_host.is_lost ? 1 : 0);
  return in_proportion(std::move(shares));
}

std::vector<double> weighted_shares(const std::vector<ReducerHost>& reducer_hosts,
                                    std::vector<double> weights) {
  double sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (reducer_hosts[i].is_lost) weights[i] = 0;
    sum += weights[i];
  }
  return sum > 0 ? in_proportion(std::move(weights)) : equal_shares(reducer_hosts, false);
}

// The smallest time (for M = 1, n > 2) within which machines and servers can sum everything,
// machines that cannot send M within it summing nothing. Every machine that can adds its speed to
// the others', fastest first.
double filled_time(double n, std::vector<double> machine_speeds, double speed_of_servers) {
  std::ranges::sort(machine_speeds, std::greater());
  double count = 0;
  double speed_of_machines = 0;
  const auto time = [&] {
    return (1 + count / (n - 2)) / (speed_of_machines / (n - 2) + speed_of_servers / n);
  };
  for (const double speed : machine_speeds) {
    if (time() * speed <= 1) break;
    ++count;
    speed_of_machines += speed;
  }
  return time();
}

std::vector<double> optimal_shares(const std::vector<ReducerHost>& reducer_hosts) {
  const double n = count_machines(reducer_hosts);
  if (n <= 2) return equal_shares(reducer_hosts, false);
  const std::vector<double> speed = speeds_of(reducer_hosts, 1);
  const auto adds_card = [&](size_t i) {
    return reducer_hosts[i].is_server && !reducer_hosts[i].host && !reducer_hosts[i].is_lost;
  };
  std::vector<double> machine_speeds;
  double speed_of_servers = 0;
  for (size_t i = 0; i < reducer_hosts.size(); ++i) {
    if (!reducer_hosts[i].is_server) machine_speeds.push_back(speed[i]);
    if (adds_card(i)) speed_of_servers += speed[i];
  }
  const double time = filled_time(n, std::move(machine_speeds), speed_of_servers);
  std::vector<double> shares(reducer_hosts.size());
  for (size_t i = 0; i < reducer_hosts.size(); ++i) {
    if (adds_card(i)) shares[i] = time * speed[i] / n;
    if (reducer_hosts[i].is_server) continue;
    const double spare = time * speed[i] - 1;
    shares[i] = spare > kRounding ? spare / (n - 2) : 0;
  }
  return in_proportion(std::move(shares));
}

}  // namespace

Result<PlacementPolicy> placement_policy_from(std::string_view text) {
  using enum PlacementPolicy::Kind;
  if (text == "auto") return PlacementPolicy{.kind = kAuto};
  if (text == "allreduce") return PlacementPolicy{.kind = kAllReduce};
  if (text == "ps") return PlacementPolicy{.kind = kPs};
  if (text.starts_with(kWeightsPrefix)) return weights_from(text.substr(kWeightsPrefix.size()));
  return invalid_argument("placement: expected auto, allreduce, ps or weights:..., got '" +
                          std::string(text) + "'");
}

Result<std::vector<double>> reducer_host_shares(const std::vector<ReducerHost>& reducer_hosts,
                                                const PlacementPolicy& policy) {
  const double machines = count_machines(reducer_hosts);
  BPS_CHECK(machines > 0) << "a job has workers";
  switch (policy.kind) {
    case PlacementPolicy::Kind::kAuto: return optimal_shares(reducer_hosts);
    case PlacementPolicy::Kind::kAllReduce: return equal_shares(reducer_hosts, false);
    case PlacementPolicy::Kind::kPs:
      return equal_shares(reducer_hosts, std::ranges::any_of(reducer_hosts, [](const ReducerHost& each) {
                            return each.is_server && !each.is_lost;
                          }));
    case PlacementPolicy::Kind::kWeights: break;
  }
  if (policy.weights.size() == reducer_hosts.size()) return weighted_shares(reducer_hosts, policy.weights);
  const auto count = static_cast<size_t>(machines);
  return invalid_argument("placement: expected " + std::to_string(reducer_hosts.size()) + " weights, for " +
                          std::to_string(count) + " worker machines and " +
                          std::to_string(reducer_hosts.size() - count) + " servers, got " +
                          std::to_string(policy.weights.size()));
}

std::vector<uint32_t> in_parts_per_billion(const std::vector<double>& shares) {
  std::vector<uint32_t> parts;
  for (const double share : shares) parts.push_back(static_cast<uint32_t>(share * 1e9));
  return parts;
}

double predicted_seconds(const std::vector<ReducerHost>& reducer_hosts, const std::vector<double>& shares,
                         uint64_t bytes) {
  BPS_CHECK(reducer_hosts.size() == shares.size()) << "a share per reducer_host";
  const double n = count_machines(reducer_hosts);
  const std::vector<double> speeds = speeds_of(reducer_hosts, 0);
  std::vector<double> behind_card(reducer_hosts.size());
  for (size_t i = 0; i < reducer_hosts.size(); ++i)
    behind_card[reducer_hosts[i].host.value_or(i)] += shares[i];
  double longest = 0;
  for (size_t i = 0; bytes > 0 && i < reducer_hosts.size(); ++i) {
    const double travels = reducer_hosts[i].is_server ? n * behind_card[i] : 1 + (n - 2) * behind_card[i];
    if (travels > kRounding) longest = std::max(longest, travels / speeds[i]);
  }
  return longest * static_cast<double>(bytes) * 8 / 1e6;
}

Placer::Placer(std::vector<double> shares) : shares_(std::move(shares)), placed_bytes_(shares_.size()) {}

// Serving the reducer host that is furthest behind is not enough: beside one large share, several
// small ones can fall more than a partition behind at once.
uint16_t Placer::place(uint64_t bytes) {
  const uint64_t charged_bytes = std::max<uint64_t>(bytes, 1);
  total_bytes_ += charged_bytes;
  std::optional<std::pair<bool, double>> first;  // (not behind, deadline): the smallest is chosen
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
