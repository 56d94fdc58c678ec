// One level of the tree in a shard: a root of three machines of one rank each.
#include "summation/reduction_level.h"

#include <algorithm>
#include <array>
#include <bit>

#include "summation/harness.h"

namespace byteps::summation {
namespace {

class ReductionLevelTest : public ShardFixture {
 protected:
  explicit ReductionLevelTest(protocol::WaitLimits limits = {kNever, kNever}) {
    start({.describe_rank = {"rank 0", "rank 1", "rank 2"},
           .machines = {{"rank 0", "rank 1", "rank 2"}, {0, 1, 2}},
           .ranks = {},
           .bytes_per_s = {},
           .limits = limits},
          Level::kCluster);
    peers_.push_back(connect(2));
    on_loop([this] { peers_[2]->hello(); });
  }
  static Values repeat(float value) { return Values(kCount, std::bit_cast<int32_t>(value)); }
};

// (1e8 - 1e8) + 1 is 1 in single precision, and (1 + 1e8) - 1e8 is 0.
TEST_F(ReductionLevelTest, ASumIsTakenInTheOrderOfChildrenWhateverTheOrderOfArrival) {
  const std::array<float, 3> values = {1e8F, -1e8F, 1};
  std::array<uint32_t, 3> order = {0, 1, 2};
  uint32_t round = 0;
  do {
    ++round;
    for (const uint32_t rank : order) {
      peers_[rank]->dtype_ = DType::kFloat32;
      on_loop([&] { peers_[rank]->contribute(round, repeat(values[rank])); });
    }
    for (const auto& peer : peers_) {
      ASSERT_EQ(peer->answers_.size(), round);
      EXPECT_EQ(result_of(*peer, round - 1), repeat(1)) << "rank " << order[0] << " came first";
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_F(ReductionLevelTest, EveryChildOfAFailedRoundIsAnsweredOnce) {
  peers_[1]->op_ = ReduceOp::kMax;
  on_loop([this] {
    peers_[0]->contribute(1, {1, 1, 1, 1});
    peers_[1]->contribute(1, {1, 1, 1, 1});
  });
  on_loop([this] { peers_[2]->contribute(1, {1, 1, 1, 1}); });
  for (const auto& peer : peers_) {
    ASSERT_EQ(peer->answers_.size(), 1u);
    EXPECT_EQ(peer->answers_[0].type, DataType::kFailed);
    EXPECT_EQ(peer->answers_[0].round, 1u);
    EXPECT_EQ(peer->texts_[0], peers_[0]->texts_[0]);
  }
}

TEST_F(ReductionLevelTest, TheRoundAfterAFailedOneWorks) {
  peers_[1]->op_ = ReduceOp::kMax;
  on_loop([this] {
    for (const auto& peer : peers_) peer->contribute(1, {1, 1, 1, 1});
  });
  peers_[1]->op_ = ReduceOp::kSum;
  on_loop([this] {
    for (const auto& peer : peers_) peer->contribute(2, {1, 2, 3, 4});
  });
  for (const auto& peer : peers_) EXPECT_EQ(result_of(*peer, 1), (Values{3, 6, 9, 12}));
}

TEST_F(ReductionLevelTest, AForgottenTensorBeginsAnew) {
  const auto contribute_all = [this](uint32_t round) {
    on_loop([&] {
      for (const auto& peer : peers_) peer->contribute(round, {1, 2, 3, 4});
    });
  };
  for (const uint32_t round : {1, 2, 3}) contribute_all(round);
  contribute_all(1);
  for (const auto& peer : peers_) EXPECT_EQ(peer->answers_.size(), 3u) << "a repetition";
  on_loop([this] { shard_->forget({{.tensor = 1, .partitions = 1}}); });
  contribute_all(1);
  for (const auto& peer : peers_) {
    ASSERT_EQ(peer->answers_.size(), 4u);
    EXPECT_EQ(result_of(*peer, 3), (Values{3, 6, 9, 12}));
  }
}

// At the successor of a lost root. The first child has the round from a root at which it counted as
// known to all.
TEST_F(ReductionLevelTest, AnOutcomeIsFetchedFromAChildThatHasNotReleasedIt) {
  const auto say = [](Peer& peer, DataType type) {
    DataHead head = peer.head(5);
    head.type = type;
    peer.send(head, {});
  };
  on_loop([&] {
    say(*peers_[0], DataType::kReleased);
    DataHead head = peers_[1]->head(5);
    head.type = DataType::kMoved;
    peers_[1]->values_ = {1, 1, 1, 1};
    peers_[1]->send(head, std::as_bytes(std::span(peers_[1]->values_)));
  });
  EXPECT_TRUE(peers_[0]->answers_.empty());
  on_loop([&] { say(*peers_[2], DataType::kHolds); });
  ASSERT_EQ(peers_[2]->answers_.size(), 1u);
  EXPECT_EQ(peers_[2]->answers_[0].type, DataType::kFetch);
  const Values outcome = {10, 20, 30, 40};
  on_loop([&] {
    DataHead head = peers_[2]->head(5);
    head.type = DataType::kHeld;
    peers_[2]->send(head, std::as_bytes(std::span(outcome)));
  });
  EXPECT_EQ(result_of(*peers_[1]), outcome);
}

class ImpatientLevelTest : public ReductionLevelTest {
 protected:
  ImpatientLevelTest() : ReductionLevelTest({.stall_warning_us = kNever, .op_timeout_us = 20'000}) {}
};

TEST_F(ImpatientLevelTest, ARoundThatWaitsTooLongFailsAndNamesTheMissing) {
  for (const uint32_t round : {1, 2}) {
    EventFlag answered;
    on_loop([&] {
      peers_[0]->when_answered_ = [&answered] { answered.set(); };
      peers_[0]->contribute(round, {1, 1, 1, 1});
    });
    ASSERT_EQ(answered.wait(now_us() + 10'000'000), EventFlag::Wake::kSet);
    on_loop([] {});
    EXPECT_EQ(peers_[0]->answers_.back().code, StatusCode::kDeadlineExceeded);
    EXPECT_NE(peers_[0]->texts_.back().find("for rank 1 and rank 2"), std::string::npos)
        << peers_[0]->texts_.back();
  }
}

}  // namespace
}  // namespace byteps::summation
