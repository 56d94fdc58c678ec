// How a table counts rounds, also those of refused calls, and which failures it reports.
#include "protocol/push_pull_table_harness.h"
#include "protocol/rounds.h"

namespace byteps::protocol {
namespace {

TEST_F(PushPullTableTest, RoundsCountTheStartsOfATensor) {
  ASSERT_TRUE(start(1, "w").is_ok());
  ASSERT_TRUE(place("w", 5, {0}).is_ok());
  EXPECT_EQ(started_[0].head.round, 1u);
  complete(1);
  ASSERT_TRUE(start(2, "w").is_ok());
  EXPECT_TRUE(declared_.empty()) << "the placement is reused";
  ASSERT_EQ(started_.size(), 1u);
  EXPECT_EQ(started_[0].head.round, 2u);
}

TEST_F(PushPullTableTest, EveryRefusedCallCountsItsRoundAndTellsTheScheduler) {
  ASSERT_TRUE(start(1, "w").is_ok());
  ASSERT_TRUE(place("w", 5, {0}).is_ok());
  complete(1);
  EXPECT_FALSE(start(2, "w", 8, ReduceOp::kBroadcast, 2).is_ok());
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_EQ(told_[0], (RoundFailed{"w", 2, true, StatusCode::kInvalidArgument,
                                   "tensor 'w': root: expected a rank below 2, got 2"}));
  TableActions actions;
  table_.refuse("w", 0, invalid_argument("op is 'sum'"), actions);
  sort(actions);
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_EQ(told_[0], (RoundFailed{"w", 3, true, StatusCode::kInvalidArgument, "op is 'sum'"}));
  ASSERT_TRUE(start(3, "w").is_ok());
  EXPECT_EQ(started_.at(0).head.round, 4u);
}

// Otherwise the service might hear of the next round first, and report only that this rank has gone
// on.
TEST_F(PushPullTableTest, TheServiceOfTheFirstPartitionHearsOfARefusalFromTheRankItself) {
  EXPECT_FALSE(start(1, "w", 8, ReduceOp::kBroadcast, 2).is_ok());
  EXPECT_TRUE(failed_.empty()) << "the service is unknown";
  ASSERT_TRUE(start(2, "w", 10'000).is_ok());
  ASSERT_TRUE(place("w", 5, {2, 0, 1}).is_ok());
  const DataHead first = started_.at(0).head;
  const Parent parent = started_.at(0).parent;
  EXPECT_FALSE(start(3, "w").is_ok()) << "in flight";
  EXPECT_TRUE(failed_.empty()) << "a later round follows the answer to the one before";
  for (int partition = 0; partition < 3; ++partition) complete(2);
  ASSERT_EQ(failed_.size(), 1u);
  EXPECT_EQ(failed_[0].parent, parent);
  EXPECT_EQ(failed_[0].head.key, first.key);
  EXPECT_EQ(failed_[0].head.round, 3u);
  EXPECT_EQ(failed_[0].head.root_node, first.root_node);
  EXPECT_EQ(failed_[0].head.serving_index, first.serving_index);
  EXPECT_EQ(failed_[0].head.rank, kRank);
  EXPECT_NE(failed_[0].why.message().find("(host "), std::string::npos)
      << "names the rank: " << failed_[0].why;
  EXPECT_NE(failed_[0].why.message().find("in flight already"), std::string::npos);
}

TEST_F(PushPullTableTest, AStepHasItsRoundWhateverWasLeftOutBefore) {
  const auto round_in = [this](Handle handle, uint64_t step) {
    PushPull request{"w", DType::kFloat32, 8};
    request.step = step;
    TableActions actions;
    EXPECT_TRUE(table_.start(handle, request, actions).is_ok());
    sort(actions);
    if (handle == 1) {
      EXPECT_TRUE(place("w", 5, {0}).is_ok());
    }
    const uint64_t round = started_.at(0).head.round;
    complete(handle);
    return round;
  };
  const uint64_t first = round_in(1, 1);
  const uint64_t again = round_in(2, 1);
  EXPECT_GT(first, 1u);
  EXPECT_EQ(again, first + 1);
  const uint64_t third = round_in(3, 3);  // nothing in step 2
  EXPECT_EQ(third, next_round(0, 3));
  EXPECT_EQ(round_in(4, 2), third + 1) << "rounds grow, also where a caller counts backwards";
  EXPECT_EQ(round_in(5, 0), third + 2);
  TableActions actions;
  table_.refuse("w", 4, aborted("backward has failed"), actions);
  sort(actions);
  EXPECT_EQ(told_.at(0).round, next_round(0, 4));
}

TEST_F(PushPullTableTest, AStepThatCannotBeIsRefused) {
  PushPull request{"w", DType::kFloat32, 8};
  request.step = kMaxStep + 1;
  TableActions actions;
  const Status status = table_.start(1, request, actions);
  sort(actions);
  EXPECT_NE(status.message().find("step: expected at most"), std::string::npos) << status.message();
  EXPECT_EQ(told_.size(), 1u);
}

TEST_F(PushPullTableTest, ARefusalDoesNotConcernTheRoundThatIsInFlightAndIsToldAfterIt) {
  ASSERT_TRUE(start(1, "w").is_ok());
  ASSERT_TRUE(place("w", 5, {0}).is_ok());
  EXPECT_FALSE(start(2, "w").is_ok());
  EXPECT_FALSE(start(3, "w").is_ok());
  EXPECT_TRUE(told_.empty()) << "services fail all rounds up to the one that they are told";
  complete(1);
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_TRUE(finished_[0].status.is_ok());
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_EQ(told_[0].round, 3u);
  ASSERT_TRUE(start(4, "w").is_ok());
  EXPECT_EQ(started_.at(0).head.round, 4u);
}

TEST_F(PushPullTableTest, AFailureIsToldOnceWhereOtherPartitionsMayWaitForEver) {
  ASSERT_TRUE(start(1, "w", 10'000).is_ok());
  ASSERT_TRUE(place("w", 5, {0, 0, 0}).is_ok());
  complete(1, invalid_argument("rank 0 asks for another"));
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_EQ(told_[0], (RoundFailed{"w", 1, false, StatusCode::kInvalidArgument, "rank 0 asks for another"}));
  complete(1, invalid_argument("rank 0 asks for another"));
  complete(1, invalid_argument("rank 0 asks for another"));
  EXPECT_TRUE(told_.empty());
  ASSERT_EQ(finished_.size(), 1u);
  ASSERT_TRUE(start(2, "w", 8).is_ok());
  complete(2, invalid_argument("rank 0 asks for another"));
  EXPECT_TRUE(told_.empty()) << "there is no other";
}

TEST_F(PushPullTableTest, ACauseReplacesTheNoteThatOthersHaveGoneOn) {
  ASSERT_TRUE(start(1, "w", 10'000).is_ok());
  ASSERT_TRUE(place("w", 5, {0, 0, 0}).is_ok());
  complete(1, aborted("rank 0 has gone on"));
  complete(1, invalid_argument("rank 0 asks for another"));
  complete(1, aborted("rank 0 has gone on"));
  EXPECT_EQ(finished_.at(0).status.message(), "tensor 'w': rank 0 asks for another");
}

TEST_F(PushPullTableTest, ARefusalOfAStoredTensorEndsTheName) {
  TableActions actions;
  PushPull request{.name = "w", .bytes = 8, .op = ReduceOp::kSeed};
  ASSERT_TRUE(table_.start(1, request, actions).is_ok());
  ASSERT_TRUE(place("w", 5, {0}).is_ok());
  complete(1);
  request.bytes = 12;
  const Status status = table_.start(2, request, actions);
  sort(actions);
  EXPECT_EQ(status.message(),
            "tensor 'w': services store 2 elements of float32, now it has 3 elements of float32");
  EXPECT_EQ(told_.at(0).round, kEveryRound);
}

TEST_F(PushPullTableTest, ARefusedRoundLeavesTheNameUsable) {
  ASSERT_TRUE(start(1, "w").is_ok());
  TableActions actions;
  table_.on_refused({"w", 5, StatusCode::kInvalidArgument, "rank 0: no", 1}, actions);
  EXPECT_TRUE(actions.empty()) << "the services fail it";
  EXPECT_TRUE(place("w", 5, {0}).is_ok());
  EXPECT_EQ(started_.size(), 1u);
}

}  // namespace
}  // namespace byteps::protocol
