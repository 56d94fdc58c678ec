#include "protocol/link_speeds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "protocol/nic_survey.h"

namespace byteps::protocol {
namespace {

constexpr TimeUs kWindowUs = 1'000'000;

std::vector<NodeInfo> nodes_of(const std::vector<double>& workers, const std::vector<double>& servers) {
  std::vector<NodeInfo> nodes;
  const auto add = [&nodes](Role role, size_t rank, double mbps) {
    const std::string host = (role == Role::kWorker ? "w" : "s") + std::to_string(rank);
    nodes.push_back({.role = role,
                     .rank = static_cast<int32_t>(rank),
                     .host = host,
                     .machine = host,
                     .nic_mbps = static_cast<uint32_t>(mbps),
                     .endpoints = {{"tcp", {"10.0.0.1:1"}}}});
  };
  for (size_t i = 0; i < workers.size(); ++i) add(Role::kWorker, i, workers[i]);
  for (size_t i = 0; i < servers.size(); ++i) add(Role::kServer, i, servers[i]);
  return nodes;
}

// A job whose nodes have bytes to send all the time, over cards that carry `real` Mbit/s.
class Network {
 public:
  Network(const std::vector<double>& workers, const std::vector<double>& servers,
          const std::vector<NodeInfo>& nodes, double noise = kSpeedNoise)
      : num_workers_(static_cast<uint32_t>(workers.size())),
        nodes_(nodes),
        speeds_(nodes, num_workers_, {}, kWindowUs, noise, 0),
        shares_(speeds_.shares()) {
    real_ = workers;
    real_.insert(real_.end(), servers.begin(), servers.end());
  }
  Network(const std::vector<double>& workers, const std::vector<double>& servers)
      : Network(workers, servers, nodes_of(workers, servers)) {}

  // Passes some windows; each flow carries its rate, or as much less as its slower card demands.
  void pass(int windows, double noise = 0) {
    for (; windows > 0; --windows) {
      report(noise);
      now_ += kWindowUs;
      const auto change = speeds_.on_tick(now_);
      if (!change) continue;
      for (size_t i = 0; i < nodes_.size(); ++i) nodes_[i].nic_mbps = change->speeds.nic_mbps[i];
      if (!change->speeds.text.empty()) texts_.push_back(change->speeds.text);
      if (!change->moves) continue;
      shares_ = speeds_.shares();
      ++moves_;
    }
  }
  // Time of a push_pull with the shares of now, over that with the best ones.
  double over_best() const {
    std::vector<ReducerHost> hosts;
    for (size_t i = 0; i < real_.size(); ++i)
      hosts.push_back({.is_server = i >= num_workers_, .nic_mbps = real_[i]});
    return predicted_seconds(hosts, shares_, 1 << 30) /
           predicted_seconds(hosts, *reducer_host_shares(hosts, {}), 1 << 30);
  }

  std::vector<double> real_;
  double unevenness_ = 0;  // the unluckiest flow always carries so much less
  int moves_ = 0;
  std::vector<std::string> texts_;
  TimeUs now_ = 0;

  struct Sent {
    uint32_t from;
    Flow flow;
    double rate;
  };
  std::vector<Sent> flows() const {
    const Tree tree(nodes_, num_workers_);
    const Pace pace(tree, shares_);
    std::vector<Sent> flows;
    for (uint32_t from = 0; from < num_workers_; ++from) {
      for (uint32_t to = 0; to < nodes_.size(); ++to) {
        const auto rate = static_cast<double>(pace.rate(from, to, tree));
        if (from == to || rate == 0) continue;
        flows.push_back({from, {.node = to}, rate});
        flows.push_back({to, {.node = from, .answers = true}, rate});
      }
    }
    return flows;
  }
  void report(double noise) {
    const std::vector<Sent> sent = flows();
    std::vector<double> out(nodes_.size()), in(nodes_.size());
    for (const Sent& each : sent) {
      out[each.from] += each.rate;
      in[each.flow.node] += each.rate;
    }
    for (const Sent& each : sent) {
      const auto part = [&](uint32_t card, double load) {
        return std::min(1.0, payload_bytes_per_s(real_[card]) / load);
      };
      const double both = std::min(part(each.from, out[each.from]), part(each.flow.node, in[each.flow.node]));
      Flow flow = each.flow;
      flow.busy_us = 600'000;
      std::mt19937 own(each.from << 16 | flow.node << 1 | (flow.answers ? 1u : 0u));
      const double luck = (1 + std::uniform_real_distribution(-noise, noise)(random_)) *
                          (1 - unevenness_ * std::uniform_real_distribution(0.0, 1.0)(own));
      flow.bytes = static_cast<uint64_t>(each.rate * both * luck * 0.6);
      EXPECT_TRUE(speeds_.on_report(each.from, {{flow}}, now_).is_ok());
    }
  }

  uint32_t num_workers_;
  std::vector<NodeInfo> nodes_;
  LinkSpeeds speeds_;
  std::vector<double> shares_;
  std::mt19937 random_{1};
};

TEST(LinkSpeeds, NothingMovesWhileSpeedsAreAsBelieved) {
  for (const auto& [workers, servers] : std::vector<std::pair<std::vector<double>, std::vector<double>>>{
           {{200, 200, 200, 200}, {}},
           {{200, 200}, {200}},
           {{200, 100, 200, 200}, {400, 100}},
           {{1000, 1000, 1000}, {1000, 1000, 1000}}}) {
    Network network(workers, servers);
    network.pass(50, 0.1);
    EXPECT_EQ(network.moves_, 0);
  }
}

// As where packets are lost: in each window other flows are slow.
TEST(LinkSpeeds, WhereEqualCardsDifferOnlyLargerDifferencesCount) {
  const std::vector<double> workers(4, 100), servers(2, 100);
  for (const double noise : {kSpeedNoise, kSpeedNoiseWithLosses}) {
    Network network(workers, servers, nodes_of(workers, servers), noise);
    network.unevenness_ = 0.3;
    network.pass(200, 0.2);
    EXPECT_EQ(network.moves_ == 0, noise == kSpeedNoiseWithLosses) << testing::PrintToString(network.texts_);
    network.real_[1] = 25;
    network.pass(20, 0.2);
    EXPECT_LT(network.over_best(), 1.3) << testing::PrintToString(network.texts_);
  }
}

TEST(LinkSpeeds, SharesFollowCardsThatBecomeSlower) {
  struct Case {
    std::vector<double> workers, servers;
    std::vector<std::pair<size_t, double>> slower;  // card, factor
  };
  const Case cases[] = {
      {{200, 200, 200, 200}, {}, {{1, 0.25}}},
      {{200, 200, 200, 200}, {}, {{1, 0.7}}},
      {{200, 200, 200, 200}, {}, {{0, 0.25}, {3, 0.5}}},
      {{200, 200, 200}, {}, {{2, 0.25}}},
      {{200, 200, 200}, {200}, {{3, 0.25}}},
      {{200, 200, 200, 200}, {200, 200}, {{4, 0.25}}},
      {{200, 200, 200, 200}, {200, 200}, {{5, 0.25}, {0, 0.25}}},
      {{200, 100, 200, 200}, {400, 100}, {{4, 0.25}}},
      {{25'000, 25'000, 25'000, 25'000, 25'000, 25'000, 25'000, 25'000}, {}, {{7, 0.25}}},
  };
  for (const Case& c : cases) {
    Network network(c.workers, c.servers);
    network.pass(5, 0.05);
    for (const auto& [card, factor] : c.slower) network.real_[card] *= factor;
    EXPECT_GT(network.over_best(), 1.1);
    network.pass(3, 0.05);
    EXPECT_LE(network.moves_, 1);
    network.pass(5, 0.05);
    EXPECT_LT(network.over_best(), 1.05) << testing::PrintToString(network.texts_);
    EXPECT_LE(network.moves_, 2);
    const size_t slow = c.slower.front().first;
    const std::string host =
        slow < c.workers.size() ? "w" + std::to_string(slow) : "s" + std::to_string(slow - c.workers.size());
    ASSERT_FALSE(network.texts_.empty());
    EXPECT_NE(network.texts_.front().find(host + ": "), std::string::npos) << network.texts_.front();
  }
}

TEST(LinkSpeeds, SharesReturnWhenACardIsAsFastAsBefore) {
  for (const double factor : {0.25, 0.6, 0.1}) {
    Network network({200, 200, 200, 200}, {200});
    network.real_[2] *= factor;
    network.pass(8, 0.02);
    EXPECT_LT(network.over_best(), 1.05);
    network.real_[2] = 200;
    network.pass(70, 0.02);
    EXPECT_LT(network.over_best(), 1.05) << factor << testing::PrintToString(network.texts_);
  }
}

TEST(LinkSpeeds, ATryNeverShowsMoreThanTheCardCarries) {
  for (const auto& [workers, servers, slow] :
       std::vector<std::tuple<std::vector<double>, std::vector<double>, size_t>>{
           {{200, 200, 200, 200}, {200, 200}, 4}, {{200, 200, 200, 200}, {}, 1}}) {
    Network network(workers, servers);
    network.real_[slow] = 50;
    network.pass(8);
    for (int window = 0; window < 100; ++window) {
      network.pass(1);
      if (!network.texts_.back().starts_with("faster")) continue;
      EXPECT_LT(network.over_best(), 1.1) << testing::PrintToString(network.texts_);
    }
    EXPECT_LE(network.texts_.size(), 2u) << testing::PrintToString(network.texts_);
  }
}

// Connections are paced: without a try, all would stay as slow as they were measured.
TEST(LinkSpeeds, WhatWasMeasuredTooSlowWhereLossesWereSeenIsTriedSoon) {
  const std::vector<double> measured(4, 60);
  Network network(measured, {60, 60}, nodes_of(measured, {60, 60}), kSpeedNoiseWithLosses);
  network.real_.assign(6, 100);
  network.pass(25);
  for (const NodeInfo& node : network.nodes_) EXPECT_GT(node.nic_mbps, 85u);
  EXPECT_EQ(network.moves_, 0) << "all cards are equal";
  network.pass(100);
  for (const NodeInfo& node : network.nodes_) EXPECT_NEAR(node.nic_mbps, 100, 10);
}

// What a try costs: windows in which roots are elsewhere.
TEST(LinkSpeeds, TriesThatFailAreRare) {
  Network network({200, 200, 200, 200}, {});
  network.real_[2] = 50;
  network.pass(8);
  const int moves = network.moves_;
  network.pass(1000);
  EXPECT_LE(network.moves_ - moves, 20);
  EXPECT_LT(network.over_best(), 1.05);
}

TEST(LinkSpeeds, ASlowerNetworkMovesNothing) {
  Network network({200, 200, 200, 200}, {200, 200});
  for (double& mbps : network.real_) mbps = 60;
  network.pass(50, 0.05);
  EXPECT_EQ(network.moves_, 0);
}

// As where processors are the limit.
TEST(LinkSpeeds, UnevenFlowsOfEqualCardsMoveNothing) {
  for (const double unevenness : {0.2, 0.4, 0.6}) {
    Network network({200, 200, 200, 200, 200, 200}, {200, 200});
    network.unevenness_ = unevenness;
    for (double& mbps : network.real_) mbps = 100;
    network.pass(70, 0.1);
    // At most once for a card that happens to have the unlucky flows.
    EXPECT_LE(network.moves_, unevenness > 0.5 ? 2 : 0) << testing::PrintToString(network.texts_);
  }
}

TEST(LinkSpeeds, ShortStallsMoveNothing) {
  Network network({200, 200, 200, 200}, {});
  for (int i = 0; i < 20; ++i) {
    network.real_[1] = 20;
    network.pass(2);
    network.real_[1] = 200;
    network.pass(1);
  }
  EXPECT_EQ(network.moves_, 0);
}

TEST(LinkSpeeds, AStoppedFlowIsNotASlowOne) {
  Network network({200, 200, 200, 200}, {});
  for (int i = 0; i < 10; ++i) {
    for (auto& sent : network.flows()) {
      if (sent.from == 1 || sent.flow.node == 1) continue;
      sent.flow.busy_us = 1'000'000;
      sent.flow.bytes = static_cast<uint64_t>(sent.rate);
      EXPECT_TRUE(network.speeds_.on_report(sent.from, {{sent.flow}}, network.now_).is_ok());
    }
    EXPECT_TRUE(network.speeds_.on_report(1, {{{.node = 0, .busy_us = 1'000'000}}}, network.now_).is_ok());
    network.now_ += kWindowUs;
    EXPECT_FALSE(network.speeds_.on_tick(network.now_));
  }
}

TEST(LinkSpeeds, ATickIsDueOnlyWhileThereAreReports) {
  Network network({200, 200, 200}, {});
  EXPECT_EQ(network.speeds_.next_tick_us(), kNever);
  network.report(0);
  EXPECT_EQ(network.speeds_.next_tick_us(), kWindowUs);
  EXPECT_FALSE(network.speeds_.on_tick(kWindowUs));
  EXPECT_EQ(network.speeds_.next_tick_us(), 2 * kWindowUs);
  EXPECT_FALSE(network.speeds_.on_tick(2 * kWindowUs));
  EXPECT_EQ(network.speeds_.next_tick_us(), kNever);
}

TEST(LinkSpeeds, AToldSpeedStays) {
  std::vector<NodeInfo> nodes = nodes_of({200, 200, 200, 200}, {});
  nodes[1].nic_is_told = true;
  Network network({200, 50, 200, 50}, {}, nodes);
  network.pass(20);
  EXPECT_EQ(network.nodes_[1].nic_mbps, 200u);
  EXPECT_LT(network.nodes_[3].nic_mbps, 100u);
}

TEST(LinkSpeeds, LearnsOnlyWhereSharesDependOnUnknownSpeeds) {
  const auto learns = [](std::vector<NodeInfo> nodes, uint32_t workers, const PlacementPolicy& policy = {}) {
    return LinkSpeeds(std::move(nodes), workers, policy, kWindowUs, kSpeedNoise, 0).learns();
  };
  EXPECT_TRUE(learns(nodes_of({200, 200}, {}), 2));
  EXPECT_FALSE(learns(nodes_of({200}, {}), 1)) << "one machine";
  EXPECT_FALSE(learns(nodes_of({200, 0}, {}), 2)) << "an unknown speed";
  EXPECT_FALSE(learns(nodes_of({200, 200}, {200}), 2, {.kind = PlacementPolicy::Kind::kPs}));
  std::vector<NodeInfo> told = nodes_of({200, 200}, {});
  for (NodeInfo& node : told) node.nic_is_told = true;
  EXPECT_FALSE(learns(told, 2));
  EXPECT_FALSE(LinkSpeeds(nodes_of({200, 200}, {}), 2, {}, 0, kSpeedNoise, 0).learns()) << "no reports";
}

TEST(LinkSpeeds, ServersOfOneMachineShareItsCard) {
  std::vector<NodeInfo> nodes = nodes_of({200, 200, 200}, {200, 200});
  nodes[4].machine = nodes[3].machine;
  Network network({200, 200, 200}, {100, 100}, nodes);
  network.pass(5);
  network.real_[0] = 50;
  network.pass(8);
  EXPECT_LT(network.nodes_[0].nic_mbps, 70u);
  EXPECT_EQ(network.nodes_[3].nic_mbps, 200u);
  EXPECT_EQ(network.nodes_[4].nic_mbps, 200u);
}

TEST(LinkSpeeds, AReportAboutANodeThatDoesNotExistIsAnError) {
  Network network({200, 200}, {});
  EXPECT_EQ(network.speeds_.on_report(0, {{{.node = 2}}}, 0).code(), StatusCode::kDataLoss);
}

NodeInfo newcomer(uint32_t mbps, const std::string& host = "new") {
  return {.role = Role::kServer,
          .host = host,
          .machine = host,
          .nic_mbps = mbps,
          .endpoints = {{"tcp", {"10.0.0.1:1"}}}};
}

TEST(LinkSpeedsOfNewcomers, AServerThatComesGetsTheShareOfOneThatWasThereFromTheStart) {
  LinkSpeeds speeds(nodes_of({200, 200, 200}, {400}), 3, {}, kWindowUs, kSpeedNoise, 0);
  const LinkSpeeds::Change change = speeds.add(newcomer(100), 0);
  EXPECT_TRUE(change.moves);
  EXPECT_EQ(change.speeds.nic_mbps, (std::vector<uint32_t>{200, 200, 200, 400, 100}));
  const LinkSpeeds from_start(nodes_of({200, 200, 200}, {400, 100}), 3, {}, kWindowUs, kSpeedNoise, 0);
  for (size_t host = 0; host < 5; ++host) EXPECT_NEAR(speeds.shares()[host], from_start.shares()[host], 1e-9);
  speeds.lose(4);
  EXPECT_EQ(speeds.shares()[4], 0);
}

TEST(LinkSpeedsOfNewcomers, AnUnknownCardCountsAsTheOtherServers) {
  LinkSpeeds known(nodes_of({200, 200, 200}, {400, 600}), 3, {}, kWindowUs, kSpeedNoise, 0);
  EXPECT_EQ(known.add(newcomer(0), 0).speeds.nic_mbps.back(), 500u);
  LinkSpeeds alone(nodes_of({200, 100, 300}, {}), 3, {}, kWindowUs, kSpeedNoise, 0);
  EXPECT_EQ(alone.add(newcomer(0), 0).speeds.nic_mbps.back(), 200u);
  LinkSpeeds unknown(nodes_of({0, 0, 0}, {0}), 3, {}, kWindowUs, kSpeedNoise, 0);
  EXPECT_EQ(unknown.add(newcomer(0), 0).speeds.nic_mbps.back(), 0u);
  EXPECT_NEAR(unknown.shares()[4], unknown.shares()[3], 1e-9);
}

TEST(LinkSpeedsOfNewcomers, WithWeightsItGetsTheMeanOfTheServers) {
  const PlacementPolicy weights{.kind = PlacementPolicy::Kind::kWeights, .weights = {1, 1, 2, 4}};
  LinkSpeeds speeds(nodes_of({0, 0}, {0, 0}), 2, weights, kWindowUs, kSpeedNoise, 0);
  speeds.add(newcomer(0), 0);
  EXPECT_NEAR(speeds.shares()[4], 3.0 / 11, 1e-9);
}

TEST(LinkSpeedsOfNewcomers, TheSpeedOfTheirCardsIsLearnedAsWell) {
  const std::vector<NodeInfo> at_start = nodes_of({200, 200, 200}, {200});
  LinkSpeeds speeds(at_start, 3, {}, kWindowUs, kSpeedNoise, 0);
  speeds.add(newcomer(200), 0);
  std::vector<NodeInfo> nodes = at_start;
  nodes.push_back(newcomer(200));
  bool is_slower = false;
  for (TimeUs now = kWindowUs; now < 20 * kWindowUs; now += kWindowUs) {
    const Pace pace(speeds.tree(), speeds.shares());
    for (uint32_t from = 0; from < 3; ++from) {
      for (uint32_t to = 3; to < 5; ++to) {
        const uint64_t due = pace.rate(from, to, speeds.tree());
        const Flow flow{.node = to, .bytes = to == 4 ? due / 4 : due, .busy_us = kWindowUs};
        if (due == 0) continue;
        EXPECT_TRUE(speeds.on_report(from, {{flow}}, now - 1).is_ok());
      }
    }
    const auto change = speeds.on_tick(now);
    if (change && change->speeds.nic_mbps[4] < 100) is_slower = true;
  }
  EXPECT_TRUE(is_slower);
  EXPECT_LT(speeds.shares()[4], speeds.shares()[3]);
}

}  // namespace
}  // namespace byteps::protocol
