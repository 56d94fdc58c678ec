// Stored tensors of a shard, with scripted workers.
#include "summation/parameter_store.h"

#include <list>

#include "summation/harness.h"

namespace byteps::summation {
namespace {

class ParameterStoreTest : public ShardFixture {
 protected:
  explicit ParameterStoreTest(protocol::WaitLimits limits = {kNever, kNever}) {
    start({.describe_rank = {"rank 0", "rank 1"},
           .machines = {{"rank 0 and rank 1"}, {0, 0}},
           .ranks = {},
           .bytes_per_s = {},
           .limits = limits},
          Level::kRanks);
  }
  // Both ranks seed; the values are those of rank 0.
  void seed(uint8_t staleness, Values values) {
    on_loop([&] {
      for (const auto& peer : peers_) peer->staleness_ = staleness;
      send_seed(*peers_[0], 1, std::move(values));
      send_seed(*peers_[1], 1, {});
    });
    for (const auto& peer : peers_) {
      ASSERT_EQ(peer->answers_.size(), 1u);
      peer->op_ = ReduceOp::kAccumulate;
    }
  }
  void send_seed(Peer& peer, uint32_t round, Values values, bool with_reply_space = false) {
    peer.op_ = ReduceOp::kSeed;
    const DataHead head = peer.head(round);
    peer.values_ = std::move(values);
    peer.send(head, protocol::has_values(head) ? std::as_bytes(std::span(peer.values_)) : Bytes{},
              with_reply_space);
    peer.op_ = ReduceOp::kAccumulate;
  }
};

TEST_F(ParameterStoreTest, EveryRankBeginsWithWhatTheRootSeeds) {
  seed(0, {1, 2, 3, 4});
  for (const auto& peer : peers_) {
    EXPECT_EQ(peer->answers_[0].type, DataType::kResult);
    EXPECT_EQ(result_of(*peer), (Values{1, 2, 3, 4}));
  }
}

TEST_F(ParameterStoreTest, ContributionsAddUpFromRoundToRound) {
  seed(0, {1, 2, 3, 4});
  on_loop([this] { peers_[1]->contribute(2, {10, 10, 10, 10}); });
  EXPECT_EQ(peers_[1]->answers_.size(), 1u);
  on_loop([this] { peers_[0]->contribute(2, {100, 100, 100, 100}); });
  for (const auto& peer : peers_) EXPECT_EQ(result_of(*peer, 1), (Values{111, 112, 113, 114}));
  on_loop([this] {
    peers_[0]->contribute(3, {1000, 0, 0, 0});
    peers_[1]->contribute(3, {0, 0, 0, 1000});
  });
  for (const auto& peer : peers_) EXPECT_EQ(result_of(*peer, 2), (Values{1111, 112, 113, 1114}));
}

TEST_F(ParameterStoreTest, LentMemoryIsReadAndAnsweredInPlace) {
  seed(0, {1, 2, 3, 4});
  on_loop([this] { peers_[0]->contribute(2, {10, 10, 10, 10}, true); });
  on_loop([this] { peers_[1]->contribute(2, {100, 100, 100, 100}, true); });
  for (const auto& peer : peers_) EXPECT_EQ(peer->values_, (Values{111, 112, 113, 114}));
  // The value must not be in any worker's memory.
  on_loop([this] { peers_[0]->values_ = {0, 0, 0, 0}; });
  on_loop([this] {
    send_seed(*peers_[0], 3, {9, 9, 9, 9}, true);
    send_seed(*peers_[1], 3, Values(kCount), true);
  });
  EXPECT_EQ(peers_[1]->values_, (Values{111, 112, 113, 114}));
}

// The second contribution is added while the answer to the first is in flight.
TEST_F(ParameterStoreTest, AnAnswerInFlightDoesNotChange) {
  seed(protocol::kUnboundedStaleness, {0, 0, 0, 0});
  for (uint32_t round = 2; round < 50; ++round) {
    on_loop([&] {
      peers_[0]->contribute(round, {1, 1, 1, 1});
      peers_[1]->contribute(round, {1000, 1000, 1000, 1000});
    });
    const auto rounds = static_cast<int32_t>(round - 1);
    const Values of_first = result_of(*peers_[0], round - 1);
    const Values of_second = result_of(*peers_[1], round - 1);
    EXPECT_EQ(of_first, Values(kCount, rounds + 1000 * (rounds - 1)));
    EXPECT_EQ(of_second, Values(kCount, rounds + 1000 * rounds));
  }
}

TEST_F(ParameterStoreTest, ARankThatIsTooFarAheadWaits) {
  seed(1, {0, 0, 0, 0});
  on_loop([this] { peers_[0]->contribute(2, {1, 1, 1, 1}, true); });
  EXPECT_EQ(peers_[0]->answers_.size(), 2u);
  on_loop([this] { peers_[0]->contribute(3, {1, 1, 1, 1}, true); });
  EXPECT_EQ(peers_[0]->answers_.size(), 2u);
  on_loop([this] { peers_[1]->contribute(2, {5, 5, 5, 5}); });
  EXPECT_EQ(peers_[0]->values_, Values(kCount, 7));
  EXPECT_EQ(result_of(*peers_[1], 1), Values(kCount, 7));
}

TEST_F(ParameterStoreTest, TheContributionOfARankThatIsGoneStillCounts) {
  seed(0, {0, 0, 0, 0});
  on_loop([this] {
    peers_[0]->contribute(2, {3, 3, 3, 3}, true);
    peers_[0]->goodbye();
  });
  // allowed: it is not waiting for an answer
  on_loop([this] { peers_[0]->values_ = {77, 77, 77, 77}; });
  on_loop([this] { peers_[1]->contribute(2, {5, 5, 5, 5}); });
  EXPECT_EQ(result_of(*peers_[1], 1), Values(kCount, 8));
  on_loop([this] { peers_[1]->contribute(3, {5, 5, 5, 5}); });
  ASSERT_EQ(peers_[1]->answers_.size(), 3u);
  EXPECT_EQ(peers_[1]->answers_[2].type, DataType::kFailed);
  EXPECT_NE(peers_[1]->texts_[2].find("rank 0 has left the job"), std::string::npos);
}

TEST_F(ParameterStoreTest, AFailedJobAnswersWaitingRanks) {
  seed(0, {0, 0, 0, 0});
  on_loop([this] { peers_[0]->contribute(2, {3, 3, 3, 3}, true); });
  on_loop([this] { shard_->fail(unavailable("rank 1 is lost")); });
  ASSERT_EQ(peers_[0]->answers_.size(), 2u);
  EXPECT_EQ(peers_[0]->answers_[1].type, DataType::kFailed);
  EXPECT_EQ(peers_[0]->texts_[1], "rank 1 is lost");
}

TEST_F(ParameterStoreTest, OtherReductionsAreRefused) {
  on_loop([this] { peers_[0]->contribute(1, {1, 1, 1, 1}); });
  EXPECT_TRUE(peers_[0]->closed_);
}

TEST_F(ParameterStoreTest, HalfPrecisionIsRoundedOncePerAnswer) {
  DataHead head;
  const auto send = [&](Peer& peer, ReduceOp op, uint32_t round, std::vector<uint16_t>& values) {
    head = peer.head(round);
    head.op = op;
    head.dtype = DType::kBFloat16;
    head.bytes = 2 * values.size();
    peer.send(head, protocol::has_values(head) ? std::as_bytes(std::span(values)) : Bytes{});
  };
  // 256, and two times 1, which alone would be lost in the eight bits of a bfloat16.
  std::vector<uint16_t> large{0x4380}, one{0x3F80};
  on_loop([&] {
    send(*peers_[0], ReduceOp::kSeed, 1, large);
    send(*peers_[1], ReduceOp::kSeed, 1, large);
  });
  on_loop([&] {
    send(*peers_[0], ReduceOp::kAccumulate, 2, one);
    send(*peers_[1], ReduceOp::kAccumulate, 2, one);
  });
  for (const auto& peer : peers_) EXPECT_EQ(peer->texts_.at(1), std::string("\x81\x43"));
}

// ---- the successor of a lost root ----

class SuccessorStoreTest : public ParameterStoreTest {
 protected:
  SuccessorStoreTest() {
    for (const auto& peer : peers_) peer->op_ = ReduceOp::kAccumulate, peer->staleness_ = 255;
  }
  void holds(Peer& peer, uint32_t round, std::vector<uint64_t> rounds) {
    DataHead head = peer.head(round);
    head.type = DataType::kHolds;
    peer.send(head, std::as_bytes(std::span(rounds_.emplace_back(std::move(rounds)))));
  }
  void stated(Peer& peer) {
    DataHead head = peer.head(1);
    head.type = DataType::kStated;
    peer.send(head, {});
  }
  void move(Peer& peer, uint32_t round, Values values) {
    peer.values_ = std::move(values);
    DataHead head = peer.head(round);
    head.type = DataType::kMoved;
    peer.send(head, std::as_bytes(std::span(peer.values_)));
  }
  void give(Peer& peer, uint32_t round, Values values) {
    DataHead head = peer.head(round);
    head.type = DataType::kHeld;
    peer.send(head, std::as_bytes(std::span(held_.emplace_back(std::move(values)))));
  }

  // Payloads, which in-process connections pass by reference.
  std::list<std::vector<uint64_t>> rounds_;
  std::list<Values> held_;
};

TEST_F(SuccessorStoreTest, TheNewestValueIsFetchedAndGoesOn) {
  Peer &first = *peers_[0], &second = *peers_[1];
  on_loop([&] {
    holds(first, 3, {6, 4});
    stated(first);
    holds(second, 2, {4, 4});
    move(second, 3, {1, 1, 1, 1});
  });
  EXPECT_TRUE(first.answers_.empty()) << "the second one may hold more";
  on_loop([&] { stated(second); });
  ASSERT_EQ(first.answers_.size(), 1u);
  EXPECT_EQ(first.answers_[0].type, DataType::kFetch);
  EXPECT_EQ(first.answers_[0].round, 3u);
  on_loop([&] { give(first, 3, {10, 20, 30, 40}); });
  EXPECT_EQ(result_of(second), (Values{11, 21, 31, 41}));
  on_loop([&] { move(first, 3, {100, 100, 100, 100}); });
  EXPECT_EQ(result_of(first, 1), (Values{11, 21, 31, 41})) << "it is in it already";
  on_loop([&] { move(first, 4, {100, 100, 100, 100}); });
  EXPECT_EQ(result_of(first, 2), (Values{111, 121, 131, 141}));
}

TEST_F(SuccessorStoreTest, WhereNobodyHoldsAValueTheSeedIsTheValue) {
  on_loop([&] {
    for (const auto& peer : peers_) stated(*peer);
    peers_[0]->op_ = ReduceOp::kSeed;
    move(*peers_[0], 1, {1, 2, 3, 4});
  });
  EXPECT_EQ(result_of(*peers_[0]), (Values{1, 2, 3, 4}));
}

TEST_F(SuccessorStoreTest, ARankThatHasLeftIsNotWaitedFor) {
  on_loop([&] {
    holds(*peers_[0], 3, {6, 4});
    stated(*peers_[0]);
    move(*peers_[0], 4, {1, 1, 1, 1});
  });
  EXPECT_TRUE(peers_[0]->answers_.empty());
  on_loop([&] { shard_->rank_left(1, /*lingers=*/true); });
  EXPECT_TRUE(peers_[0]->answers_.empty()) << "it still has what it holds";
  on_loop([&] { shard_->rank_left(1, /*lingers=*/false); });
  ASSERT_EQ(peers_[0]->answers_.size(), 1u);
  EXPECT_EQ(peers_[0]->answers_[0].type, DataType::kFetch);
}

TEST_F(SuccessorStoreTest, WhatWaitsFailsWithTheJob) {
  on_loop([&] {
    stated(*peers_[0]);
    move(*peers_[0], 4, {1, 1, 1, 1});
  });
  on_loop([this] { shard_->fail(unavailable("rank 1 is lost")); });
  ASSERT_EQ(peers_[0]->answers_.size(), 1u);
  EXPECT_EQ(peers_[0]->texts_[0], "rank 1 is lost");
}

TEST_F(SuccessorStoreTest, ARankThatTakesItForTheFirstRootHarmsNobody) {
  on_loop([&] {
    send_seed(*peers_[0], 1, {1, 2, 3, 4});
    for (const auto& peer : peers_) {
      holds(*peer, 3, {6, 6});
      stated(*peer);
    }
    move(*peers_[1], 4, {1, 1, 1, 1});
  });
  on_loop([&] { give(*peers_[0], 3, {10, 20, 30, 40}); });
  ASSERT_EQ(peers_[1]->answers_.size(), 1u);
  EXPECT_EQ(peers_[1]->answers_[0].code, StatusCode::kDataLoss);
}

TEST_F(SuccessorStoreTest, HoldsSayWhatTheyContainForEachRank) {
  on_loop([this] { holds(*peers_[0], 3, {6}); });
  EXPECT_TRUE(peers_[0]->closed_);
}

class ImpatientStoreTest : public ParameterStoreTest {
 protected:
  ImpatientStoreTest() : ParameterStoreTest({.stall_warning_us = kNever, .op_timeout_us = 20'000}) {}
};

TEST_F(ImpatientStoreTest, AContributionThatWaitsTooLongFailsAndNamesTheMissingRank) {
  EventFlag answered;
  on_loop([&] {
    peers_[0]->when_answered_ = [&answered] { answered.set(); };
    send_seed(*peers_[0], 1, {1, 2, 3, 4});
  });
  ASSERT_EQ(answered.wait(now_us() + 10'000'000), EventFlag::Wake::kSet);
  on_loop([] {});
  EXPECT_EQ(peers_[0]->answers_.at(0).code, StatusCode::kDeadlineExceeded);
  EXPECT_NE(peers_[0]->texts_.at(0).find("for rank 1"), std::string::npos) << peers_[0]->texts_[0];
}

}  // namespace
}  // namespace byteps::summation
