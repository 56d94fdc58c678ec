#include "protocol/root_assigner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>

namespace byteps::protocol {
namespace {

using ShareDraws = std::mt19937;

// `machines`: number of shards of each rank, by machine; `servers`: number of shards of each
// server; `mbps`: the speed of all cards.
Tree tree_of_ranks(const std::vector<std::vector<uint32_t>>& machines, const std::vector<uint32_t>& servers,
                   uint32_t mbps = 0) {
  std::vector<NodeInfo> nodes;
  const auto add = [&nodes, mbps](Role role, const std::string& machine, uint32_t shards) {
    NodeInfo& node = nodes.emplace_back();
    node.role = role;
    node.machine = machine;
    node.nic_mbps = mbps;
    node.endpoints = {{"tcp", std::vector<std::string>(shards)}};
  };
  uint32_t num_workers = 0;
  for (size_t m = 0; m < machines.size(); ++m) {
    for (const uint32_t shards : machines[m]) add(Role::kWorker, std::to_string(m), shards);
    num_workers += static_cast<uint32_t>(machines[m].size());
  }
  for (size_t k = 0; k < servers.size(); ++k) add(Role::kServer, "server " + std::to_string(k), servers[k]);
  return {nodes, num_workers};
}

Tree drawn_tree(ShareDraws& random) {
  const auto between = [&random](uint32_t least, uint32_t most) {
    return least + static_cast<uint32_t>(random() % (most - least + 1));
  };
  const bool equal_machines = random() % 3 == 0;
  const bool equal_shards = random() % 3 > 0;
  const uint32_t ranks = between(1, 8);
  const uint32_t shards = between(1, 4);
  const auto any_shards = [&] { return equal_shards ? shards : between(1, 4); };
  std::vector<std::vector<uint32_t>> machines(between(1, 6));
  for (auto& machine : machines) {
    machine.resize(equal_machines ? ranks : between(1, 8));
    std::ranges::generate(machine, any_shards);
  }
  std::vector<uint32_t> servers(between(0, 3));
  std::ranges::generate(servers, any_shards);
  return tree_of_ranks(machines, servers);
}

std::vector<double> drawn_shares(ShareDraws& random, size_t num_reducer_hosts) {
  std::vector<double> shares(num_reducer_hosts, 1);
  if (random() % 2 == 0) {
    for (double& share : shares) share = static_cast<double>(random() % 4);
    shares[random() % num_reducer_hosts] += 1;
  }
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share /= sum;
  return shares;
}

// Partitions of tensors: all of one size except for the last, which is smaller.
std::vector<uint64_t> random_sizes(ShareDraws& random, size_t count, uint64_t largest) {
  std::vector<uint64_t> sizes;
  while (sizes.size() < count) {
    const uint64_t full = random() % 2 == 0 ? largest : 1 + random() % largest;
    const size_t pieces = std::vector<size_t>{1, 1, 1, 2, 5, 20, 100}[random() % 7];
    sizes.insert(sizes.end(), pieces - 1, full);
    sizes.push_back(1 + random() % full);
  }
  return sizes;
}

// Bytes of each of several services, compared with an even spread at the same moment.
class Spread {
 public:
  explicit Spread(std::vector<double> parts) : parts_(std::move(parts)), bytes_(parts_.size()) {}
  static Spread even(size_t members) {
    return Spread(std::vector<double>(members, 1 / static_cast<double>(members)));
  }
  // Members are the shards of ranks with these numbers of shards, ordered by rank.
  static Spread of_shards(const std::vector<uint32_t>& shards) {
    std::vector<double> parts;
    for (const uint32_t count : shards)
      parts.insert(parts.end(), count, 1 / static_cast<double>(shards.size() * count));
    return Spread(parts);
  }

  void charge(size_t member, uint64_t bytes) {
    bytes_[member] += static_cast<double>(bytes);
    total_ += static_cast<double>(bytes);
  }
  double worst_bytes() const {
    double worst = 0;
    for (size_t i = 0; i < parts_.size(); ++i)
      worst = std::max(worst, std::abs(bytes_[i] - parts_[i] * total_));
    return worst;
  }

 private:
  std::vector<double> parts_;
  std::vector<double> bytes_;
  double total_ = 0;
};

// The services that can be a root at one reducer host, or sum one machine.
struct Services {
  std::vector<uint32_t> nodes;
  std::vector<uint32_t> first_shard;  // index in `shards` of each node's first shard
  Spread ranks;
  Spread shards;

  Services(const Tree& tree, std::vector<uint32_t> ranks_of_reducer_host)
      : nodes(std::move(ranks_of_reducer_host)), ranks(Spread::even(nodes.size())), shards(Spread::even(1)) {
    std::vector<uint32_t> counts;
    uint32_t next = 0;
    for (const uint32_t node : nodes) {
      first_shard.push_back(next);
      counts.push_back(tree.num_shards(node));
      next += counts.back();
    }
    shards = Spread::of_shards(counts);
  }
  void charge(const Tree& tree, uint32_t node, const RootLocation& location, uint64_t bytes) {
    const auto index = static_cast<size_t>(std::ranges::find(nodes, node) - nodes.begin());
    ranks.charge(index, bytes);
    shards.charge(first_shard[index] + tree.shard(node, tree.shard_index(location)), bytes);
  }
};

// Distances from an even spread at any prefix, in partitions of the largest size.
struct Worst {
  double ranks_of_machine = 0;
  double shards_of_machine = 0;
  double ranks_of_root = 0;
  double shards_of_root = 0;
};

Worst worst_of(const Tree& tree, RootAssigner assigner, const std::vector<uint64_t>& sizes,
               uint64_t largest) {
  std::vector<Services> machines;
  std::vector<Services> roots;
  for (uint32_t m = 0; m < tree.num_machines(); ++m) {
    roots.emplace_back(tree, tree.ranks_of(m));
    machines.emplace_back(tree, tree.ranks_of(m));
  }
  for (uint32_t node = tree.num_workers(); node < tree.num_nodes(); ++node)
    roots.emplace_back(tree, std::vector<uint32_t>{node});
  Worst worst;
  const auto look_at = [largest](const Services& services, double& ranks, double& shards) {
    ranks = std::max(ranks, services.ranks.worst_bytes() / static_cast<double>(largest));
    shards = std::max(shards, services.shards.worst_bytes() / static_cast<double>(largest));
  };
  for (const uint64_t bytes : sizes) {
    const RootLocation location = assigner.next(bytes);
    EXPECT_TRUE(tree.check(location).is_ok());
    roots[location.reducer_host].charge(tree, tree.root(location), location, bytes);
    look_at(roots[location.reducer_host], worst.ranks_of_root, worst.shards_of_root);
    for (uint32_t m = 0; m < tree.num_machines(); ++m) {
      if (machines[m].nodes.size() == 1) continue;
      machines[m].charge(tree, tree.parent_of(tree.ranks_of(m).front(), location).node, location, bytes);
      look_at(machines[m], worst.ranks_of_machine, worst.shards_of_machine);
    }
  }
  return worst;
}

void expect_within(const Worst& worst, double partitions, const std::string& what) {
  EXPECT_LE(worst.ranks_of_machine, partitions) << what;
  EXPECT_LE(worst.shards_of_machine, partitions) << what;
  EXPECT_LE(worst.ranks_of_root, partitions) << what;
  EXPECT_LE(worst.shards_of_root, partitions) << what;
}

// The shares of the reducer hosts are tested with the Placer. The bounds are about 1.5 times the
// maximum observed for random shapes.
TEST(RootAssigner, SpreadsBytesOverRanksAndShardsOfMachinesAndRootsAtEveryPrefix) {
  constexpr uint64_t kLargest = 4096;
  for (uint32_t seed = 0; seed < 200; ++seed) {
    ShareDraws random(seed);
    const Tree tree = drawn_tree(random);
    const RootAssigner assigner(tree, drawn_shares(random, tree.num_reducer_hosts()));
    const Worst worst = worst_of(tree, assigner, random_sizes(random, 600, kLargest), kLargest);
    expect_within(worst, 4, "seed " + std::to_string(seed));
    if (HasFailure()) return;
  }
}

TEST(RootAssigner, SpreadsBytesWhereNoPeriodFitsAllMachines) {
  const std::vector<uint32_t> one_each(13, 1);
  std::vector<std::vector<uint32_t>> machines;
  for (const size_t ranks : {13, 11, 9, 7, 5})
    machines.emplace_back(one_each.begin(), one_each.begin() + ranks);
  const Tree tree = tree_of_ranks(machines, {1, 2});
  const std::vector<double> shares(7, 1.0 / 7);
  ShareDraws random(1);
  expect_within(worst_of(tree, {tree, shares}, random_sizes(random, 2000, 4096), 4096), 4, "13, 11, 9, 7, 5");
}

// Each connection of a server is paced for an equal part of what the server gets.
TEST(RootAssigner, SpreadsBytesOverTheConnectionsOfServersAtEveryPrefix) {
  for (const auto& [machines, ranks, shards, servers] :
       {std::array{8u, 8u, 4u, 4u}, {3u, 4u, 1u, 2u}, {2u, 2u, 3u, 1u}, {5u, 3u, 2u, 3u}}) {
    const Tree tree = tree_of_ranks({machines, std::vector<uint32_t>(ranks, shards)},
                                    std::vector<uint32_t>(servers, shards));
    std::vector<double> shares(machines + servers, 1.0 / (machines + 3 * servers));
    std::fill(shares.end() - servers, shares.end(), 3.0 / (machines + 3 * servers));
    RootAssigner assigner(tree, shares);
    std::vector<Spread> connections(servers, Spread::even(size_t{ranks} * shards));
    for (int i = 0; i < 5000; ++i) {
      const RootLocation location = assigner.next(4096);
      if (location.reducer_host < machines) continue;
      const uint32_t rank = tree.parent_of(0, location).node;
      Spread& server = connections[location.reducer_host - machines];
      server.charge(rank * shards + tree.shard(tree.root(location), tree.shard_index(location)), 4096);
      ASSERT_LE(server.worst_bytes(), 4 * 4096) << ranks << " ranks, " << shards << " shards, " << i;
    }
  }
}

// There are as many partitions as ranks on a machine: each rank sums its machine for one of them.
TEST(RootAssigner, SpreadsAFewPartitionsOverTheRanksOfEveryMachine) {
  const std::vector<uint32_t> four(4, 1);
  const Tree tree = tree_of_ranks({four, four, four, four}, {});
  RootAssigner assigner(tree, std::vector<double>(4, 0.25));
  std::set<uint32_t> serving;
  for (int i = 0; i < 4; ++i) {
    const RootLocation location = assigner.next(4096);
    for (uint32_t rank = 0; rank < 16; rank += 4) serving.insert(tree.parent_of(rank, location).node);
  }
  EXPECT_EQ(serving.size(), 16u);
}

// Each reducer host has as many connections as Tree::num_connections() says, and uses all of them
// evenly; and so do the threads of each machine, which sum its contributions.
TEST(RootAssigner, WhereThereAreManyMachinesEachRootHasFewConnections) {
  struct Case {
    uint32_t machines, ranks, shards, servers, connections;
  };
  for (const Case& job : {Case{8, 8, 4, 4, 32}, Case{32, 8, 4, 16, 8}, Case{64, 4, 3, 64, 3},
                          Case{256, 8, 4, 0, 4}, Case{1024, 1, 4, 512, 2}, Case{512, 2, 4, 512, 2}}) {
    const std::string what = std::to_string(job.machines) + " x " + std::to_string(job.ranks);
    const Tree tree = tree_of_ranks({job.machines, std::vector<uint32_t>(job.ranks, job.shards)},
                                    std::vector<uint32_t>(job.servers, job.shards), 100'000);
    const uint32_t hosts = tree.num_reducer_hosts();
    RootAssigner assigner(tree, std::vector<double>(hosts, 1.0 / hosts));
    // Of machine 0, on which no root counts here: threads, and connections to each host.
    std::map<std::pair<uint32_t, uint32_t>, uint32_t> partitions_of_thread;
    std::map<uint32_t, std::map<std::array<uint32_t, 3>, uint32_t>> partitions_of_connection;
    const uint32_t num_partitions = hosts * 96;
    for (uint32_t i = 0; i < num_partitions; ++i) {
      const RootLocation location = assigner.next(4096);
      const uint32_t root = tree.root(location);
      const uint32_t sender = job.ranks > 1 ? tree.parent_of(0, location).node : 0;
      const uint16_t shard = tree.shard_index(location);
      ++partitions_of_thread[{sender, tree.shard(sender, shard)}];
      ++partitions_of_connection[location.reducer_host][{sender, root, tree.shard(root, shard)}];
      ASSERT_EQ(tree.num_connections(sender, root), job.connections) << what;
    }
    EXPECT_EQ(tree.most_connections(), job.connections) << what;
    EXPECT_EQ(partitions_of_thread.size(), job.ranks * job.shards) << what;
    const double of_thread = num_partitions / static_cast<double>(job.ranks * job.shards);
    for (const auto& [thread, count] : partitions_of_thread)
      EXPECT_NEAR(count / of_thread, 1, 0.1) << what << ", thread " << thread.second;
    for (const auto& [host, connections] : partitions_of_connection) {
      ASSERT_EQ(connections.size(), job.connections) << what << ", host " << host;
      for (const auto& [connection, count] : connections)
        ASSERT_NEAR(count, 96.0 / job.connections, 4) << what << ", host " << host;
    }
  }
}

TEST(RootAssigner, EmptyPartitionsTakeTurns) {
  const Tree tree = tree_of_ranks({{2, 2}}, {});
  RootAssigner assigner(tree, {1});
  std::set<uint16_t> serving_indices;
  for (int i = 0; i < 4; ++i) serving_indices.insert(assigner.next(0).serving_index);
  EXPECT_EQ(serving_indices.size(), 4u);
}

}  // namespace
}  // namespace byteps::protocol
