// Shards of machines with several ranks: sums go to a parent, and its results to the ranks.
#include <array>
#include <bit>
#include <cfloat>
#include <cstring>
#include <utility>

#include "summation/harness.h"
#include "summation/shard.h"

namespace byteps::summation {
namespace {

// Holds the sums sent to the parent until the test answers them.
class FakeParentLink final : public ParentLink {
 public:
  bool reaches(uint32_t root_node) const override { return root_node != kNowhere; }
  void push_pull(transport::EventLoop&, const DataHead& head, Bytes partial, MutableBytes result,
                 UniqueFunction<void(const Result<protocol::Plan>&)> done) override {
    head_ = head;
    partial_.resize(partial.size() / sizeof(int32_t));
    if (!partial.empty()) std::memcpy(partial_.data(), partial.data(), partial.size());
    result_ = result;
    done_ = std::move(done);
  }
  void fail_round(const DataHead& head, const Status& why) override {
    failures_.emplace_back(head.round, why.message());
  }
  void answer(const Values& values, const protocol::Plan& plan = {}) {
    std::memcpy(result_.data(), values.data(), result_.size());
    std::exchange(done_, nullptr)(plan);
  }

  static constexpr uint32_t kNowhere = 9;
  DataHead head_;
  Values partial_;
  MutableBytes result_;
  UniqueFunction<void(const Result<protocol::Plan>&)> done_;
  std::vector<std::pair<uint32_t, std::string>> failures_;
};

// A service of a machine with ranks 0 and 1, beside another machine with rank 2. Root nodes below 2
// are its own: this very shard is then the root, at the other end of the parent link.
class MachineShardTest : public ShardFixture {
 protected:
  MachineShardTest() {
    start({.describe_rank = {"rank 0", "rank 1", "rank 2"},
           .machines = {{"rank 0 and rank 1", "rank 2"}, {0, 0, 1}},
           .ranks = {{"rank 0", "rank 1"}, {0, 1, -1}},
           .bytes_per_s = {},
           .parent_link = &parent_link_,
           .num_final_roots = 0,
           .limits = {}},
          Level::kMachine);
  }
  // Represents its machine at the root in this shard.
  Peer* root_child(uint32_t rank) {
    peers_.push_back(connect(rank));
    return peers_.back().get();
  }
  void contribute_both(bool with_reply_space = false) {
    on_loop([=, this] { peers_[0]->contribute(1, {10, 20, 30, 40}, with_reply_space); });
    on_loop([this] { peers_[1]->contribute(1, {1, 2, 3, 4}); });
  }

  void use_floats() {
    for (const auto& peer : peers_) {
      peer->dtype_ = DType::kFloat32;
      peer->op_ = ReduceOp::kAverage;
    }
  }
  static Values as_values(std::array<float, kCount> floats) {
    const auto bits = std::bit_cast<std::array<int32_t, kCount>>(floats);
    return {bits.begin(), bits.end()};
  }

  FakeParentLink parent_link_;
};

TEST_F(MachineShardTest, TheSumOfTheMachineGoesUpAndTheAnswerComesDownToEveryRank) {
  contribute_both(true);
  EXPECT_EQ(parent_link_.partial_, (Values{11, 22, 33, 44}));
  EXPECT_TRUE(peers_[0]->answers_.empty());
  on_loop([this] { parent_link_.answer({100, 200, 300, 400}); });
  for (const auto& peer : peers_) {
    ASSERT_EQ(peer->answers_.size(), 1u);
    EXPECT_EQ(peer->answers_[0].type, DataType::kResult);
    EXPECT_EQ(result_of(*peer), (Values{100, 200, 300, 400}));
  }
  EXPECT_EQ(peers_[0]->values_, (Values{100, 200, 300, 400})) << "in its reply space";
}

TEST_F(MachineShardTest, EveryRankGetsThePlanOfTheRootsAnswer) {
  contribute_both();
  on_loop([this] { parent_link_.answer({100, 200, 300, 400}, {.partition_scale = 3, .credit = 0}); });
  for (const auto& peer : peers_)
    EXPECT_EQ(peer->answers_.at(0).plan, (protocol::Plan{.partition_scale = 3, .credit = 0}));
}

TEST_F(MachineShardTest, AnAverageOfIntegersIsNotDividedOnItsWayUp) {
  for (const auto& peer : peers_) peer->op_ = ReduceOp::kAverage;
  contribute_both();
  EXPECT_EQ(parent_link_.partial_, (Values{11, 22, 33, 44}));
  EXPECT_EQ(parent_link_.head_.op, ReduceOp::kAverage);
}

TEST_F(MachineShardTest, AnAverageOfFloatsGoesUpAsTheMeanOfTheMachine) {
  use_floats();
  on_loop([this] { peers_[0]->contribute(1, as_values({1, 2, FLT_MAX, -0.0F})); });
  on_loop([this] { peers_[1]->contribute(1, as_values({2, 4, FLT_MAX, -0.0F})); });
  EXPECT_EQ(parent_link_.partial_, as_values({1.5F, 3, FLT_MAX, -0.0F}));
}

TEST_F(MachineShardTest, AMachineWeighsAsManyRanksAsItHas) {
  use_floats();
  Peer* const machine = root_child(1);
  Peer* const other = root_child(2);
  on_loop([&] {
    machine->hello();
    other->hello();
    use_floats();
    machine->contribute(1, as_values({3, 30, FLT_MAX, -0.0F}));
    other->contribute(1, as_values({0, 3, FLT_MAX, -0.0F}));
  });
  constexpr auto kThird = static_cast<float>(1.0 / 3);
  EXPECT_EQ(result_of(*machine), as_values({6 * kThird, 63 * kThird, FLT_MAX, -0.0F}));
}

TEST_F(MachineShardTest, ABroadcastWhoseRootIsElsewhereGoesUpEmpty) {
  for (const auto& peer : peers_) {
    on_loop([&] {
      DataHead head = peer->head(1);
      head.op = ReduceOp::kBroadcast;
      head.root = 2;
      peer->send(head, {});
    });
  }
  ASSERT_TRUE(parent_link_.done_);
  EXPECT_TRUE(parent_link_.partial_.empty());
  on_loop([this] { parent_link_.answer({5, 6, 7, 8}); });
  EXPECT_EQ(result_of(*peers_[1]), (Values{5, 6, 7, 8}));
}

TEST_F(MachineShardTest, AFailureAtTheRootReachesEveryRank) {
  contribute_both(true);
  on_loop([this] { std::exchange(parent_link_.done_, nullptr)(unavailable("rank 2 has left the job")); });
  for (const auto& peer : peers_) {
    ASSERT_EQ(peer->answers_.size(), 1u);
    EXPECT_EQ(peer->answers_[0].type, DataType::kFailed);
    EXPECT_EQ(peer->texts_[0], "rank 2 has left the job");
  }
}

TEST_F(MachineShardTest, ARoundThatFailsOnTheMachineIsToldToTheRoot) {
  on_loop([this] { peers_[0]->contribute(1, {1, 1, 1, 1}); });
  peers_[1]->op_ = ReduceOp::kMax;
  on_loop([this] { peers_[1]->contribute(1, {1, 1, 1, 1}); });
  ASSERT_EQ(parent_link_.failures_.size(), 1u);
  EXPECT_EQ(parent_link_.failures_[0].first, 1u);
  EXPECT_EQ(parent_link_.failures_[0].second, peers_[0]->texts_.at(0));
  EXPECT_FALSE(parent_link_.done_);
}

// Regression, found by simulation: the answers had no round, and the ranks considered the service
// broken.
TEST_F(MachineShardTest, AFailedJobAnswersSumsSentToTheParentOnce) {
  contribute_both(true);
  on_loop([this] { shard_->fail(unavailable("rank 2 is dead")); });
  for (const auto& peer : peers_) {
    ASSERT_EQ(peer->answers_.size(), 1u);
    EXPECT_EQ(peer->texts_[0], "rank 2 is dead");
    EXPECT_EQ(peer->answers_[0].round, 1u);
  }
  EXPECT_TRUE(parent_link_.failures_.empty()) << "the whole job knows";
  on_loop([this] { std::exchange(parent_link_.done_, nullptr)(unavailable("rank 2 is dead")); });
  EXPECT_EQ(peers_[0]->answers_.size(), 1u);
  EXPECT_EQ(peers_[0]->values_, (Values{10, 20, 30, 40})) << "lent memory is not touched any more";
}

TEST_F(MachineShardTest, ARankThatLeavesWhileItsSumIsAtTheParentGetsNothingAndTheOthersGetTheResult) {
  contribute_both(true);
  on_loop([this] { peers_[0]->goodbye(); });
  on_loop([this] { parent_link_.answer({5, 6, 7, 8}); });
  EXPECT_EQ(peers_[0]->values_, (Values{10, 20, 30, 40}));
  EXPECT_EQ(result_of(*peers_[1]), (Values{5, 6, 7, 8}));
}

TEST_F(MachineShardTest, AContributionThatCannotReachItsRootIsRefused) {
  peers_[0]->top_ = FakeParentLink::kNowhere;
  on_loop([this] { peers_[0]->contribute(1, {1, 1, 1, 1}); });
  ASSERT_TRUE(peers_[0]->closed_);
  EXPECT_EQ(lost_, std::vector<uint32_t>{0});
}

TEST_F(MachineShardTest, OneRankRepresentsItsWholeMachineAtTheRoot) {
  Peer* const machine = root_child(1);
  Peer* const other = root_child(2);
  on_loop([&] {
    machine->hello();
    other->hello();
    machine->op_ = other->op_ = ReduceOp::kAverage;
    machine->contribute(1, {30, 60, 90, 120});
    other->contribute(1, {0, 0, 0, 30});
  });
  EXPECT_EQ(result_of(*machine), (Values{10, 20, 30, 50})) << "over three ranks";
}

TEST_F(MachineShardTest, AChildThatSaysItCannotContributeFailsTheRoundWithItsReason) {
  Peer* const machine = root_child(1);
  Peer* const other = root_child(2);
  const std::string why = "rank 0 asks for sum, rank 1 for max";
  on_loop([&] {
    machine->hello();
    other->hello();
    other->contribute(1, {1, 1, 1, 1});
    DataHead head = machine->head(1);
    head.type = DataType::kFailed;
    head.code = StatusCode::kInvalidArgument;
    machine->send(head, as_bytes(why));
  });
  ASSERT_EQ(other->texts_.size(), 1u);
  EXPECT_EQ(other->texts_[0], why);
  EXPECT_EQ(other->answers_[0].code, StatusCode::kInvalidArgument);
  EXPECT_TRUE(machine->answers_.empty());
}

// All ranks are on this machine, and so is the root.
class OnlyMachineTest : public ShardFixture {
 protected:
  OnlyMachineTest() {
    start({.describe_rank = {"rank 0", "rank 1"},
           .machines = {{"rank 0 and rank 1"}, {0, 0}},
           .ranks = {{"rank 0", "rank 1"}, {0, 1}},
           .bytes_per_s = {},
           .parent_link = &parent_link_,
           .num_final_roots = 2,
           .limits = {}},
          Level::kMachine);
  }
  FakeParentLink parent_link_;
};

TEST_F(OnlyMachineTest, ItHasNoParentUnlessTheRootIsAServer) {
  for (const auto& peer : peers_) peer->op_ = ReduceOp::kAverage;
  on_loop([this] {
    peers_[0]->contribute(1, {10, 20, 30, 40});
    peers_[1]->contribute(1, {0, 0, 0, 0});
  });
  EXPECT_EQ(result_of(*peers_[0]), (Values{5, 10, 15, 20}));
  EXPECT_FALSE(parent_link_.done_);
  for (const auto& peer : peers_) {
    peer->top_ = 2;
    on_loop([&] { peer->contribute(2, {1, 1, 1, 1}); });
  }
  EXPECT_TRUE(parent_link_.done_);
}

// The root is a server, whose only child is this machine.
TEST_F(OnlyMachineTest, ItsMeanIsTheResultToTheBit) {
  peers_.push_back(connect(0));
  Peer* const machine = peers_.back().get();
  const Values bits = {0x7f812345, static_cast<int32_t>(0x80000000), 1,
                       0x7f7fffff};  // a signalling NaN, -0, …
  on_loop([&] {
    machine->hello();
    machine->dtype_ = DType::kFloat32;
    machine->op_ = ReduceOp::kAverage;
    machine->contribute(1, bits);
  });
  EXPECT_EQ(result_of(*machine), bits);
}

}  // namespace
}  // namespace byteps::summation
