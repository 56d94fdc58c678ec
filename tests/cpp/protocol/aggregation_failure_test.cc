// Rounds that fail: disagreement, lost children, failed tensors and jobs.
#include "protocol/aggregation_harness.h"

namespace byteps::protocol {
namespace {

TEST_F(AggregatorTest, DisagreementFailsTheRoundForAllAndNamesBoth) {
  struct Case {
    void (*change)(DataHead&);
    const char* says;
  };
  const Case cases[] = {
      {[](DataHead& head) { head.op = ReduceOp::kAverage; },
       "rank 2 (c) for average of 4 elements of float32"},
      {[](DataHead& head) { head.dtype = DType::kInt32; }, "rank 2 (c) for sum of 4 elements of int32"},
      {[](DataHead& head) { head.bytes = 8; }, "rank 2 (c) for sum of 2 elements of float32"},
      {[](DataHead& head) { head.shape = *Shape::of(std::vector<int64_t>{2, 2}); },
       "rank 2 (c) for sum of float32 of shape (2, 2)"},
  };
  uint32_t round = 0;
  for (const Case& c : cases) {
    ++round;
    contribute(0, round);
    DataHead head = head_of(2, round);
    c.change(head);
    contribute(head);
    expect_failed({0, 2}, round, "rank 0 (a) asks for sum of 4 elements of float32, ");
    expect_failed({0, 2}, round, c.says);
    EXPECT_EQ(contribute(1, round), Verdict::kRefuse) << "late";
    expect_failed({1}, round, c.says);
  }
}

TEST_F(AggregatorTest, DisagreementAboutTheRootNamesTheRoots) {
  DataHead head = head_of(0, 1);
  head.op = ReduceOp::kBroadcast;
  contribute(head);
  head.rank = head.root = 2;
  contribute(head);
  expect_failed({0, 2}, 1, "broadcast from rank 2");
}

TEST_F(AggregatorTest, RanksGoOnAtTheirOwnPaceAfterAFailure) {
  contribute(0, 1, 0);
  tick(kRoundLimitUs);
  expect_failed({0}, 1, "round 1 has waited 0.0001 s for rank 1 (b) and rank 2 (c)");
  contribute(0, 2, kRoundLimitUs);
  EXPECT_EQ(contribute(1, 1), Verdict::kRefuse);
  expect_failed({1}, 1, "has waited");
  EXPECT_EQ(contribute(1, 2), Verdict::kAccept);
  EXPECT_EQ(contribute(2, 1), Verdict::kRefuse);
  expect_failed({2}, 1, "has waited");
  EXPECT_EQ(contribute(2, 2), Verdict::kAccept);
  EXPECT_EQ(completed_.size(), 1u);
}

// Rank 0 is two rounds ahead of rank 1 when rank 1 comes to the round that rank 2 has refused.
TEST_F(AggregatorTest, LateRankGetsTheCauseOfItsOwnRound) {
  give_up(2, 1, invalid_argument("no memory"));
  EXPECT_EQ(contribute(2, 2), Verdict::kAccept);
  EXPECT_EQ(contribute(0, 1), Verdict::kRefuse);
  expect_failed({0}, 1, "no memory");
  EXPECT_EQ(contribute(0, 3), Verdict::kAccept);
  expect_failed({2}, 2, "rank 0 (a) has gone on to round 3 without it");
  EXPECT_EQ(contribute(1, 1), Verdict::kRefuse);
  expect_failed({1}, 1, "no memory");
  EXPECT_EQ(contribute(1, 2), Verdict::kRefuse);
  expect_failed({1}, 2, "rank 0 (a) has gone on to round 3 without it");
  EXPECT_EQ(contribute(1, 3), Verdict::kAccept);
  EXPECT_EQ(contribute(2, 3), Verdict::kAccept);
  EXPECT_EQ(completed_.size(), 1u);
}

TEST_F(AggregatorTest, LateRankGetsTheCauseOfItsOwnRoundOfATensor) {
  collect([&](AggregationActions& actions) { aggregator_.fail_tensor(1, 1, internal("first"), actions); });
  collect([&](AggregationActions& actions) { aggregator_.fail_tensor(1, 2, internal("second"), actions); });
  DataHead head = head_of(0, 1);
  contribute(head);
  expect_failed({0}, 1, "first");
  head.round = 2;
  contribute(head);
  expect_failed({0}, 2, "second");
}

// Regression: the scheduler told this service before the root, which then learned only that the
// machine had gone on without the round.
TEST_F(AggregatorTest, TheFirstContributionThatAFailedTensorRefusesEndsTheRound) {
  collect([&](AggregationActions& actions) {
    aggregator_.fail_tensor(1, 1, invalid_argument("rank 2 (c): no"), actions);
  });
  contribute(0, 1);
  expect_failed({0}, 1, "rank 2 (c): no");
  EXPECT_TRUE(failed_[0].ends_round);
  contribute(1, 1);
  expect_failed({1}, 1, "rank 2 (c): no");
  EXPECT_FALSE(failed_[0].ends_round) << "the root knows it";
}

TEST_F(AggregatorTest, RoundThatFailsWhileAPayloadComesInAnswersItsSender) {
  contribute(0, 1, 0);
  ASSERT_EQ(*admit(head_of(1, 1)), Verdict::kAccept);
  tick(kRoundLimitUs);
  expect_failed({0}, 1, "has waited");
  collect([&](AggregationActions& actions) {
    aggregator_.on_contribution(head_of(1, 1), 1, kRoundLimitUs, actions);
  });
  expect_failed({1}, 1, "has waited");
}

TEST_F(AggregatorTest, LostChildFailsWhatLacksItNowAndLater) {
  contribute(0, 1);
  contribute(head_of(0, 1, key_of(2)));
  contribute(head_of(1, 1, key_of(2)));
  gone(1, unavailable("rank 1 (b) has left"));
  expect_failed({0}, 1, "rank 1 (b) has left");
  EXPECT_EQ(contribute(2, 1), Verdict::kRefuse);
  expect_failed({2}, 1, "rank 1 (b) has left");
  EXPECT_EQ(contribute(head_of(2, 1, key_of(2))), Verdict::kAccept) << "this round has it";
  EXPECT_EQ(completed_.size(), 1u);
  EXPECT_EQ(contribute(head_of(0, 2, key_of(2))), Verdict::kRefuse);
  expect_failed({0}, 2, "rank 1 (b) has left");
  EXPECT_EQ(contribute(head_of(0, 1, key_of(3))), Verdict::kRefuse) << "an unknown key";
  EXPECT_EQ(aggregator_.gathering(), 0u);
}

TEST_F(AggregatorTest, FailedTensorFailsAllItsPartitionsAndNoOther) {
  contribute(head_of(0, 1));
  contribute(head_of(0, 1, key_of(1, 7)));
  contribute(head_of(0, 1, {key_tensor(1, 5), 7}));
  contribute(head_of(0, 1, key_of(2)));
  collect([&](AggregationActions& actions) {
    aggregator_.fail_tensor(1, kEveryRound, invalid_argument("they disagree"), actions);
  });
  EXPECT_EQ(failed_.size(), 3u) << "of every partition scale";
  EXPECT_EQ(aggregator_.gathering(), 1u);
  EXPECT_EQ(contribute(head_of(1, 1, key_of(1))), Verdict::kRefuse);
  expect_failed({1}, 1, "they disagree");
  EXPECT_EQ(contribute(head_of(1, 1, key_of(1, 99))), Verdict::kRefuse);
  EXPECT_EQ(contribute(head_of(1, 1, key_of(2))), Verdict::kAccept);
}

TEST_F(AggregatorTest, AFailedRoundOfATensorFailsItAndThoseBeforeAndNoLaterOne) {
  contribute(head_of(0, 3, key_of(1)));
  contribute(head_of(0, 4, key_of(1, 1)));
  collect([&](AggregationActions& actions) {
    aggregator_.fail_tensor(1, 3, invalid_argument("rank 2 (c): no"), actions);
  });
  expect_failed({0}, 3, "rank 2 (c): no");
  collect([&](AggregationActions& actions) { aggregator_.fail_tensor(1, 2, aborted("older"), actions); });
  EXPECT_EQ(contribute(head_of(1, 2, key_of(1, 1))), Verdict::kRefuse);
  expect_failed({1}, 2, "rank 2 (c): no");
  EXPECT_EQ(contribute(head_of(1, 3, key_of(1))), Verdict::kRefuse);
  for (const uint32_t rank : {1u, 2u}) contribute(head_of(rank, 4, key_of(1, 1)));
  EXPECT_EQ(completed_.size(), 1u);
}

TEST_F(AggregatorTest, FailedJobFailsEverything) {
  contribute(0, 1);
  collect(
      [&](AggregationActions& actions) { aggregator_.fail_all(unavailable("the job is over"), actions); });
  expect_failed({0}, 1, "the job is over");
  collect([&](AggregationActions& actions) { aggregator_.fail_all(internal("later"), actions); });
  EXPECT_TRUE(failed_.empty());
  EXPECT_EQ(contribute(head_of(2, 1, key_of(4))), Verdict::kRefuse);
  expect_failed({2}, 1, "the job is over");
  EXPECT_EQ(aggregator_.next_tick_us(), kNever);
}

TEST_F(AggregatorTest, AChildThatCannotContributeFailsTheRoundForTheOthersAndGetsNoAnswer) {
  contribute(0, 1);
  give_up(1, 1, invalid_argument("rank 7 disagrees"));
  expect_failed({0}, 1, "rank 7 disagrees");
  EXPECT_EQ(failed_[0].status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(contribute(2, 1), Verdict::kRefuse);
  expect_failed({2}, 1, "rank 7 disagrees");
  for (uint32_t rank = 0; rank < 3; ++rank) contribute(rank, 2);
  EXPECT_EQ(completed_.size(), 1u) << "the next round is another one";
}

TEST_F(AggregatorTest, AFailureThatArrivesFirstFailsLaterContributions) {
  give_up(1, 1, unavailable("rank 7 has left the job"));
  expect_failed({}, 1, "rank 7 has left the job");
  EXPECT_TRUE(failed_[0].ends_round) << "nobody waits here, but others may at the root";
  contribute(0, 1);
  expect_failed({0}, 1, "rank 7 has left the job");
  give_up(1, 1, unavailable("again"));
  EXPECT_TRUE(failed_.empty()) << "a repeat";
}

// Regression, found by simulation: the round that others had continued with failed as well.
TEST_F(AggregatorTest, ALateFailureOfAnEarlierRoundLeavesTheNextOneAlone) {
  give_up(1, 1, unavailable("first"));
  contribute(0, 1);
  contribute(0, 2);
  give_up(2, 1, unavailable("second"));
  EXPECT_TRUE(failed_.empty());
  contribute(1, 2);
  contribute(2, 2);
  ASSERT_EQ(completed_.size(), 1u);
  EXPECT_EQ(completed_[0].round, 2u);
}

// Regression, found by simulation: a machine with a rank that has left may still contribute. Its
// payload was discarded but counted, and others waited for it.
TEST_F(AggregatorTest, AContributionOfAGoneChildIsRefusedAndNobodyWaitsForIt) {
  gone(1, unavailable("rank 1 (b) has left the job"));
  EXPECT_EQ(contribute(1, 1), Verdict::kRefuse);
  expect_failed({1}, 1, "rank 1 (b) has left the job");
  EXPECT_EQ(contribute(0, 1), Verdict::kRefuse);
  expect_failed({0}, 1, "rank 1 (b) has left the job");
  EXPECT_EQ(aggregator_.gathering(), 0u);
}

TEST_F(AggregatorTest, AForgottenKeyBeginsAnew) {
  for (uint64_t round = 1; round <= 3; ++round) {
    for (uint32_t rank = 0; rank < 3; ++rank) contribute(rank, round);
  }
  EXPECT_EQ(contribute(0, 3), Verdict::kRepeat);
  EXPECT_TRUE(aggregator_.forget(key_of(1)));
  EXPECT_TRUE(aggregator_.forget(key_of(1))) << "it has nothing any more";
  for (uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(contribute(rank, 1), Verdict::kAccept);
  EXPECT_EQ(completed_.size(), 1u);
}

TEST_F(AggregatorTest, ARoundThatWaitsIsNotForgotten) {
  contribute(0, 1);
  EXPECT_FALSE(aggregator_.forget(key_of(1)));
  contribute(1, 1);
  contribute(2, 1);
  EXPECT_EQ(completed_.size(), 1u);
}

TEST_F(AggregatorTest, FailuresOfAForgottenNameAreForgotten) {
  collect(
      [&](AggregationActions& actions) { aggregator_.fail_tensor(1, 5, invalid_argument("no"), actions); });
  EXPECT_EQ(contribute(0, 5), Verdict::kRefuse);
  aggregator_.forget_tensor(key_tensor(1, 3));
  aggregator_.forget(key_of(1));
  EXPECT_EQ(contribute(0, 1), Verdict::kAccept);
}

TEST_F(AggregatorTest, OfKeysWithFailuresOnlyTheLastOnesAreKept) {
  const auto fail = [this](uint64_t number) {
    DataHead head = head_of(0, 1, key_of(static_cast<uint32_t>(number)));
    head.type = DataType::kFailed;
    collect(
        [&](auto& actions) { aggregator_.on_failed_contribution(head, 0, invalid_argument("no"), actions); });
  };
  contribute(head_of(1, 1, key_of(7)));
  for (uint64_t number = 100; number < 1100; ++number) fail(number);
  EXPECT_EQ(contribute(head_of(1, 1, key_of(1099))), Verdict::kRefuse) << "the cause is known";
  EXPECT_EQ(contribute(head_of(1, 1, key_of(100))), Verdict::kAccept) << "long forgotten";
  fail(7);
  EXPECT_EQ(failed_.at(0).children, std::vector<uint32_t>{1}) << "a contribution is not forgotten";
}

}  // namespace
}  // namespace byteps::protocol
