#include "protocol/root_assigner.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

namespace byteps::protocol {
namespace {

// The numbers of shards of a reducer host's services, ordered by rank.
std::vector<uint32_t> shards_of_reducer_host(const Tree& tree, uint32_t reducer_host) {
  if (reducer_host >= tree.num_machines())
    return {tree.num_shards(tree.num_workers() + reducer_host - tree.num_machines())};
  std::vector<uint32_t> shards;
  for (const uint32_t rank : tree.ranks_of(reducer_host)) shards.push_back(tree.num_shards(rank));
  return shards;
}

}  // namespace

RootAssigner::Services RootAssigner::services_with(const std::vector<uint32_t>& shards) {
  return {LoadCounter(shards.size()), {shards.begin(), shards.end()}};
}

RootAssigner::RootAssigner(const Tree& tree, std::vector<double> shares)
    : reducer_hosts_(std::move(shares)),
      num_rank_indices_(tree.num_serving_indices() / tree.num_shard_indices()),
      num_shard_indices_(tree.num_shard_indices()) {
  std::set<std::vector<uint32_t>> seen;
  for (uint32_t reducer_host = 0; reducer_host < tree.num_reducer_hosts(); ++reducer_host) {
    const std::vector<uint32_t> shards = shards_of_reducer_host(tree, reducer_host);
    roots_.push_back(services_with(shards));
    const bool sums_its_ranks = reducer_host < tree.num_machines() && shards.size() > 1;
    if (sums_its_ranks && seen.insert(shards).second) machines_.push_back(services_with(shards));
  }
}

template <typename Ahead>
uint32_t RootAssigner::furthest_behind(uint32_t count, Ahead&& ahead) {
  uint32_t chosen = 0;
  double least = std::numeric_limits<double>::infinity();
  for (uint32_t number = 0; number < count; ++number) {
    const double candidate = ahead(number);
    if (candidate >= least) continue;
    least = candidate;
    chosen = number;
  }
  return chosen;
}

RootLocation RootAssigner::next(uint64_t bytes) {
  const uint16_t reducer_host = reducer_hosts_.place(bytes);
  Services& root = roots_[reducer_host];
  const uint32_t rank_turn = furthest_behind(num_rank_indices_, [&](uint32_t serving_index) {
    double ahead = root.ranks.ahead(serving_index);
    for (const Services& machine : machines_) ahead += machine.ranks.ahead(serving_index);
    return ahead;
  });
  const auto of_turn = [&](auto& services) -> auto& {
    return services.shards[rank_turn % services.shards.size()];
  };
  const uint32_t shard_index = furthest_behind(num_shard_indices_, [&](uint32_t each) {
    double ahead = of_turn(root).ahead(each);
    for (const Services& machine : machines_) ahead += of_turn(machine).ahead(each);
    return ahead;
  });
  const auto charge = [&, charged_bytes = std::max<uint64_t>(bytes, 1)](Services& services) {
    services.ranks.charge(rank_turn, charged_bytes);
    of_turn(services).charge(shard_index, charged_bytes);
  };
  charge(root);
  std::ranges::for_each(machines_, charge);
  return {reducer_host, static_cast<uint16_t>(shard_index * num_rank_indices_ + rank_turn)};
}

}  // namespace byteps::protocol
