#include "protocol/tree.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string_view>
#include <utility>

#include "protocol/text.h"

namespace byteps::protocol {

namespace {

// A multiple of any numbers of ranks from 1 to 8. Longer periods cost the scheduler too much time;
// with other numbers of ranks, some ranks serve slightly more indices than others.
constexpr uint32_t kMaxRanksPeriod = 840;
constexpr uint32_t kMaxShardsPeriod = 12;  // a multiple of 1 to 4

// A root answers when it has a partition from every machine, and each connection has only its part
// of the card. So where more connections than this would lead to a reducer host, its roots use
// fewer ranks; and where very many would, fewer shards. `byteps plan` predicts for machines of 8
// ranks with 4 shards, half as many servers, and 100 Gbit/s, over the bound, with all connections
// and with these: 1.32 and 1.09 on 128 machines, 4.0 and 1.14 on 1,024.
constexpr uint32_t kMostConnectionsOfRanks = 256;
constexpr uint32_t kMostConnections = 1024;
// A host keeps as many shards as its sums need at the speed of its card.
constexpr double kMbpsPerShard = 50'000;

uint32_t common_period(const std::vector<uint32_t>& sizes, uint32_t limit) {
  uint64_t period = 1;
  for (const uint32_t size : sizes) {
    period = std::lcm(period, uint64_t{size});
    if (period > limit) return std::max(limit, *std::max_element(sizes.begin(), sizes.end()));
  }
  return static_cast<uint32_t>(period);
}

}  // namespace

Children each_rank(std::vector<std::string> describe_rank) {
  Children children{std::move(describe_rank), {}};
  children.of_rank.resize(children.describe.size());
  std::iota(children.of_rank.begin(), children.of_rank.end(), 0);
  return children;
}

Weights weights(const Children& children) {
  Weights weights;
  weights.of_child.resize(children.describe.size());
  for (const int32_t child : children.of_rank) {
    if (child >= 0) ++weights.of_child[static_cast<size_t>(child)];
  }
  uint32_t common = 0;
  for (const uint32_t ranks : weights.of_child) common = std::gcd(common, ranks);
  for (uint32_t& weight : weights.of_child) {
    weight /= common;
    weights.total += weight;
  }
  return weights;
}

Tree::Tree(const std::vector<NodeInfo>& nodes, uint32_t num_workers) {
  for (uint32_t node = 0; node < num_workers; ++node) {
    num_shards_.push_back(std::max<uint32_t>(1, static_cast<uint32_t>(nodes[node].num_shards())));
    const auto [found, is_new] = machines_.try_emplace(nodes[node].machine, num_machines());
    if (is_new) ranks_.emplace_back();
    ranks_[found->second].push_back(node);
    machine_of_rank_.push_back(found->second);
    describe_rank_.push_back(nodes[node].describe());
  }
  reducer_hosts_.resize(num_machines());
  for (uint32_t node = 0; node < num_workers; ++node) {
    double& speed = reducer_hosts_[machine_of_rank_[node]].nic_mbps;
    speed = std::max(speed, static_cast<double>(nodes[node].nic_mbps));
  }
  for (uint32_t node = num_workers; node < nodes.size(); ++node) add_server(nodes[node]);
  share_cards();
  std::vector<uint32_t> sizes;
  for (const auto& ranks : ranks_) sizes.push_back(static_cast<uint32_t>(ranks.size()));
  ranks_period_ = common_period(sizes, kMaxRanksPeriod);
  shards_period_ = common_period(num_shards_, kMaxShardsPeriod);
  choose_indices_of_host();
  // Where roots use a part of the indices, many connections lead one way only.
  const bool both_ways = rank_indices_of_host_ == ranks_period_ && shard_indices_of_host_ == shards_period_;
  can_take_turns_ = num_machines() == 2 && nodes.size() == num_workers && both_ways;
}

Tree::Tree(const Roster& roster)
    : Tree({roster.nodes.begin(), roster.nodes.end() - roster.num_added}, roster.num_workers) {
  for (size_t node = num_nodes(); node < roster.nodes.size(); ++node) add(roster.nodes[node]);
  for (const uint32_t server : roster.lost) lose(server);
  if (roster.takes_turns) let_take_turns();
}

void Tree::add(const NodeInfo& server) {
  add_server(server);
  share_cards();
}

void Tree::add_server(const NodeInfo& server) {
  num_shards_.push_back(std::max<uint32_t>(1, static_cast<uint32_t>(server.num_shards())));
  servers_.push_back({server.machine, static_cast<double>(server.nic_mbps)});
  reducer_hosts_.push_back({.is_server = true});
  const auto host = machines_.find(server.machine);
  if (host != machines_.end()) reducer_hosts_.back().host = host->second;
}

void Tree::lose(uint32_t server) {
  reducer_hosts_[reducer_host_of(server)].is_lost = true;
  share_cards();
}

void Tree::set_speeds(const std::vector<uint32_t>& nic_mbps) {
  for (uint32_t machine = 0; machine < num_machines(); ++machine) {
    uint32_t fastest = 0;
    for (const uint32_t rank : ranks_[machine]) fastest = std::max(fastest, nic_mbps[rank]);
    reducer_hosts_[machine].nic_mbps = fastest;
  }
  for (size_t i = 0; i < servers_.size(); ++i) servers_[i].nic_mbps = nic_mbps[num_workers() + i];
  share_cards();
}

void Tree::share_cards() {
  std::map<std::string_view, uint32_t> living;  // number of servers, by machine
  const auto host_of = [this](size_t server) -> ReducerHost& {
    return reducer_hosts_[num_machines() + server];
  };
  for (size_t i = 0; i < servers_.size(); ++i) {
    if (!host_of(i).is_lost) ++living[servers_[i].machine];
  }
  for (size_t i = 0; i < servers_.size(); ++i)
    host_of(i).nic_mbps = servers_[i].nic_mbps / std::max(1u, living[servers_[i].machine]);
}

void Tree::choose_indices_of_host() {
  const uint32_t shards = *std::ranges::max_element(num_shards_);
  const uint32_t machines = std::max(1u, num_machines());
  rank_indices_of_host_ = std::clamp(kMostConnectionsOfRanks / (machines * shards), 1u, ranks_period_);
  const double fastest_mbps = std::ranges::max_element(reducer_hosts_, {}, &ReducerHost::nic_mbps)->nic_mbps;
  const auto least = static_cast<uint32_t>(std::ceil(fastest_mbps / kMbpsPerShard));
  const uint32_t most = std::max(least, kMostConnections / machines);
  shard_indices_of_host_ = most >= shards || fastest_mbps <= 0 ? shards_period_ : std::max(1u, most);
}

Status Tree::check(const RootLocation& location) const {
  if (location.reducer_host >= num_reducer_hosts()) {
    return data_loss("reducer host: expected a number below " + std::to_string(num_reducer_hosts()) +
                     ", got " + std::to_string(location.reducer_host));
  }
  if (location.serving_index >= num_serving_indices()) {
    return data_loss("serving index: expected a number below " + std::to_string(num_serving_indices()) +
                     ", got " + std::to_string(location.serving_index));
  }
  return Status::ok();
}

uint32_t Tree::root(const RootLocation& location) const {
  if (location.reducer_host >= num_machines()) return num_workers() + location.reducer_host - num_machines();
  return serving(location.reducer_host, location);
}

uint32_t Tree::serving(uint32_t machine, const RootLocation& location) const {
  const std::vector<uint32_t>& ranks = ranks_[machine];
  return ranks[location.serving_index % ranks_period_ % ranks.size()];
}

Parent Tree::parent_of(uint32_t rank, const RootLocation& location) const {
  const uint32_t machine = machine_of_rank_[rank];
  if (ranks_[machine].size() > 1) return {serving(machine, location), Level::kMachine};
  return {root(location), Level::kCluster};
}

uint32_t Tree::num_connections(uint32_t from, uint32_t to) const {
  const auto ranks_beside = [this](uint32_t node) {
    return node < num_workers() ? static_cast<uint32_t>(ranks_[machine_of_rank_[node]].size()) : 1;
  };
  return std::min(std::max(ranks_beside(from), ranks_beside(to)), rank_indices_of_host_) *
         std::min(num_shards_[to], shard_indices_of_host_);
}

bool Tree::take_turns(uint32_t one, uint32_t other) const {
  // Links and children are on the same threads only where both have equally many.
  return takes_turns_ && one < num_workers() && other < num_workers() &&
         machine_of(one) != machine_of(other) && num_shards_[one] == num_shards_[other];
}

uint32_t Tree::most_connections() const {
  size_t ranks = 1;
  for (const auto& of_machine : ranks_) ranks = std::max(ranks, of_machine.size());
  return std::min(static_cast<uint32_t>(ranks), rank_indices_of_host_) *
         std::min(*std::ranges::max_element(num_shards_), shard_indices_of_host_);
}

bool Tree::connects(uint32_t from, uint32_t to, Level level) const {
  if (from >= num_workers()) return false;  // a server is a root and nothing else
  if (level == Level::kRanks) return true;
  const bool together = to < num_workers() && machine_of_rank_[from] == machine_of_rank_[to];
  if (level == Level::kMachine) return together && ranks_[machine_of_rank_[from]].size() > 1;
  return from == to || !together;
}

Children Tree::children_on(uint32_t machine) const {
  Children children;
  children.of_rank.assign(num_workers(), -1);
  for (const uint32_t rank : ranks_[machine]) {
    children.of_rank[rank] = static_cast<int32_t>(children.describe.size());
    children.describe.push_back(describe_rank_[rank]);
  }
  return children;
}

Children Tree::machines() const {
  Children children;
  for (const uint32_t machine : machine_of_rank_) children.of_rank.push_back(static_cast<int32_t>(machine));
  for (const auto& ranks : ranks_) {
    std::vector<std::string> names;
    for (const uint32_t rank : ranks) names.push_back(describe_rank_[rank]);
    children.describe.push_back(enumerate(names));
  }
  return children;
}

}  // namespace byteps::protocol
