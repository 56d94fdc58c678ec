#include "protocol/place_giver.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

namespace byteps::protocol {
namespace {

// Of the services of a site, by rank.
std::vector<uint32_t> shards_of_site(const Tree& tree, uint32_t site) {
  if (site >= tree.num_machines()) return {tree.num_shards(tree.num_workers() + site - tree.num_machines())};
  std::vector<uint32_t> shards;
  for (const uint32_t rank : tree.ranks_of(site)) shards.push_back(tree.num_shards(rank));
  return shards;
}

}  // namespace

PlaceGiver::Services PlaceGiver::services_with(const std::vector<uint32_t>& shards) {
  return {Circle(shards.size()), {shards.begin(), shards.end()}};
}

PlaceGiver::PlaceGiver(const Tree& tree, std::vector<double> shares)
    : sites_(std::move(shares)),
      num_rank_turns_(tree.num_turns() / tree.num_lanes()),
      num_lanes_(tree.num_lanes()) {
  std::set<std::vector<uint32_t>> seen;
  for (uint32_t site = 0; site < tree.num_sites(); ++site) {
    const std::vector<uint32_t> shards = shards_of_site(tree, site);
    roots_.push_back(services_with(shards));
    const bool sums_its_ranks = site < tree.num_machines() && shards.size() > 1;
    if (sums_its_ranks && seen.insert(shards).second) machines_.push_back(services_with(shards));
  }
}

template <typename Ahead>
uint32_t PlaceGiver::furthest_behind(uint32_t count, Ahead&& ahead) {
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

Place PlaceGiver::next(uint64_t bytes) {
  const uint16_t site = sites_.place(bytes);
  Services& root = roots_[site];
  const uint32_t rank_turn = furthest_behind(num_rank_turns_, [&](uint32_t turn) {
    double ahead = root.ranks.ahead(turn);
    for (const Services& machine : machines_) ahead += machine.ranks.ahead(turn);
    return ahead;
  });
  const auto of_turn = [&](const Services& services) -> const Circle& {
    return services.shards[rank_turn % services.shards.size()];
  };
  const uint32_t lane = furthest_behind(num_lanes_, [&](uint32_t each) {
    double ahead = of_turn(root).ahead(each);
    for (const Services& machine : machines_) ahead += of_turn(machine).ahead(each);
    return ahead;
  });
  const Place place{site, static_cast<uint16_t>(lane * num_rank_turns_ + rank_turn)};
  charge_turn(root, place, bytes);
  return place;
}

void PlaceGiver::charge_turn(Services& root, const Place& place, uint64_t bytes) {
  const uint64_t charged_bytes = std::max<uint64_t>(bytes, 1);  // empty ones take turns as well
  const uint32_t rank_turn = place.turn % num_rank_turns_;
  const uint32_t lane = place.turn / num_rank_turns_;
  const auto charge_one = [&](Services& services) {
    services.ranks.charge(rank_turn, charged_bytes);
    services.shards[rank_turn % services.shards.size()].charge(lane, charged_bytes);
  };
  charge_one(root);
  for (Services& machine : machines_) charge_one(machine);
}

}  // namespace byteps::protocol
