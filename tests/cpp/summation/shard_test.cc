// A shard that is the root of its tensors. machine_shard_test covers shards below a root,
// parameter_store_test stored tensors.
#include "summation/shard.h"

#include <optional>

#include "summation/harness.h"
#include "support/log_reader.h"

namespace byteps::summation {
namespace {

class ShardTest : public RootFixture {};

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
  EXPECT_TRUE(lost_.empty()) << "the rank is unknown";
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

TEST_F(ShardTest, LeasedContributionsOfALeavingChildStillCount) {
  on_loop([this] {
    peers_[1]->contribute(1, {1, 2, 3, 4}, true);
    peers_[1]->goodbye();
  });
  peers_[1]->values_ = {0, 0, 0, 0};  // allowed: its owner has left
  on_loop([this] { peers_[0]->contribute(1, {10, 20, 30, 40}); });
  EXPECT_EQ(result_of(*peers_[0]), (Values{11, 22, 33, 44}));
  EXPECT_EQ(peers_[1]->values_, (Values{0, 0, 0, 0}));
}

// Shared memory disappears with its connection.
TEST_F(ShardTest, LeasedContributionsOfALostChildAreCopiedBeforeItsConnectionGoes) {
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

// Rank 0 can lease one contribution at a time, and rank 1 contributes in the opposite order.
TEST_F(ShardTest, LeasesThatTheirChildNeedsAreReturnedWhileTheirRoundsWait) {
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

// Regression, found by simulation: a survivor's goodbye arrived before the scheduler's verdict, and
// the survivor was taken for the cause.
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
    auto [mine, other] = transport::make_inproc_pair(*loop_);
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
  ASSERT_TRUE(log.wait_for("for rank 1"));  // the next event would be the failure of this round
  on_loop([this] { peers_[1]->contribute(1, {2, 2, 2, 2}); });
  on_loop([this] { peers_[0]->contribute(2, {3, 3, 3, 3}); });
  EXPECT_TRUE(log.wait_for("for rank 1"));
}

// A server, whose children are a machine of two ranks and one of a single rank.
class RootOfMachinesTest : public ShardFixture {
 protected:
  RootOfMachinesTest() {
    start({.describe_rank = {"rank 0", "rank 1", "rank 2"},
           .machines = {{"rank 0 and rank 1", "rank 2"}, {0, 0, 1}},
           .ranks = {},
           .bytes_per_s = {},
           .limits = {.stall_warning_us = kNever, .op_timeout_us = kTimeoutUs}},
          Level::kCluster);
  }
  static constexpr TimeUs kTimeoutUs = 80'000;
};

// The service of the machine fails the round first, and names the one rank that is missing.
TEST_F(RootOfMachinesTest, ARootWaitsAQuarterLongerThanTheServicesOfMachines) {
  EventFlag answered;
  const TimeUs started_us = now_us();
  on_loop([&] {
    peers_[0]->when_answered_ = [&answered] { answered.set(); };
    peers_[0]->contribute(1, {1, 1, 1, 1});
  });
  ASSERT_EQ(answered.wait(now_us() + 10'000'000), EventFlag::Wake::kSet);
  EXPECT_GE(now_us() - started_us, kTimeoutUs + kTimeoutUs / 4);
  on_loop([] {});
  EXPECT_EQ(peers_[0]->answers_.at(0).code, StatusCode::kDeadlineExceeded);
}

// A root that may be lost.
class MarkingShardTest : public ShardFixture {
 protected:
  MarkingShardTest() {
    start({.describe_rank = {"rank 0", "rank 1"},
           .machines = {{"rank 0", "rank 1"}, {0, 1}},
           .ranks = {},
           .bytes_per_s = {},
           .limits = {},
           .may_be_lost = true,
           .mark_us = 1000},
          Level::kCluster);
    on_loop([this] {
      peers_[0]->contribute(1, {1, 1, 1, 1});
      peers_[1]->contribute(1, {1, 1, 1, 1});
    });
  }
  // Waits for the message with this index.
  DataHead message(const Peer& peer, size_t index) {
    const TimeUs deadline_us = now_us() + 10'000'000;
    std::optional<DataHead> message;
    while (!message && now_us() < deadline_us) {
      on_loop([&] {
        if (peer.answers_.size() > index) message = peer.answers_[index];
      });
    }
    return message.value();
  }
  DataHead message(size_t peer, size_t index) { return message(*peers_[peer], index); }
  void confirm(size_t peer, uint64_t mark) {
    on_loop([this, peer, mark] {
      DataHead head = peers_[peer]->head(mark);
      head.type = DataType::kConfirmed;
      peers_[peer]->send(head, {});
    });
  }
};

TEST_F(MarkingShardTest, MarksFollowAnswersAndAreStableWhenAllHaveConfirmedThem) {
  for (uint64_t mark = 1; mark <= 2; ++mark) {
    for (size_t peer = 0; peer < 2; ++peer) {
      EXPECT_EQ(message(peer, 2 * mark - 1).type, DataType::kMark);
      EXPECT_EQ(message(peer, 2 * mark - 1).round, mark);
    }
    confirm(1, mark);
    EXPECT_EQ(peers_[0]->answers_.size(), 2 * mark);
    confirm(0, mark);
    for (size_t peer = 0; peer < 2; ++peer) {
      EXPECT_EQ(message(peer, 2 * mark).type, DataType::kStable);
      EXPECT_EQ(message(peer, 2 * mark).round, mark);
    }
  }
}

TEST_F(MarkingShardTest, AChildThatHasLeftIsNotWaitedFor) {
  EXPECT_EQ(message(0, 1).type, DataType::kMark);
  confirm(0, 1);
  on_loop([this] { peers_[1]->goodbye(); });
  EXPECT_EQ(message(0, 2).type, DataType::kStable);
}

TEST_F(MarkingShardTest, AChildThatConnectsAfterTheMarkIsToldOfTheNextOne) {
  EXPECT_EQ(message(0, 1).type, DataType::kMark);
  on_loop([this] { peers_[1]->goodbye(); });
  on_loop([this] { peers_[1]->close(); });
  auto late = connect(1);
  on_loop([&] { late->hello(); });
  confirm(0, 1);
  EXPECT_EQ(message(0, 2).type, DataType::kStable);
  EXPECT_EQ(message(*late, 0).type, DataType::kMark);
  EXPECT_EQ(message(*late, 0).round, 2U);
  on_loop([&] { late.reset(); });
}

TEST_F(MarkingShardTest, OnlyTheClusterLevelConfirmsMarks) {
  const auto other = connect(1);
  other->level_ = Level::kRanks;
  on_loop([&] {
    other->hello();
    DataHead head = other->head(1);
    head.type = DataType::kConfirmed;
    other->send(head, {});
  });
  EXPECT_TRUE(other->closed_);
}

}  // namespace
}  // namespace byteps::summation
