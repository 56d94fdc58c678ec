#include "protocol/pacing.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "protocol/root_assigner.h"

namespace byteps::protocol {
namespace {

std::vector<NodeInfo> paced_nodes(const std::vector<uint32_t>& ranks_of_machine, uint32_t servers,
                                  uint32_t mbps, size_t shards = 1) {
  std::vector<NodeInfo> nodes;
  for (size_t machine = 0; machine < ranks_of_machine.size(); ++machine) {
    for (uint32_t i = 0; i < ranks_of_machine[machine]; ++i) {
      NodeInfo node;
      node.rank = static_cast<int32_t>(nodes.size());
      node.machine = "machine " + std::to_string(machine);
      nodes.push_back(node);
    }
  }
  for (uint32_t server = 0; server < servers; ++server) {
    NodeInfo node;
    node.role = Role::kServer;
    node.rank = static_cast<int32_t>(server);
    node.machine = "cpu " + std::to_string(server);
    nodes.push_back(node);
  }
  for (NodeInfo& node : nodes) {
    node.nic_mbps = mbps;
    node.endpoints = {{"tcp", std::vector<std::string>(shards, "10.0.0.1:1")}};
  }
  return nodes;
}

// Those of the roots of each reducer host.
std::vector<std::set<uint16_t>> used_serving_indices(const Tree& tree) {
  const uint32_t hosts = tree.num_reducer_hosts();
  RootAssigner assigner(tree, std::vector<double>(hosts, 1.0 / hosts));
  std::vector<std::set<uint16_t>> used(hosts);
  for (uint32_t i = 0; i < hosts * tree.num_serving_indices() * 4; ++i) {
    const RootLocation location = assigner.next(1);
    used[location.reducer_host].insert(location.serving_index);
  }
  return used;
}

// Compares the rates of all connections of each card, in both directions, with the card's speed.
TEST(Pace, EveryCardIsBusyAndNoneIsOverloaded) {
  struct Case {
    std::vector<uint32_t> ranks;
    uint32_t servers;
    size_t shards;
  };
  for (const Case& job :
       {Case{{1, 1, 1, 1}, 0, 1}, Case{{1, 1, 1, 1}, 2, 1}, Case{{1, 1, 1}, 3, 2},
        Case{{1, 1, 1, 1, 1, 1}, 3, 1}, Case{{2, 2, 2}, 0, 1}, Case{{3, 1}, 0, 2}, Case{{4, 4, 4}, 1, 3},
        // Roots use a part of the ranks and shards only.
        Case{std::vector<uint32_t>(40, 4), 8, 4}, Case{std::vector<uint32_t>(520, 1), 40, 4}}) {
    uint32_t workers = 0;
    for (const uint32_t ranks : job.ranks) workers += ranks;
    const std::vector<NodeInfo> nodes = paced_nodes(job.ranks, job.servers, 1000, job.shards);
    Tree tree(nodes, workers);
    tree.let_take_turns();
    const std::vector<double> shares = *reducer_host_shares(tree.reducer_hosts(), {});
    const Pace pace(tree, shares);
    std::vector<double> out(tree.num_reducer_hosts()), in(tree.num_reducer_hosts());
    const std::vector<std::set<uint16_t>> indices_of_host = used_serving_indices(tree);
    for (uint32_t reducer_host = 0; reducer_host < tree.num_reducer_hosts(); ++reducer_host) {
      for (uint32_t machine = 0; machine < tree.num_machines(); ++machine) {
        if (machine == reducer_host) continue;
        // The rank that serves a partition on the machine, and its root.
        std::set<std::array<uint32_t, 3>> connections;
        for (const uint16_t serving_index : indices_of_host[reducer_host]) {
          const RootLocation location{static_cast<uint16_t>(reducer_host), serving_index};
          const std::vector<uint32_t>& ranks = tree.ranks_of(machine);
          const uint32_t root = tree.root(location);
          connections.insert(
              {ranks[serving_index % ranks.size()], root, tree.shard(root, tree.shard_index(location))});
        }
        for (const auto& [from, root, shard] : connections) {
          auto rate = static_cast<double>(pace.rate(from, root, tree));
          if (tree.take_turns(from, root)) rate /= 2;  // each of two has it half of the time
          out[machine] += rate;
          in[reducer_host] += rate;
          out[reducer_host] += rate;
          in[machine] += rate;
        }
      }
    }
    for (uint32_t reducer_host = 0; reducer_host < tree.num_reducer_hosts(); ++reducer_host) {
      EXPECT_NEAR(out[reducer_host] / payload_bytes_per_s(1000), 1, 0.01) << "reducer host " << reducer_host;
      EXPECT_NEAR(in[reducer_host] / payload_bytes_per_s(1000), 1, 0.01) << "reducer host " << reducer_host;
    }
  }
}

TEST(Pace, ContributionsAndAnswersThatTakeTurnsHaveTheRateOfBoth) {
  Tree tree(paced_nodes({3, 3}, 0, 1000), 6);
  tree.let_take_turns();
  const Pace pace(tree, {0.3, 0.7});
  EXPECT_NEAR(3 * static_cast<double>(pace.rate(0, 3, tree)) / payload_bytes_per_s(1000), 1, 0.01);
  EXPECT_EQ(pace.rate(3, 0, tree), pace.rate(0, 3, tree));
}

TEST(Pace, AConnectionThatHasThePathAloneIsNotLimited) {
  Tree tree(paced_nodes({1, 1}, 0, 1000), 2);
  const Pace pace(tree, {0.5, 0.5});
  EXPECT_GT(pace.rate(0, 1, tree), 0u);
  tree.let_take_turns();
  EXPECT_EQ(pace.rate(0, 1, tree), 0u);
}

TEST(Pace, NobodyIsHeldBackWhereASpeedIsUnknownOrNothingTravels) {
  std::vector<NodeInfo> nodes = paced_nodes({1, 1}, 1, 1000);
  nodes[1].nic_mbps = 0;
  const Tree unknown(nodes, 2);
  const Pace pace(unknown, *reducer_host_shares(unknown.reducer_hosts(), {}));
  EXPECT_EQ(pace.rate(0, 1, unknown), 0u);
  EXPECT_EQ(pace.rate(0, 2, unknown), 0u);

  const Tree alone(paced_nodes({2}, 0, 1000), 2);
  EXPECT_EQ(Pace(alone, {1.0}).rate(0, 0, alone), 0u);
}

TEST(Pace, AServerThatHasComeSinceIsNotLimited) {
  const std::vector<NodeInfo> nodes = paced_nodes({1, 1, 1}, 2, 1000);
  Tree tree({nodes.begin(), nodes.end() - 1}, 3);
  const Pace pace(tree, *reducer_host_shares(tree.reducer_hosts(), {}));
  tree.add(nodes.back());
  EXPECT_GT(pace.rate(0, 3, tree), 0u);
  EXPECT_EQ(pace.rate(0, 4, tree), 0u);
}

TEST(Pacer, LimitsSteadyTrafficAndNotOccasionalBursts) {
  Burst burst(kThreadBurstBytes);
  Pacer pacer(1'000'000);
  EXPECT_EQ(pacer.on_send(200 << 10, 1'000'000, burst), std::nullopt);
  EXPECT_EQ(pacer.on_send(200 << 10, 1'000'001, burst), std::optional<uint64_t>(1'000'000));
  EXPECT_EQ(pacer.on_send(200 << 10, 1'100'000, burst), std::nullopt) << "held already";
  EXPECT_EQ(pacer.on_send(1, 3'000'000, burst), std::optional<uint64_t>(0)) << "after a pause";
  EXPECT_EQ(pacer.on_send(1, 3'000'001, burst), std::nullopt);
}

TEST(Pacer, TheConnectionsOfAThreadShareABurst) {
  Burst burst(kThreadBurstBytes);
  std::deque<Pacer> pacers;
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(pacers.emplace_back(1'000'000).on_send(200 << 10, 1'000'000, burst), std::nullopt) << i;
  Pacer another(1'000'000);
  EXPECT_EQ(another.on_send(200 << 10, 1'000'001, burst), std::optional<uint64_t>(1'000'000));
  EXPECT_EQ(pacers[0].on_send(1, 1'000'002, burst), std::optional<uint64_t>(1'000'000));
}

TEST(Pacer, WithoutARateNothingChanges) {
  Burst burst(kThreadBurstBytes);
  Pacer pacer(0);
  for (TimeUs now = 0; now < 100; ++now) EXPECT_EQ(pacer.on_send(1 << 20, now, burst), std::nullopt);
}

TEST(Pacer, DoesNotHoldTheRest) {
  Burst burst(kThreadBurstBytes);
  Pacer pacer(1'000'000);
  EXPECT_EQ(pacer.on_send(400 << 10, 1'000'000, burst), std::optional<uint64_t>(1'000'000));
  EXPECT_EQ(pacer.on_send(200 << 10, 1'000'001, burst, true), std::optional<uint64_t>(0));
  EXPECT_EQ(pacer.on_send(200 << 10, 1'000'002, burst), std::optional<uint64_t>(1'000'000));
}

TEST(Pacer, ANewLimitHoldsAtOnceForAConnectionThatIsLimited) {
  Burst burst(kThreadBurstBytes);
  Pacer pacer(1'000'000);
  EXPECT_EQ(pacer.set_limit(2'000'000), std::nullopt) << "not limited at the moment";
  EXPECT_EQ(pacer.on_send(1 << 20, 0, burst), 2'000'000u);
  EXPECT_EQ(pacer.set_limit(500'000), 500'000u);
  EXPECT_EQ(pacer.set_limit(500'000), std::nullopt);
  EXPECT_EQ(pacer.set_limit(0), 0u);
  EXPECT_EQ(pacer.on_send(1 << 20, 0, burst), std::nullopt);
  EXPECT_EQ(pacer.set_limit(700'000), std::nullopt);
  EXPECT_EQ(pacer.on_send(1 << 20, 0, burst), 700'000u);
}

}  // namespace
}  // namespace byteps::protocol
