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
      num_rank_indices_(tree.num_rank_indices()),
      rank_indices_of_host_(tree.rank_indices_of_host()),
      num_shard_indices_(tree.num_shard_indices()),
      shard_indices_of_host_(tree.shard_indices_of_host()) {
  std::set<std::vector<uint32_t>> seen;
  std::set<size_t> rank_counts;
  for (uint32_t reducer_host = 0; reducer_host < tree.num_reducer_hosts(); ++reducer_host) {
    const std::vector<uint32_t> shards = shards_of_reducer_host(tree, reducer_host);
    roots_.push_back(services_with(shards));
    connections_.emplace_back();
    if (reducer_host < tree.num_machines()) {
      if (shards.size() > 1 && seen.insert(shards).second) machines_.push_back(services_with(shards));
      if (shards.size() > 1) rank_counts.insert(shards.size());
    } else {
      for (const size_t ranks : rank_counts)
        connections_.back().push_back(services_with(std::vector<uint32_t>(ranks, shards.front())));
    }
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

template <typename Use>
void RootAssigner::for_each_part(uint16_t reducer_host, Use&& use) {
  use(roots_[reducer_host]);
  std::ranges::for_each(connections_[reducer_host], use);
  std::ranges::for_each(machines_, use);
}

RootLocation RootAssigner::next(uint64_t bytes) {
  const uint16_t reducer_host = reducer_hosts_.place(bytes);
  // Neighboring reducer hosts use different indices, so that each machine uses all of them.
  const uint32_t first_rank = reducer_host * rank_indices_of_host_;
  const auto nth_rank = [&](uint32_t number) { return (first_rank + number) % num_rank_indices_; };
  const uint32_t rank_index = nth_rank(furthest_behind(rank_indices_of_host_, [&](uint32_t number) {
    double ahead = 0;
    for_each_part(reducer_host, [&](Services& part) { ahead += part.ranks.ahead(nth_rank(number)); });
    return ahead;
  }));
  const auto of_turn = [&](auto& services) -> auto& {
    return services.shards[rank_index % services.shards.size()];
  };
  const auto nth_shard = [&, first = first_rank / num_rank_indices_ * shard_indices_of_host_](
                             uint32_t number) { return (first + number) % num_shard_indices_; };
  const uint32_t shard_index = nth_shard(furthest_behind(shard_indices_of_host_, [&](uint32_t number) {
    double ahead = 0;
    for_each_part(reducer_host, [&](Services& part) { ahead += of_turn(part).ahead(nth_shard(number)); });
    return ahead;
  }));
  for_each_part(reducer_host, [&, charged_bytes = std::max<uint64_t>(bytes, 1)](Services& part) {
    part.ranks.charge(rank_index, charged_bytes);
    of_turn(part).charge(shard_index, charged_bytes);
  });
  return {reducer_host, static_cast<uint16_t>(shard_index * num_rank_indices_ + rank_index)};
}

}  // namespace byteps::protocol
