#include <algorithm>
#include <random>

#include "protocol/aggregation_harness.h"

namespace byteps::protocol {
namespace {

TEST_F(AggregatorTest, CompletesWhenAllContributionsAreInWhateverTheirOrder) {
  std::vector<uint32_t> ranks{0, 1, 2};
  uint32_t round = 0;
  do {
    ++round;
    EXPECT_EQ(contribute(ranks[0], round), Verdict::kAccept);
    EXPECT_EQ(contribute(ranks[1], round), Verdict::kAccept);
    EXPECT_TRUE(completed_.empty());
    EXPECT_EQ(aggregator_.gathering(), 1u);
    EXPECT_EQ(contribute(ranks[2], round), Verdict::kAccept);
    ASSERT_EQ(completed_.size(), 1u);
    EXPECT_EQ(completed_[0].round, round);
    EXPECT_EQ(aggregator_.gathering(), 0u);
  } while (std::next_permutation(ranks.begin(), ranks.end()));
}

TEST_F(AggregatorTest, AnswerHasTheLargestPriority) {
  DataHead head = head_of(0, 1);
  head.priority = -5;
  contribute(head);
  head = head_of(1, 1);
  head.priority = 3;
  contribute(head);
  contribute(2, 1);
  ASSERT_EQ(completed_.size(), 1u);
  EXPECT_EQ(completed_[0].priority, 3);
}

TEST_F(AggregatorTest, ThePlanIsThatOfRankZeroWhateverTheOrder) {
  std::vector<uint32_t> ranks{0, 1, 2};
  uint32_t round = 0;
  do {
    ++round;
    for (const uint32_t rank : ranks) {
      DataHead head = head_of(rank, round);
      head.plan = {.partition_scale = static_cast<uint8_t>(rank == 0 ? round % 3 : 7), .credit = 0};
      contribute(head);
    }
    ASSERT_EQ(completed_.size(), 1u);
    EXPECT_EQ(completed_[0].plan, (Plan{.partition_scale = static_cast<uint8_t>(round % 3), .credit = 0}));
  } while (std::next_permutation(ranks.begin(), ranks.end()));
}

TEST(Aggregator, WithoutRankZeroBelowItAPlanIsAsConfigured) {
  Aggregator aggregator({{"rank 1", "rank 2"}, {-1, 0, 1}}, {kNever, kNever});
  AggregationActions actions;
  for (const uint32_t rank : {1u, 2u}) {
    DataHead head = head_of(rank, 1);
    head.plan = {.partition_scale = 3, .credit = 3};
    aggregator.on_contribution(head, rank - 1, 0, actions);
  }
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(std::get<Complete>(actions[0]).head.plan, Plan{});
}

TEST_F(AggregatorTest, RepeatedContributionsAreRecognised) {
  contribute(0, 1);
  EXPECT_EQ(*admit(head_of(0, 1)), Verdict::kRepeat) << "while the round gathers";
  contribute(1, 1);
  contribute(2, 1);
  EXPECT_EQ(*admit(head_of(0, 1)), Verdict::kRepeat) << "after it was answered";
  contribute(0, 2);
  EXPECT_EQ(*admit(head_of(0, 1)), Verdict::kRepeat) << "in a later round";
}

TEST_F(AggregatorTest, TwoCopiesAdmittedAtOnceCountOnce) {
  ASSERT_EQ(*admit(head_of(0, 1)), Verdict::kAccept);
  ASSERT_EQ(*admit(head_of(0, 1)), Verdict::kAccept);
  for (int copy = 0; copy < 2; ++copy) {
    collect([&](AggregationActions& actions) { aggregator_.on_contribution(head_of(0, 1), 0, 0, actions); });
  }
  contribute(1, 1);
  EXPECT_TRUE(completed_.empty());
  contribute(2, 1);
  EXPECT_EQ(completed_.size(), 1u);
}

TEST_F(AggregatorTest, ProtocolViolationsAreErrors) {
  contribute(0, 1);
  auto expect_error = [&](const DataHead& head, uint32_t child, uint64_t payload_bytes, const char* says) {
    const auto verdict = aggregator_.admit(head, child, payload_bytes);
    ASSERT_FALSE(verdict.is_ok()) << says;
    EXPECT_EQ(verdict.status().code(), StatusCode::kDataLoss);
    EXPECT_NE(verdict.status().message().find(says), std::string::npos) << verdict.status();
  };
  expect_error(head_of(0, 2), 0, 16, "round 2 before the answer to round 1");
  expect_error(head_of(1, 0), 1, 16, "round: expected 1, got 0");
  expect_error(head_of(1, 1), 1, 8, "payload bytes: expected 16, got 8");
  DataHead head = head_of(1, 1);
  head.type = DataType::kResult;
  expect_error(head, 1, 16, "type");
  head = head_of(1, 1);
  head.op = ReduceOp::kBroadcast;
  head.root = 3;
  expect_error(head, 1, 0, "root");
  head.root = 0;
  expect_error(head, 1, 16, "payload bytes: expected 0, got 16");
  head.root = 1;
  expect_error(head, 1, 0, "payload bytes: expected 16, got 0");
  EXPECT_EQ(contribute(1, 1), Verdict::kAccept) << "nothing of that has changed the round";
}

TEST_F(AggregatorTest, BroadcastTakesAPayloadFromTheRootOnly) {
  for (uint32_t rank = 0; rank < 3; ++rank) {
    DataHead head = head_of(rank, 1);
    head.op = ReduceOp::kBroadcast;
    head.root = 1;
    EXPECT_EQ(contribute(head), Verdict::kAccept);
  }
  EXPECT_EQ(completed_.size(), 1u);
}

TEST_F(AggregatorTest, RoundsThatAllSkipDoNotCount) {
  for (const uint64_t round : {1ull, 4ull, 1ull << 32, (1ull << 32) + 5}) {
    for (uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(contribute(rank, round), Verdict::kAccept);
    ASSERT_EQ(completed_.size(), 1u);
    EXPECT_EQ(completed_[0].round, round);
  }
}

TEST_F(AggregatorTest, ARoundThatOneRankSkippedFailsAndNeverMeetsALaterOne) {
  contribute(0, 5);
  EXPECT_EQ(contribute(1, 6), Verdict::kAccept);
  expect_failed({0}, 5, "rank 1 (b) has gone on to round 6 without it");
  EXPECT_EQ(failed_[0].status.code(), StatusCode::kAborted);
  EXPECT_EQ(contribute(2, 5), Verdict::kRefuse);
  expect_failed({2}, 5, "rank 1 (b) has gone on to round 6 without it");
  contribute(2, 6);
  EXPECT_TRUE(completed_.empty());
  contribute(0, 6);
  ASSERT_EQ(completed_.size(), 1u);
  EXPECT_EQ(completed_[0].round, 6u);
}

TEST_F(AggregatorTest, AContributionToARoundThatOthersHavePassedIsRefused) {
  contribute(0, 7);
  EXPECT_EQ(contribute(1, 6), Verdict::kRefuse);
  expect_failed({1}, 6, "rank 0 (a) has gone on to round 7 without it");
  contribute(1, 7);
  EXPECT_EQ(contribute(2, 7), Verdict::kAccept);
  EXPECT_EQ(completed_.size(), 1u);
}

TEST_F(AggregatorTest, AMachineThatFailsALaterRoundSkipsTheOneThatWaits) {
  contribute(0, 1);
  give_up(1, 2, unavailable("rank 4 has left"));
  ASSERT_EQ(failed_.size(), 2u);
  EXPECT_EQ(failed_[0].head.round, 1u);
  EXPECT_EQ(failed_[0].children, std::vector<uint32_t>{0});
  EXPECT_EQ(failed_[1].head.round, 2u);
  EXPECT_TRUE(failed_[1].children.empty());
  contribute(0, 2);
  expect_failed({0}, 2, "rank 4 has left");
}

// Under refused calls, tensors of other sizes and slow ranks, only contributions of one round
// complete.
TEST(Aggregator, OnlyContributionsOfOneRoundMeetWhateverRanksSkip) {
  std::mt19937 random(7);
  for (int run = 0; run < 300; ++run) {
    Aggregator aggregator(ranks({"a", "b", "c"}), {kNever, kNever});
    std::vector<uint64_t> sent(3);
    std::vector<bool> waits(3);
    const auto left_out = [run](uint32_t rank, uint64_t round) { return (round * 7 + rank + run) % 11 == 0; };
    for (int step = 0; step < 200; ++step) {
      const uint32_t rank = random() % 3;
      if (waits[rank]) continue;
      do ++sent[rank];
      while (left_out(rank, sent[rank]));
      AggregationActions actions;
      waits[rank] = true;
      ASSERT_TRUE(aggregator.admit(head_of(rank, sent[rank]), rank, 16).is_ok());
      aggregator.on_contribution(head_of(rank, sent[rank]), rank, 0, actions);
      for (const AggregationAction& action : actions) {
        if (const auto* fail = std::get_if<Fail>(&action)) {
          for (const uint32_t child : fail->children) {
            ASSERT_EQ(sent[child], fail->head.round);
            waits[child] = false;
          }
        } else {
          const uint64_t round = std::get<Complete>(action).head.round;
          EXPECT_EQ(sent, std::vector<uint64_t>(3, round));
          waits.assign(3, false);
        }
      }
    }
    EXPECT_GT(*std::ranges::min_element(sent), 10u) << "they all go on";
  }
}

TEST_F(AggregatorTest, SlowRoundsAreWarnedOfOnceAndThenFail) {
  EXPECT_EQ(aggregator_.next_tick_us(), kNever);
  contribute(head_of(0, 1, key_of(1)), 5);
  contribute(head_of(0, 1, key_of(1, 1)), 6);
  EXPECT_EQ(aggregator_.next_tick_us(), 5 + kStallUs);
  tick(5 + kStallUs - 1);
  EXPECT_TRUE(stalled_.empty());
  tick(6 + kStallUs);
  ASSERT_EQ(stalled_.size(), 1u) << "one line for all";
  EXPECT_EQ(stalled_[0],
            "tensor number 1: round 1 of partition 0 has waited 1.1e-05 s for rank 1 (b) and rank 2 (c); so "
            "have 1 more "
            "partitions");
  EXPECT_EQ(aggregator_.next_tick_us(), 5 + kRoundLimitUs);
  contribute(head_of(0, 1, key_of(2)), 50);
  EXPECT_EQ(aggregator_.next_tick_us(), 50 + kStallUs);
  tick(50);
  EXPECT_TRUE(stalled_.empty());
  tick(5 + kRoundLimitUs);
  ASSERT_EQ(stalled_.size(), 1u);
  expect_failed({0}, 1, "has waited");
  EXPECT_EQ(failed_[0].head.key, key_of(1));
  EXPECT_EQ(failed_[0].status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(aggregator_.next_tick_us(), 6 + kRoundLimitUs);
}

// The child is a machine with several ranks.
TEST(Aggregator, ABroadcastsValuesComeFromTheChildOfItsRoot) {
  const Aggregator aggregator({{"ranks 0 and 1", "rank 2"}, {0, 0, 1}}, {kNever, kNever});
  DataHead head = head_of(0, 1);
  head.op = ReduceOp::kBroadcast;
  head.root = 1;
  EXPECT_TRUE(aggregator.admit(head, 0, head.bytes).is_ok());
  EXPECT_FALSE(aggregator.admit(head, 0, 0).is_ok());
  EXPECT_TRUE(aggregator.admit(head, 1, 0).is_ok());
  EXPECT_FALSE(aggregator.admit(head, 1, head.bytes).is_ok());
}

TEST(Aggregator, WhenAServerIsLostRoundsWaitAnew) {
  Aggregator aggregator(ranks({"rank 0", "rank 1"}), {.stall_warning_us = kNever, .op_timeout_us = 100});
  AggregationActions actions;
  aggregator.on_contribution(head_of(0, 1), 0, 1'000, actions);
  aggregator.restart_waits(1'090);
  aggregator.on_tick(1'189, actions);
  EXPECT_TRUE(actions.empty());
  EXPECT_EQ(aggregator.next_tick_us(), 1'190);
  aggregator.on_tick(1'190, actions);
  EXPECT_FALSE(actions.empty());
}

TEST(Aggregator, LimitsOfNeverAreNoLimits) {
  Aggregator aggregator(ranks({"rank 0", "rank 1"}), {kNever, kNever});
  AggregationActions actions;
  aggregator.on_contribution(head_of(0, 1), 0, 1'000, actions);
  EXPECT_EQ(aggregator.next_tick_us(), kNever);
  aggregator.on_tick(kNever - 1, actions);
  EXPECT_TRUE(actions.empty());
}

// Random interleavings of ranks that follow the protocol, with failures: every contribution is
// answered exactly once, for its own round, and no round completes twice or without all ranks.
TEST(Aggregator, AnswersEveryContributionExactlyOnce) {
  constexpr uint32_t kRanks = 4;
  constexpr uint32_t kKeys = 3;
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    Aggregator aggregator(ranks({"0", "1", "2", "3"}), {kNever, 50});
    uint32_t round[kRanks][kKeys] = {};  // round of the last contribution
    bool waiting[kRanks][kKeys] = {};    // waits for an answer
    int completed = 0;
    AggregationActions actions;
    for (TimeUs now = 0; now < 1000; ++now) {
      actions.clear();
      const uint32_t rank = random() % kRanks;
      const uint32_t key = random() % kKeys;
      if (!waiting[rank][key]) {
        const DataHead head = head_of(rank, round[rank][key] + 1, {1, key});
        const auto verdict = aggregator.admit(head, rank, head.bytes);
        ASSERT_TRUE(verdict.is_ok()) << verdict.status();
        ASSERT_NE(*verdict, Verdict::kRepeat);
        ++round[rank][key];
        if (random() % 50 == 0) {  // not answered
          aggregator.on_failed_contribution(head, rank, unavailable("cannot"), actions);
        } else {
          waiting[rank][key] = true;
          aggregator.on_contribution(head, rank, now, actions);
        }
      }
      if (random() % 8 == 0) aggregator.on_tick(now, actions);
      for (const AggregationAction& action : actions) {
        if (const auto* complete = std::get_if<Complete>(&action)) {
          ++completed;
          for (uint32_t child = 0; child < kRanks; ++child) {
            ASSERT_TRUE(waiting[child][complete->head.key.partition]);
            ASSERT_EQ(round[child][complete->head.key.partition], complete->head.round);
            waiting[child][complete->head.key.partition] = false;
          }
        } else if (const auto* fail = std::get_if<Fail>(&action)) {
          for (uint32_t child : fail->children) {
            ASSERT_TRUE(waiting[child][fail->head.key.partition]);
            ASSERT_EQ(round[child][fail->head.key.partition], fail->head.round);
            waiting[child][fail->head.key.partition] = false;
          }
        }
      }
    }
    actions.clear();
    aggregator.on_tick(10'000, actions);
    for (const AggregationAction& action : actions) {
      for (uint32_t child : std::get<Fail>(action).children)
        waiting[child][std::get<Fail>(action).head.key.partition] = false;
    }
    for (const auto& row : waiting) EXPECT_EQ(std::count(std::begin(row), std::end(row), true), 0);
    EXPECT_EQ(aggregator.gathering(), 0u);
    EXPECT_GT(completed, 10);
  }
}

}  // namespace
}  // namespace byteps::protocol
