#include "protocol/successors.h"

#include <algorithm>
#include <utility>

#include "base/mix.h"

namespace byteps::protocol {
namespace {

// More points follow the shares more exactly, and take more time for each partition.
constexpr uint32_t kMostPoints = 8;

}  // namespace

Successors::Successors(Tree tree, const std::vector<uint32_t>& shares_ppb) : tree_(std::move(tree)) {
  points_.resize(tree_.num_reducer_hosts());
  const uint64_t largest = shares_ppb.empty() ? 0 : *std::ranges::max_element(shares_ppb);
  for (size_t host = 0; host < std::min(points_.size(), shares_ppb.size()); ++host) {
    const uint64_t share = shares_ppb[host];
    if (share > 0) points_[host] = static_cast<uint32_t>((share * kMostPoints + largest - 1) / largest);
  }
}

void Successors::lose(uint32_t server) {
  tree_.lose(server);
  hosts_at_loss_[server] = tree_.num_reducer_hosts();
}

void Successors::add(const NodeInfo& server) {
  tree_.add(server);
  points_.push_back(kMostPoints);
}

bool Successors::is_lost(uint32_t node) const {
  if (node < tree_.num_workers()) return false;
  return tree_.reducer_hosts()[tree_.reducer_host_of(node)].is_lost;
}

uint32_t Successors::root(const DataHead& head) const {
  if (!is_lost(head.root_node)) return head.root_node;
  const std::vector<ReducerHost>& hosts = tree_.reducer_hosts();
  const size_t num_hosts = hosts_at_loss_.at(head.root_node);
  const uint64_t key = mix(mix(head.key.tensor) + head.key.partition);
  for (const bool with_share : {true, false}) {
    uint64_t largest = 0;
    uint16_t chosen = 0;
    bool found = false;
    for (uint16_t host = 0; host < num_hosts; ++host) {
      if (hosts[host].is_lost) continue;
      const uint32_t points = with_share ? points_[host] : 1;
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
