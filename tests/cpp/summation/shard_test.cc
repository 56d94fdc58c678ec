// The trees' part of a shard; what it keeps is store_test's.
#include "summation/shard.h"

#include <array>
#include <bit>
#include <cfloat>

#include "summation/harness.h"
#include "support/log_reader.h"

namespace byteps::summation {
namespace {

// A root of two machines of one rank each.
class ShardTest : public ShardFixture {
 protected:
  ShardTest() {
    start({.describe_rank = {"rank 0", "rank 1"},
           .machines = {{"rank 0", "rank 1"}, {0, 1}},
           .ranks = {},
           .bytes_per_s = {},
           .limits = {}},
          Level::kCluster);
  }
};

TEST_F(ShardTest, AnswersEveryChildOnceAllHaveContributed) {
  on_loop([this] { peers_[1]->contribute(1, {1, 2, 3, 4}); });
  EXPECT_TRUE(peers_[1]->answers_.empty());
  on_loop([this] { peers_[0]->contribute(1, {10, 20, 30, 40}); });
  for (const auto& peer : peers_) {
    ASSERT_EQ(peer->answers_.size(), 1u);
    EXPECT_EQ(peer->answers_[0].type, DataType::kResult);
    EXPECT_EQ(result_of(*peer), (Values{11, 22, 33, 44}));
  }
  EXPECT_EQ(metrics_.sums.load(), 1u);
}

TEST_F(ShardTest, TheResultOfALentContributionIsPutIntoItsReplySpace) {
  on_loop([this] { peers_[0]->contribute(1, {10, 20, 30, 40}, true); });
  on_loop([this] { peers_[1]->contribute(1, {1, 2, 3, 4}); });
  ASSERT_EQ(peers_[0]->answers_.size(), 1u);
  EXPECT_EQ(peers_[0]->values_, (Values{11, 22, 33, 44}));
  EXPECT_EQ(result_of(*peers_[0]), (Values{11, 22, 33, 44}));
  EXPECT_EQ(result_of(*peers_[1]), (Values{11, 22, 33, 44}));
}

TEST_F(ShardTest, ARepeatedContributionCountsOnce) {
  on_loop([this] {
    peers_[0]->contribute(1, {1, 1, 1, 1});
    peers_[0]->send(peers_[0]->head(1), std::as_bytes(std::span(peers_[0]->values_)));
    peers_[1]->contribute(1, {2, 2, 2, 2});
  });
  EXPECT_EQ(result_of(*peers_[1]), (Values{3, 3, 3, 3}));
  EXPECT_EQ(peers_[0]->answers_.size(), 1u);
}

TEST_F(ShardTest, ARoundBeforeTheAnswerToTheLastOneClosesThatConnectionOnly) {
  on_loop([this] {
    peers_[0]->contribute(1, {1, 1, 1, 1});
    peers_[0]->send(peers_[0]->head(2), std::as_bytes(std::span(peers_[0]->values_)));
  });
  ASSERT_TRUE(peers_[0]->closed_);
  EXPECT_EQ(lost_, std::vector<uint32_t>{0});
  EXPECT_FALSE(peers_[1]->closed_);
}

TEST_F(ShardTest, NothingCountsBeforeTheHello) {
  const auto stranger = connect(1);
  on_loop([&] { stranger->contribute(1, {9, 9, 9, 9}); });
  EXPECT_TRUE(stranger->closed_);
  EXPECT_TRUE(lost_.empty()) << "nobody knows who it was";
}

TEST_F(ShardTest, HellosOfRanksThatDoNotExistAreNoHellos) {
  const auto stranger = connect(2);
  on_loop([&] { stranger->hello(); });
  EXPECT_TRUE(stranger->closed_);
}

TEST_F(ShardTest, ASecondConnectionOfARankIsRefusedWithoutHarm) {
  const auto twin = connect(0);
  on_loop([&] { twin->hello(); });
  EXPECT_TRUE(twin->closed_);
  EXPECT_FALSE(peers_[0]->closed_);
  EXPECT_TRUE(lost_.empty());
}

TEST_F(ShardTest, AHelloOfAnotherEpochIsOfAnotherJob) {
  on_loop([this] { peers_[0]->close(); });
  lost_.clear();
  const auto stray = connect(0);
  stray->epoch_ = kEpoch + 1;
  on_loop([&] { stray->hello(); });
  EXPECT_TRUE(stray->closed_);
  EXPECT_TRUE(lost_.empty());
}

TEST_F(ShardTest, AChildThatLeftFailsTheOthersRounds) {
  on_loop([this] { peers_[1]->goodbye(); });
  on_loop([this] { peers_[0]->contribute(1, {1, 1, 1, 1}); });
  ASSERT_EQ(peers_[0]->answers_.size(), 1u);
  EXPECT_EQ(peers_[0]->answers_[0].type, DataType::kFailed);
  EXPECT_EQ(peers_[0]->texts_[0], "rank 1 has left the job");
  EXPECT_TRUE(lost_.empty());
}

TEST_F(ShardTest, WhatALeavingChildHadLentStillCounts) {
  on_loop([this] {
    peers_[1]->contribute(1, {1, 2, 3, 4}, true);
    peers_[1]->goodbye();
  });
  peers_[1]->values_ = {0, 0, 0, 0};  // its owner may do so: it has left
  on_loop([this] { peers_[0]->contribute(1, {10, 20, 30, 40}); });
  EXPECT_EQ(result_of(*peers_[0]), (Values{11, 22, 33, 44}));
  EXPECT_EQ(peers_[1]->values_, (Values{0, 0, 0, 0}));
}

// Shared memory goes away with its connection.
TEST_F(ShardTest, WhatALostChildHadLentIsCopiedBeforeItsConnectionGoes) {
  on_loop([this] { peers_[1]->contribute(1, {1, 2, 3, 4}, true); });
  on_loop([this] { peers_[1]->close(); });
  peers_[1]->values_ = {0, 0, 0, 0};
  on_loop([this] { peers_[0]->contribute(1, {10, 20, 30, 40}); });
  EXPECT_EQ(result_of(*peers_[0]), (Values{11, 22, 33, 44}));
  EXPECT_EQ(peers_[1]->values_, (Values{0, 0, 0, 0}));
}

TEST_F(ShardTest, RoomForAnAnswerOfAnotherSizeClosesTheConnection) {
  on_loop([this] {
    peers_[0]->values_.resize(kCount + 1);
    peers_[0]->send(peers_[0]->head(1), std::as_bytes(std::span(peers_[0]->values_).first(kCount)), true);
  });
  EXPECT_EQ(peers_[0]->closed_->code(), StatusCode::kUnavailable);
  EXPECT_EQ(lost_, std::vector<uint32_t>{0});
}

TEST_F(ShardTest, AFailedJobAnswersAllAndTouchesNoLentMemory) {
  on_loop([this] { peers_[0]->contribute(1, {1, 2, 3, 4}, true); });
  on_loop([this] { shard_->fail(unavailable("rank 1 is dead")); });
  ASSERT_EQ(peers_[0]->answers_.size(), 1u);
  EXPECT_EQ(peers_[0]->texts_[0], "rank 1 is dead");
  on_loop([this] { peers_[1]->contribute(1, {1, 1, 1, 1}); });
  EXPECT_EQ(peers_[1]->texts_.at(0), "rank 1 is dead");
  EXPECT_EQ(peers_[0]->values_, (Values{1, 2, 3, 4}));
}

TEST_F(ShardTest, ABrokenConnectionIsReportedAndItsAnswersGoNowhere) {
  on_loop([this] { peers_[0]->contribute(1, {1, 1, 1, 1}); });
  on_loop([this] { peers_[0]->close(); });
  on_loop([this] { peers_[1]->contribute(1, {2, 2, 2, 2}); });
  EXPECT_EQ(lost_, std::vector<uint32_t>{0});
  EXPECT_EQ(result_of(*peers_[1]), (Values{3, 3, 3, 3}));
}

TEST_F(ShardTest, LeavingSaysGoodbyeAndEndsWhenAllChildrenAreGone) {
  EventFlag left;
  on_loop([&] { shard_->leave(now_us() + 10'000'000, [&] { left.set(); }); });
  for (const auto& peer : peers_) {
    ASSERT_EQ(peer->answers_.size(), 1u);
    EXPECT_EQ(peer->answers_[0].type, DataType::kGoodbye);
    on_loop([&] { peer->close(); });
  }
  EXPECT_EQ(left.wait(now_us() + 5'000'000), EventFlag::Wake::kSet);
}

// Rank 0 can lend one contribution at a time, and rank 1 contributes in the other order.
TEST_F(ShardTest, LoansThatTheirChildNeedsGoBackThoughTheirRoundsWait) {
  on_loop([this] { peers_[0]->close(); });
  peers_[0] = connect_shm(0, kCount * sizeof(int32_t));
  const auto contribute = [this](uint32_t rank, uint32_t tensor) {
    DataHead head = peers_[rank]->head(1);
    head.key.tensor = tensor;
    peers_[rank]->values_ = {1, 2, 3, static_cast<int32_t>(tensor)};
    peers_[rank]->send(head, std::as_bytes(std::span(peers_[rank]->values_)), true);
  };
  EventFlag answered;
  on_loop([&] {
    peers_[0]->hello();
    contribute(0, 7);
  });
  on_loop([&] {
    contribute(0, 8);
    peers_[1]->when_answered_ = [&] { contribute(1, 7); };
    peers_[0]->when_answered_ = [&] {
      if (peers_[0]->answers_.size() == 2) answered.set();
    };
    contribute(1, 8);
  });
  EXPECT_EQ(answered.wait(now_us() + 10'000'000), EventFlag::Wake::kSet);
  on_loop([] {});
  EXPECT_EQ(peers_[0]->answers_.at(0).key.tensor, 8u);
  EXPECT_EQ(result_of(*peers_[0], 0), (Values{2, 4, 6, 16}));
  EXPECT_EQ(result_of(*peers_[0], 1), (Values{2, 4, 6, 14}));
}

// Found by simulation: a survivor's goodbye overtook the scheduler's verdict, and the survivor was taken for the cause.
TEST_F(ShardTest, AfterAFailureNobodyGetsAGoodbye) {
  EventFlag left;
  on_loop([this] { shard_->fail(unavailable("rank 1 is dead")); });
  on_loop([&] { shard_->leave(now_us() + 10'000'000, [&] { left.set(); }); });
  for (const auto& peer : peers_) {
    EXPECT_TRUE(peer->answers_.empty());
    on_loop([&] { peer->close(); });
  }
  EXPECT_EQ(left.wait(now_us() + 5'000'000), EventFlag::Wake::kSet);
}

TEST_F(ShardTest, AFailureEndsTheWaitForAChildThatDoesNotRead) {
  std::unique_ptr<transport::Connection> stopped;
  EventFlag left;
  on_loop([&] {
    auto [mine, other] = transport::make_inproc_pair(*loop_, *loop_);
    stopped = std::move(mine);
    shard_->adopt(std::move(other));
    shard_->leave(kNever, [&] { left.set(); });
  });
  EXPECT_FALSE(left.is_set());
  on_loop([this] { shard_->fail(unavailable("rank 1 is dead")); });
  EXPECT_TRUE(left.is_set());
  on_loop([&] { stopped.reset(); });
}

class WarningShardTest : public ShardFixture {
 protected:
  WarningShardTest() {
    start({.describe_rank = {"rank 0", "rank 1"},
           .machines = {{"rank 0", "rank 1"}, {0, 1}},
           .ranks = {},
           .bytes_per_s = {},
           .limits = {.stall_warning_us = 10'000, .op_timeout_us = 600'000'000}},
          Level::kCluster);
  }
};

TEST_F(WarningShardTest, AWarningDoesNotWaitForTheDeadlineOfAnEarlierRound) {
  LogReader log;
  on_loop([this] { peers_[0]->contribute(1, {1, 1, 1, 1}); });
  ASSERT_TRUE(log.wait_for("for rank 1"));  // next, this round would fail
  on_loop([this] { peers_[1]->contribute(1, {2, 2, 2, 2}); });
  on_loop([this] { peers_[0]->contribute(2, {3, 3, 3, 3}); });
  EXPECT_TRUE(log.wait_for("for rank 1"));
}

// What goes up is kept, until the test answers it.
class FakeUplink final : public ParentLink {
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

// A service of a machine with ranks 0 and 1, beside another machine with rank 2. Tops below 2 are its own: the node of
// this very shard is the root there, at the end of the parent_link.
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
  // Speaks for its machine to the root in this shard.
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

  FakeUplink parent_link_;
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

// Found by simulation: the answers named no round, and the ranks took the service for broken.
TEST_F(MachineShardTest, AFailedJobAnswersWhatIsOnItsWayUpOnce) {
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

TEST_F(MachineShardTest, ARankThatLeavesWhileItsSumIsUpGetsNothingAndTheOthersGetTheResult) {
  contribute_both(true);
  on_loop([this] { peers_[0]->goodbye(); });
  on_loop([this] { parent_link_.answer({5, 6, 7, 8}); });
  EXPECT_EQ(peers_[0]->values_, (Values{10, 20, 30, 40}));
  EXPECT_EQ(result_of(*peers_[1]), (Values{5, 6, 7, 8}));
}

TEST_F(MachineShardTest, WhatCannotReachItsRootIsNotTaken) {
  peers_[0]->top_ = FakeUplink::kNowhere;
  on_loop([this] { peers_[0]->contribute(1, {1, 1, 1, 1}); });
  ASSERT_TRUE(peers_[0]->closed_);
  EXPECT_EQ(lost_, std::vector<uint32_t>{0});
}

TEST_F(MachineShardTest, OneRankSpeaksForItsWholeMachineAtTheRoot) {
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

// All ranks are on this machine, and the root as well.
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
  FakeUplink parent_link_;
};

TEST_F(OnlyMachineTest, NothingIsAboveItUnlessTheRootIsAServer) {
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
