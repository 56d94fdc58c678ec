#include "protocol/nic_survey.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <random>

#include "protocol/pacing.h"

namespace byteps::protocol {
namespace {

constexpr TimeUs kPatienceUs = 1'000;
constexpr TimeUs kDeadlineUs = 1'000'000;
constexpr uint32_t kEpoch = 77;

std::vector<NodeInfo> nodes_on(const std::vector<std::string>& machines, uint32_t num_workers) {
  std::vector<NodeInfo> nodes(machines.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    nodes[i].role = i < num_workers ? Role::kWorker : Role::kServer;
    nodes[i].machine = machines[i];
  }
  return nodes;
}

std::vector<NodeInfo> one_node_each(uint32_t workers, uint32_t servers) {
  std::vector<std::string> machines(workers + servers);
  for (size_t i = 0; i < machines.size(); ++i) machines[i] = "machine" + std::to_string(i);
  return nodes_on(machines, workers);
}

std::vector<std::string> address_of(uint32_t node) { return {"10.0.0.1:" + std::to_string(node)}; }
uint32_t node_at(const ProbeHelper& helper) {
  return static_cast<uint32_t>(std::stoul(helper.addresses.at(0).substr(std::string("10.0.0.1:").size())));
}

// A survey of machines whose cards have these speeds, with the messages that it sends.
class SurveyTest : public testing::Test {
 protected:
  void begin(std::vector<NodeInfo> nodes, uint32_t num_workers) {
    nodes_ = std::move(nodes);
    survey_.emplace(nodes_, num_workers, kLongPathUs);
    ASSERT_TRUE(survey_->is_needed());
    survey_->start(kEpoch, kPatienceUs, kDeadlineUs, 0, orders_);
  }
  // Carries out all orders until there are none left. A hub measures what its own card and those of
  // its helpers allow.
  void apply(const std::function<double(uint32_t)>& mbps_of) {
    while (!orders_.empty()) {
      const NicSurvey::Orders orders = std::exchange(orders_, {});
      // Number of simultaneous measurements that each node takes part in.
      std::map<uint32_t, uint32_t> work_of;
      for (const auto& [node, message] : orders) {
        if (std::holds_alternative<ProbeSetup>(message)) {
          survey_->on_ready(node, {address_of(node)}, 0, orders_);
        } else {
          work_of[node]++;
          double mbps = 0;
          const auto& start = std::get<ProbeStart>(message);
          for (const ProbeHelper& helper : start.helpers) {
            work_of[node_at(helper)]++;
            mbps += mbps_of(node_at(helper));
          }
          mbps = std::min(mbps, mbps_of(node));
          rounds_ = std::max(rounds_, start.round);
          most_helpers_ = std::max(most_helpers_, start.helpers.size());
          fewest_helpers_ = std::min(fewest_helpers_, start.helpers.size());
          hubs_.push_back(node);
          mbps = std::min(mbps, start.connections * mbps_of_connection_);
          if (start.connections > 1) connections_.push_back(start.connections);
          const double bytes_per_s = payload_bytes_per_s(mbps);
          survey_->on_done(node, {start.round, static_cast<uint64_t>(bytes_per_s), rtt_us_, resent_ppm_}, 0,
                           orders_);
        }
      }
      for (const auto& [node, count] : work_of) EXPECT_EQ(count, 1u) << "node " << node << " is disturbed";
    }
  }
  std::vector<uint32_t> speeds() const {
    std::vector<NodeInfo> nodes = nodes_;
    survey_->apply(nodes, false);
    std::vector<uint32_t> speeds;
    for (const NodeInfo& node : nodes) speeds.push_back(node.nic_mbps);
    return speeds;
  }

  std::vector<NodeInfo> nodes_;
  std::optional<NicSurvey> survey_;
  NicSurvey::Orders orders_;
  double mbps_of_connection_ = 1e9;    // what one connection can carry
  uint64_t rtt_us_ = 100;              // of all paths
  uint32_t resent_ppm_ = 0;            // on all paths
  std::vector<uint32_t> hubs_;         // once for each measurement
  std::vector<uint32_t> connections_;  // of second measurements, to each helper
  uint32_t rounds_ = 0;
  size_t most_helpers_ = 0;
  size_t fewest_helpers_ = 99;
};

TEST(NicSurvey, IsNeededWhereASpeedIsUnknownAndMatters) {
  const auto needed = [](std::vector<NodeInfo> nodes, uint32_t num_workers, uint32_t known) {
    for (uint32_t i = 0; i < known; ++i) nodes[i].nic_mbps = 100;
    return NicSurvey(nodes, num_workers, kLongPathUs).is_needed();
  };
  EXPECT_TRUE(needed(one_node_each(2, 0), 2, 0));
  EXPECT_TRUE(needed(one_node_each(2, 1), 2, 2)) << "the server's";
  EXPECT_FALSE(needed(one_node_each(2, 1), 2, 3)) << "all are known";
  EXPECT_FALSE(needed(nodes_on({"a", "a", "a"}, 3), 3, 0)) << "one machine";
  EXPECT_FALSE(needed(one_node_each(1, 2), 1, 0)) << "one machine sums alone";
  EXPECT_TRUE(needed(nodes_on({"a", "a", "b"}, 3), 3, 0));
}

TEST_F(SurveyTest, EveryCardIsMeasuredOnceWithoutDisturbingAnother) {
  for (uint32_t machines = 2; machines <= 130; ++machines) {
    SCOPED_TRACE(machines);
    hubs_.clear();
    rounds_ = 0;
    fewest_helpers_ = 99;
    begin(one_node_each(2, machines - 2), 2);
    apply([](uint32_t) { return 1000; });
    EXPECT_TRUE(survey_->over());
    std::sort(hubs_.begin(), hubs_.end());
    std::vector<uint32_t> all(machines);
    std::iota(all.begin(), all.end(), 0u);
    EXPECT_EQ(hubs_, all);
    EXPECT_LE(rounds_, 7u);
    EXPECT_GE(fewest_helpers_, std::min<size_t>(3, machines - 1));
    EXPECT_EQ(speeds(), std::vector<uint32_t>(machines, 1000));
  }
  EXPECT_LE(most_helpers_, kMaxHelpers);
}

TEST_F(SurveyTest, CardsUpToAsFastAsTheirHelpersTogetherAreMeasuredRight) {
  const std::vector<double> truth = {200, 200, 100, 200, 400, 100};
  begin(one_node_each(4, 2), 4);
  apply([&](uint32_t node) { return truth[node]; });
  EXPECT_EQ(speeds(), (std::vector<uint32_t>{200, 200, 100, 200, 400, 100}));
}

TEST_F(SurveyTest, AFasterOneIsTakenForItsHelpersSum) {
  begin(one_node_each(4, 0), 4);
  apply([&](uint32_t node) { return node == 2 ? 10'000 : 100; });
  EXPECT_EQ(speeds(), (std::vector<uint32_t>{100, 100, 300, 100}));
}

TEST_F(SurveyTest, OneProcessOfEachMachineTakesPartForAll) {
  begin(nodes_on({"a", "a", "b", "b", "a"}, 4), 4);
  std::vector<uint32_t> asked;
  for (const auto& order : orders_) asked.push_back(order.node);
  EXPECT_EQ(asked, (std::vector<uint32_t>{0, 2}));
  apply([](uint32_t) { return 50; });
  EXPECT_EQ(speeds(), (std::vector<uint32_t>{50, 50, 50, 50, 50}));
}

TEST_F(SurveyTest, KnownSpeedsAreKeptAndNotMeasured) {
  auto nodes = one_node_each(4, 0);
  nodes[1].nic_mbps = 123;
  begin(std::move(nodes), 4);
  apply([](uint32_t) { return 1000; });
  EXPECT_EQ(hubs_, (std::vector<uint32_t>{0, 2, 3}));
  EXPECT_EQ(speeds(), (std::vector<uint32_t>{1000, 123, 1000, 1000}));
}

TEST_F(SurveyTest, ACardThatCannotBeMeasuredEndsIt) {
  begin(one_node_each(2, 0), 2);
  orders_.clear();
  survey_->on_ready(0, {{}}, 0, orders_);
  EXPECT_TRUE(survey_->over());
  survey_->on_ready(1, {address_of(1)}, 0, orders_);
  EXPECT_TRUE(orders_.empty());
  EXPECT_EQ(speeds(), (std::vector<uint32_t>{0, 0}));
}

TEST_F(SurveyTest, ASilentNodeEndsItAndMeasuredSpeedsStay) {
  begin(one_node_each(2, 0), 2);
  orders_.clear();
  survey_->on_ready(0, {address_of(0)}, 10, orders_);
  survey_->on_ready(1, {address_of(1)}, 10, orders_);
  survey_->on_done(0, {1, static_cast<uint64_t>(payload_bytes_per_s(300)), 100}, 20, orders_);
  ASSERT_EQ(survey_->next_tick_us(), 20 + kPatienceUs);
  survey_->on_tick(19 + kPatienceUs);
  EXPECT_FALSE(survey_->over());
  survey_->on_tick(20 + kPatienceUs);
  EXPECT_TRUE(survey_->over());
  EXPECT_EQ(survey_->next_tick_us(), kNever);
  EXPECT_EQ(speeds(), (std::vector<uint32_t>{300, 0}));
}

TEST_F(SurveyTest, DoesNotOutlastItsDeadline) {
  begin(one_node_each(2, 0), 2);
  survey_->on_ready(0, {address_of(0)}, kDeadlineUs - 10, orders_);
  survey_->on_ready(1, {address_of(1)}, kDeadlineUs - 10, orders_);
  EXPECT_EQ(survey_->next_tick_us(), kDeadlineUs);
}

TEST_F(SurveyTest, UnexpectedAnswersChangeNothing) {
  begin(one_node_each(2, 0), 2);
  orders_.clear();
  survey_->on_done(0, {1, 1'000'000, 100}, 0, orders_);
  survey_->on_ready(0, {address_of(0)}, 0, orders_);
  survey_->on_ready(0, {address_of(0)}, 0, orders_);
  EXPECT_TRUE(orders_.empty());
  survey_->on_ready(1, {address_of(1)}, 0, orders_);
  ASSERT_EQ(orders_.size(), 1u);
  survey_->on_ready(1, {address_of(1)}, 0, orders_);
  survey_->on_done(1, {1, 1'000'000, 100}, 0, orders_);
  survey_->on_done(0, {2, 1'000'000, 100}, 0, orders_);
  EXPECT_EQ(orders_.size(), 1u);
  EXPECT_FALSE(survey_->over());
  EXPECT_EQ(speeds(), (std::vector<uint32_t>{0, 0}));
}

// Nodes with this number of threads that offer this number of shards, by two transports.
std::vector<NodeInfo> nodes_with(uint32_t num_threads, uint32_t num_shards) {
  auto nodes = one_node_each(3, 0);
  for (NodeInfo& node : nodes) {
    node.num_threads = num_threads;
    for (const char* transport : {"shm", "tcp"})
      node.endpoints.push_back({transport, std::vector<std::string>(num_shards, "address")});
  }
  return nodes;
}

std::vector<size_t> shards_after(const NicSurvey& survey, std::vector<NodeInfo> nodes, bool fit_shards) {
  survey.apply(nodes, fit_shards);
  std::vector<size_t> shards;
  for (const NodeInfo& node : nodes) {
    EXPECT_EQ(node.endpoints[0].addresses.size(), node.endpoints[1].addresses.size());
    shards.push_back(node.num_shards());
  }
  return shards;
}

TEST_F(SurveyTest, ShardsAreLimitedToTheMeasuredSpeed) {
  auto nodes = nodes_with(4, 8);
  nodes[2].nic_mbps = 100;  // this node has chosen four shards itself
  begin(nodes, 3);
  apply([](uint32_t node) { return node == 0 ? 1000 : 50'000; });
  EXPECT_EQ(shards_after(*survey_, nodes, true), (std::vector<size_t>{1, 4, 4}));
  EXPECT_EQ(shards_after(*survey_, nodes, false), (std::vector<size_t>{4, 4, 4})) << "one for each thread";
}

TEST_F(SurveyTest, ACardTooFastForOneThreadIsMeasuredWithAllThreads) {
  mbps_of_connection_ = 5'000;
  begin(nodes_with(4, 8), 3);
  apply([](uint32_t node) { return node == 0 ? 1'000 : 30'000; });
  EXPECT_EQ(hubs_, (std::vector<uint32_t>{0, 1, 1, 2, 2}));
  EXPECT_EQ(connections_, (std::vector<uint32_t>{4, 4}));
  EXPECT_EQ(speeds(), (std::vector<uint32_t>{1'000, 20'000, 20'000}));
  EXPECT_EQ(shards_after(*survey_, nodes_, true), (std::vector<size_t>{1, 4, 4}));
}

TEST_F(SurveyTest, ALongPathThatLosesPacketsGetsAllShardsIfTheyAreFaster) {
  rtt_us_ = kLongPathUs;
  resent_ppm_ = 100;
  mbps_of_connection_ = 50;  // losses limit it
  begin(nodes_with(2, 8), 3);
  apply([](uint32_t node) { return node == 0 ? 60 : 300; });
  EXPECT_EQ(connections_, (std::vector<uint32_t>{8, 8, 8}));
  EXPECT_EQ(speeds(), (std::vector<uint32_t>{60, 300, 300}));
  EXPECT_EQ(shards_after(*survey_, nodes_, true), (std::vector<size_t>{1, 8, 8})) << "60 / 50 is no gain";
}

TEST_F(SurveyTest, OneConnectionThatWasSlowByChanceIsMeasuredAgain) {
  rtt_us_ = kLongPathUs;
  resent_ppm_ = 100;
  begin(nodes_with(1, 8), 3);
  apply([this](uint32_t node) {
    mbps_of_connection_ = connections_.empty() ? 50 : 250;
    return node == 0 ? 280 : 300;
  });
  EXPECT_EQ(hubs_, (std::vector<uint32_t>{0, 0, 0, 1, 1, 2, 2}));
  EXPECT_EQ(speeds(), (std::vector<uint32_t>{300, 300, 300}));
  EXPECT_EQ(shards_after(*survey_, nodes_, true), (std::vector<size_t>{1, 1, 1}));
}

TEST_F(SurveyTest, TwoMachinesHaveAsManyConnectionsAtBoth) {
  rtt_us_ = kLongPathUs;
  resent_ppm_ = 100;
  std::vector<NodeInfo> nodes = nodes_with(1, 8);
  nodes.resize(2);
  for (const double of_second : {100, 250}) {
    connections_.clear();
    hubs_.clear();
    begin(nodes, 2);
    apply([&](uint32_t) {
      mbps_of_connection_ = hubs_.empty() || hubs_.back() == 0 ? 100 : of_second;
      return 300;
    });
    const size_t shards = of_second == 100 ? 8 : 1;
    EXPECT_EQ(shards_after(*survey_, nodes_, true), (std::vector<size_t>{shards, shards}));
  }
}

TEST_F(SurveyTest, APathThatIsNotLongOrLosesNothingHasOneConnectionForEachThread) {
  mbps_of_connection_ = 50;
  for (const auto& [rtt_us, resent_ppm] : {std::pair(kLongPathUs - 1, 100u), std::pair(kLongPathUs, 0u)}) {
    rtt_us_ = static_cast<uint64_t>(rtt_us);
    resent_ppm_ = resent_ppm;
    begin(nodes_with(2, 8), 3);
    apply([](uint32_t) { return 300; });
    EXPECT_TRUE(connections_.empty());
    EXPECT_EQ(shards_after(*survey_, nodes_, true), (std::vector<size_t>{1, 1, 1}));
  }
}

TEST_F(SurveyTest, AMeasurementThatHasFoundOutNothingIsRepeatedOnce) {
  begin(one_node_each(2, 0), 2);
  int calls = 0;
  apply([&](uint32_t) { return ++calls <= 2 ? 0 : 300; });
  EXPECT_EQ(hubs_, (std::vector<uint32_t>{0, 0, 1}));
  EXPECT_EQ(speeds(), (std::vector<uint32_t>{300, 300}));
  hubs_.clear();
  begin(one_node_each(2, 0), 2);
  apply([](uint32_t) { return 0; });
  EXPECT_EQ(hubs_, (std::vector<uint32_t>{0, 0, 1, 1}));
  EXPECT_EQ(speeds(), (std::vector<uint32_t>{0, 0}));
}

TEST_F(SurveyTest, WherePacketsAreLostCardsDifferMoreByChance) {
  resent_ppm_ = 10'000;
  begin(nodes_with(2, 8), 3);
  apply([](uint32_t node) { return std::vector<double>{140, 220, 100}.at(node); });
  EXPECT_TRUE(connections_.empty()) << "several are less exact";
  EXPECT_EQ(speeds(), (std::vector<uint32_t>{140, 220, 140})) << "220 is too much for chance";
}

TEST_F(SurveyTest, LossesAndLongPathsSuitTurns) {
  struct Case {
    uint64_t rtt_us;
    uint32_t resent_ppm;
    bool suits;
  };
  for (const auto& [rtt_us, resent_ppm, suits] :
       {Case{100, 0, false}, Case{1'999, 2'000, false}, Case{2'000, 0, true}, Case{100, 2'001, true}}) {
    rtt_us_ = rtt_us;
    resent_ppm_ = resent_ppm;
    begin(nodes_with(1, 1), 2);
    apply([](uint32_t) { return 300; });
    EXPECT_EQ(survey_->suits_turns(), suits) << rtt_us << " us, " << resent_ppm << " ppm";
  }
}

TEST_F(SurveyTest, ShardsChosenByTheUserStayOnALongPath) {
  rtt_us_ = kLongPathUs;
  resent_ppm_ = 100;
  mbps_of_connection_ = 50;
  begin(nodes_with(1, 1), 3);
  apply([](uint32_t) { return 300; });
  EXPECT_TRUE(connections_.empty()) << "there is nothing to choose";
  EXPECT_EQ(shards_after(*survey_, nodes_, true), (std::vector<size_t>{1, 1, 1}));
}

TEST(NicSurvey, ShardsThatWereOfferedForAMeasurementAreNotUsedWithoutOne) {
  const NicSurvey survey(nodes_with(2, 8), 3, kLongPathUs);
  EXPECT_EQ(shards_after(survey, nodes_with(2, 8), true), (std::vector<size_t>{2, 2, 2}));
}

TEST(EvenOut, MakesNearlyEqualSpeedsEqual) {
  using Speeds = std::vector<double>;
  EXPECT_EQ(even_out({}, kSpeedNoise), Speeds{});
  EXPECT_EQ(even_out({0}, kSpeedNoise), Speeds{0});
  EXPECT_EQ(even_out({198, 203, 199}, kSpeedNoise), (Speeds{203, 203, 203}));
  EXPECT_EQ(even_out({198, 0, 203, 199, 101}, kSpeedNoise), (Speeds{203, 0, 203, 203, 101}));
  EXPECT_EQ(even_out({100, 150, 225}, kSpeedNoise), (Speeds{100, 150, 225}));
}

TEST(EvenOut, RaisesNoSpeedByMoreThanATenthAndKeepsTheOrder) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> speed(50, 500);
  for (int i = 0; i < 500; ++i) {
    std::vector<double> speeds(1 + random() % 20);
    for (double& each : speeds) each = speed(random);
    const std::vector<double> even = even_out(speeds, kSpeedNoise);
    for (size_t a = 0; a < speeds.size(); ++a) {
      EXPECT_LE(even[a], speeds[a] * 1.1 + 1e-9);
      EXPECT_GE(even[a], speeds[a]);
      for (size_t b = 0; b < speeds.size(); ++b) {
        EXPECT_FALSE(speeds[a] <= speeds[b] && even[a] > even[b]);
      }
    }
  }
}

}  // namespace
}  // namespace byteps::protocol
