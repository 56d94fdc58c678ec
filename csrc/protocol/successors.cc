#include "protocol/successors.h"

#include <algorithm>
#include <utility>

#include "base/mix.h"

namespace byteps::protocol {
namespace {

// More points follow the weights more exactly, and take more time for each partition.
constexpr uint64_t kMostPoints = 8;

}  // namespace

std::vector<uint32_t> successor_weights(const std::vector<double>& before, const std::vector<double>& after) {
  std::vector<double> growth;
  for (size_t i = 0; i < after.size(); ++i) growth.push_back(std::max(0.0, after[i] - before[i]));
  const std::vector<uint32_t> weights = in_parts_per_billion(growth);
  const bool none_grows = std::ranges::all_of(weights, [](uint32_t weight) { return weight == 0; });
  return none_grows ? in_parts_per_billion(after) : weights;
}

void Successors::lose(uint32_t server, const std::vector<uint32_t>& weights_ppb) {
  tree_.lose(server);
  std::vector<uint32_t>& points = points_[server];
  points.resize(tree_.num_reducer_hosts());
  const uint64_t largest = weights_ppb.empty() ? 0 : *std::ranges::max_element(weights_ppb);
  for (size_t host = 0; host < std::min(points.size(), weights_ppb.size()); ++host) {
    const uint64_t weight = weights_ppb[host];
    if (weight > 0) points[host] = static_cast<uint32_t>((weight * kMostPoints + largest - 1) / largest);
  }
}

uint32_t Successors::root(const DataHead& head) const {
  const auto lost = points_.find(head.root_node);
  if (lost == points_.end()) return head.root_node;
  const std::vector<uint32_t>& points_of = lost->second;
  const std::vector<ReducerHost>& hosts = tree_.reducer_hosts();
  const uint64_t key = mix(mix(head.key.tensor) + head.key.partition);
  for (const bool with_weight : {true, false}) {
    uint64_t largest = 0;
    uint16_t chosen = 0;
    bool found = false;
    for (uint16_t host = 0; host < points_of.size(); ++host) {
      if (hosts[host].is_lost) continue;
      const uint32_t points = with_weight ? points_of[host] : 1;
      for (uint32_t point = 0; point < points; ++point) {
        const uint64_t hash = mix(key ^ mix(uint64_t{host} << 32 | (point + 1)));
        if (found && hash <= largest) continue;
        largest = hash;
        chosen = host;
        found = true;
      }
    }
    if (found) return tree_.root({chosen, head.serving_index});
  }
  return head.root_node;  // a job has worker machines, which are never lost
}

}  // namespace byteps::protocol
