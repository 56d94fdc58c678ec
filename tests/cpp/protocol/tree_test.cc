#include "protocol/tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

namespace byteps::protocol {
namespace {

// Workers by machine ("a", "b", …), then servers on other machines; number of shards of each.
Tree make_tree(const std::string& machines, uint32_t num_servers = 0,
               const std::vector<size_t>& shards = {}) {
  std::vector<NodeInfo> nodes(machines.size() + num_servers);
  for (size_t i = 0; i < nodes.size(); ++i) {
    const bool is_worker = i < machines.size();
    nodes[i].role = is_worker ? Role::kWorker : Role::kServer;
    nodes[i].rank = static_cast<int32_t>(is_worker ? i : i - machines.size());
    nodes[i].machine = is_worker ? std::string(1, machines[i]) : "server " + std::to_string(i);
    nodes[i].endpoints = {{"tcp", std::vector<std::string>(shards.empty() ? 1 : shards[i])}};
  }
  return {nodes, static_cast<uint32_t>(machines.size())};
}

struct ParentCase {
  const char* machines;
  uint32_t num_servers;
  uint32_t rank;
  RootLocation location;
  Parent parent;
  uint32_t root;
};

TEST(Tree, ParentOfEachRank) {
  const ParentCase cases[] = {
      {"a", 0, 0, {0, 0}, {0, Level::kCluster}, 0},     // alone
      {"ab", 0, 0, {1, 0}, {1, Level::kCluster}, 1},    // one rank per machine
      {"ab", 1, 1, {2, 0}, {2, Level::kCluster}, 2},    // root on a server
      {"aabb", 0, 0, {0, 0}, {0, Level::kMachine}, 0},  // the root's own machine
      {"aabb", 0, 1, {0, 1}, {1, Level::kMachine}, 1},
      // Another machine: its rank with that serving index.
      {"aabb", 0, 2, {0, 1}, {3, Level::kMachine}, 1},
      // Ranks of a machine need not be consecutive.
      {"abab", 0, 3, {0, 1}, {3, Level::kMachine}, 2},
      // Alone on its machine, beside a machine of two.
      {"aab", 0, 2, {0, 1}, {1, Level::kCluster}, 1},
      {"aab", 1, 0, {2, 1}, {1, Level::kMachine}, 3},
  };
  for (const ParentCase& c : cases) {
    const Tree tree = make_tree(c.machines, c.num_servers);
    const std::string what = std::string(c.machines) + ", rank " + std::to_string(c.rank);
    EXPECT_TRUE(tree.check(c.location).is_ok()) << what;
    EXPECT_EQ(tree.parent_of(c.rank, c.location).node, c.parent.node) << what;
    EXPECT_EQ(tree.parent_of(c.rank, c.location).level, c.parent.level) << what;
    EXPECT_EQ(tree.root(c.location), c.root) << what;
  }
}

TEST(Tree, LocationsOutsideOfItAreErrors) {
  const Tree tree = make_tree("aab", 1);
  EXPECT_EQ(tree.num_reducer_hosts(), 3u);
  EXPECT_TRUE(tree.check({2, 1}).is_ok());
  EXPECT_EQ(tree.check({3, 0}).message(), "reducer host: expected a number below 3, got 3");
  EXPECT_EQ(tree.check({0, 2}).message(), "serving index: expected a number below 2, got 2");
}

TEST(Tree, ChildrenAreRanksOfAMachineAndMachines) {
  const Tree tree = make_tree("aba");
  EXPECT_EQ(tree.children_on(0).of_rank, (std::vector<int32_t>{0, -1, 1}));
  EXPECT_EQ(tree.children_on(0).describe.size(), 2u);
  EXPECT_EQ(tree.machines().of_rank, (std::vector<int32_t>{0, 1, 0}));
  EXPECT_EQ(tree.machines().describe.size(), 2u);
  EXPECT_NE(tree.machines().describe[0].find(" and rank 2"), std::string::npos)
      << tree.machines().describe[0];
}

TEST(Tree, SumsOfTheOnlyMachineEndThereUnlessTheRootIsAServer) {
  EXPECT_EQ(make_tree("aa", 1).num_final_roots(), 2u);
  EXPECT_EQ(make_tree("ab").num_final_roots(), 0u);
}

// A random job of up to 5 machines of up to 8 ranks, and up to 3 servers.
Tree random_tree(std::mt19937& random) {
  const bool all_alike = random() % 2 == 0;
  const size_t ranks_each = 1 + random() % 8;
  std::string machines;
  for (char machine = 'a'; machine <= static_cast<char>('a' + random() % 5); ++machine) {
    machines.append(all_alike ? ranks_each : 1 + random() % 8, machine);
  }
  std::shuffle(machines.begin(), machines.end(), random);
  const uint32_t num_servers = random() % 4;
  const size_t shards_each = 1 + random() % 4;
  std::vector<size_t> shards(machines.size() + num_servers, shards_each);
  if (!all_alike) {
    for (size_t& count : shards) count = 1 + random() % 4;
  }
  return make_tree(machines, num_servers, shards);
}

TEST(Tree, EveryRankReachesTheRootOverConnectionsThatExist) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const Tree tree = random_tree(random);
    const RootLocation location{static_cast<uint16_t>(random() % tree.num_reducer_hosts()),
                                static_cast<uint16_t>(random() % tree.num_serving_indices())};
    ASSERT_TRUE(tree.check(location).is_ok());
    const uint32_t root = tree.root(location);
    std::map<uint32_t, uint32_t> speaker;  // key: machine
    for (uint32_t rank = 0; rank < tree.num_workers(); ++rank) {
      const Parent parent = tree.parent_of(rank, location);
      ASSERT_TRUE(tree.connects(rank, parent.node, parent.level)) << "seed " << seed << ", rank " << rank;
      const uint32_t machine = tree.machine_of(rank);
      uint32_t speaks = rank;
      if (parent.level == Level::kMachine) {
        speaks = parent.node;
        ASSERT_EQ(tree.machine_of(speaks), machine);
        ASSERT_GE(tree.children_on(machine).of_rank[rank], 0);
        ASSERT_TRUE(tree.connects(speaks, root, Level::kCluster)) << "seed " << seed << ", rank " << rank;
      } else {
        ASSERT_EQ(parent.node, root);
      }
      ASSERT_EQ(speaker.emplace(machine, speaks).first->second, speaks) << "ranks of a machine agree";
    }
    ASSERT_EQ(speaker.size(), tree.num_machines());
    if (root < tree.num_workers()) {
      ASSERT_EQ(speaker.at(tree.machine_of(root)), root) << "the root speaks for its machine";
    }
  }
}

// The bits of a sum depend on this order.
TEST(Tree, ChildrenAreInTheOrderOfRanksAndMachinesInTheOrderOfTheirFirstRanks) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const Tree tree = random_tree(random);
    const Children machines = tree.machines();
    ASSERT_EQ(machines.of_rank.size(), tree.num_workers()) << "seed " << seed;
    ASSERT_EQ(machines.describe.size(), tree.num_machines()) << "seed " << seed;
    int32_t known_machines = 0;
    for (const int32_t machine : machines.of_rank) {
      ASSERT_LE(machine, known_machines) << "seed " << seed;
      known_machines = std::max(known_machines, machine + 1);
    }
    for (uint32_t m = 0; m < tree.num_machines(); ++m) {
      const Children children = tree.children_on(m);
      ASSERT_EQ(children.of_rank.size(), tree.num_workers()) << "seed " << seed;
      int32_t next_child = 0;
      for (uint32_t rank = 0; rank < tree.num_workers(); ++rank) {
        const bool is_here = machines.of_rank[rank] == static_cast<int32_t>(m);
        ASSERT_EQ(children.of_rank[rank], is_here ? next_child++ : -1)
            << "seed " << seed << ", rank " << rank;
      }
      ASSERT_EQ(children.describe.size(), static_cast<size_t>(next_child)) << "seed " << seed;
    }
  }
}

TEST(Tree, WeightsAreNumbersOfRanksWithoutTheirCommonDivisor) {
  const auto of = [](std::vector<int32_t> of_rank, size_t num_children) {
    const Weights result = weights({std::vector<std::string>(num_children), std::move(of_rank)});
    EXPECT_EQ(result.total, std::accumulate(result.of_child.begin(), result.of_child.end(), 0u));
    return result.of_child;
  };
  EXPECT_EQ(of({0, 0, 0}, 1), (std::vector<uint32_t>{1}));
  EXPECT_EQ(of({0, 1, -1}, 2), (std::vector<uint32_t>{1, 1}));
  EXPECT_EQ(of({0, 1, 0, 1}, 2), (std::vector<uint32_t>{1, 1}));
  EXPECT_EQ(of({0, 0, 0, 1}, 2), (std::vector<uint32_t>{3, 1}));
  EXPECT_EQ(of({0, 0, 1, 1, 1, 1, 2, 2}, 3), (std::vector<uint32_t>{1, 2, 1}));
}

NodeInfo server_on(const std::string& machine, uint32_t nic_mbps, size_t shards = 1) {
  return {.role = Role::kServer,
          .host = machine,
          .machine = machine,
          .nic_mbps = nic_mbps,
          .endpoints = {{"tcp", std::vector<std::string>(shards)}}};
}

// Locations that ranks have keep their meaning, whatever comes.
TEST(Tree, AServerThatComesIsOneMoreRootAndChangesNothingElse) {
  const Tree before = make_tree("aabb", 1, {2, 2, 2, 2, 2});
  Tree tree = before;
  tree.add(server_on("other", 100, 5));
  EXPECT_EQ(tree.num_nodes(), 6u);
  EXPECT_EQ(tree.num_reducer_hosts(), 4u);
  EXPECT_EQ(tree.num_serving_indices(), before.num_serving_indices());
  EXPECT_EQ(tree.num_rank_indices(), before.num_rank_indices());
  EXPECT_EQ(tree.num_shards(5), 5u);
  for (uint16_t host = 0; host < 3; ++host) {
    for (uint16_t index = 0; index < tree.num_serving_indices(); ++index)
      EXPECT_EQ(tree.root({host, index}), before.root({host, index}));
  }
  EXPECT_FALSE(before.check({3, 0}).is_ok());
  EXPECT_TRUE(tree.check({3, 0}).is_ok());
  EXPECT_EQ(tree.root({3, 0}), 5u);
  EXPECT_EQ(tree.parent_of(0, {3, 0}), (Parent{0, Level::kMachine}));
  EXPECT_TRUE(tree.connects(3, 5, Level::kCluster));
}

TEST(Tree, TheWorkersOfTwoMachinesWithoutServersTakeTurns) {
  const auto take_turns = [](Tree tree, uint32_t one, uint32_t other) {
    EXPECT_FALSE(tree.take_turns(one, other)) << "not yet";
    tree.let_take_turns();
    return tree.take_turns(one, other);
  };
  EXPECT_TRUE(take_turns(make_tree("ab"), 0, 1));
  EXPECT_TRUE(take_turns(make_tree("ab"), 1, 0));
  EXPECT_TRUE(take_turns(make_tree("aabb"), 1, 2));
  EXPECT_TRUE(take_turns(make_tree("aab", 0, {2, 2, 2}), 1, 2));
  EXPECT_FALSE(take_turns(make_tree("aabb"), 0, 1)) << "one machine";
  EXPECT_FALSE(take_turns(make_tree("abc"), 0, 1)) << "others use the card";
  EXPECT_FALSE(take_turns(make_tree("ab", 1), 0, 1)) << "others use the card";
  EXPECT_FALSE(take_turns(make_tree("ab", 0, {1, 2}), 0, 1)) << "answers leave on another thread";
  // Each machine's roots use a part of the many serving indices only.
  const std::string many = std::string(15, 'a') + std::string(16, 'b');
  EXPECT_FALSE(take_turns(make_tree(many, 0, std::vector<size_t>(many.size(), 4)), 0, 15));
}

TEST(Tree, TurnsGoOnWhenAServerComes) {
  Roster roster;
  roster.num_workers = 2;
  roster.takes_turns = true;
  roster.num_added = 1;
  for (int node = 0; node < 3; ++node) {
    roster.nodes.emplace_back();
    roster.nodes.back().machine = "machine " + std::to_string(node);
    roster.nodes.back().endpoints = {{"tcp", {"10.0.0.1:1"}}};
  }
  const Tree tree(roster);
  EXPECT_TRUE(tree.take_turns(0, 1)) << "as at the start, because their connections do";
  EXPECT_FALSE(tree.take_turns(0, 2));
}

TEST(Tree, ServersThatLiveShareTheCardOfTheirMachine) {
  Tree tree = make_tree("ab");
  for (int i = 0; i < 2; ++i) tree.add(server_on("box", 900));
  const auto speed = [&tree](size_t host) { return tree.reducer_hosts()[host].nic_mbps; };
  EXPECT_EQ(speed(2), 450);
  tree.lose(2);
  EXPECT_EQ(speed(3), 900);
  tree.add(server_on("box", 900));
  EXPECT_EQ(speed(3), 450);
  EXPECT_EQ(speed(4), 450);
  tree.set_speeds({100, 200, 900, 300, 300});
  EXPECT_EQ(speed(0), 100);
  EXPECT_EQ(speed(1), 200);
  EXPECT_EQ(speed(3), 150);
  tree.add(server_on("a", 100));
  EXPECT_EQ(tree.reducer_hosts()[5].host, 0u) << "it shares the card of the workers there";
}

TEST(Tree, OfARosterIsThatOfTheNodesWhichHaveSeenAllOfIt) {
  Roster roster;
  roster.num_workers = 2;
  for (const char* machine : {"a", "b"}) {
    roster.nodes.push_back(server_on(machine, 100, 2));
    roster.nodes.back().role = Role::kWorker;
  }
  Tree seen(roster.nodes, 2);
  for (const size_t shards : {1, 3}) {
    roster.nodes.push_back(server_on("box", 100, shards));
    seen.add(roster.nodes.back());
    ++roster.num_added;
  }
  seen.lose(2);
  roster.lost = {2};
  const Tree told(roster);
  EXPECT_EQ(told.num_serving_indices(), seen.num_serving_indices());
  EXPECT_EQ(told.num_reducer_hosts(), seen.num_reducer_hosts());
  for (size_t host = 0; host < 4; ++host) {
    EXPECT_EQ(told.reducer_hosts()[host].is_lost, seen.reducer_hosts()[host].is_lost);
    EXPECT_EQ(told.reducer_hosts()[host].nic_mbps, seen.reducer_hosts()[host].nic_mbps);
  }
}

}  // namespace
}  // namespace byteps::protocol
