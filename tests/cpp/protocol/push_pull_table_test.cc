#include "protocol/push_pull_table_harness.h"

namespace byteps::protocol {
namespace {

TEST_F(PushPullTableTest, FirstUseDeclaresAndPlacementStartsThePartitions) {
  ASSERT_TRUE(start(1, "w", 10'000).is_ok());
  EXPECT_EQ(declared_, (std::vector<Declare>{{"w", DType::kFloat32, 10'000}}));
  EXPECT_TRUE(started_.empty());
  ASSERT_TRUE(place("w", 5, {2, 0, 1}).is_ok());
  ASSERT_EQ(started_.size(), 3u);
  const StartPartition& last = started_[2];
  EXPECT_EQ(last.handle, 1u);
  EXPECT_EQ(last.parent, (Parent{1, Level::kCluster}));
  EXPECT_EQ(last.offset, 8192u);
  DataHead expected;
  expected.type = DataType::kPushPull;
  expected.key = {key_tensor(5, 0), 2};
  expected.round = 1;
  expected.rank = kRank;
  expected.priority = 7;
  expected.bytes = 10'000 - 8192;
  expected.root_node = 1;
  expected.serving_index = 1;
  EXPECT_EQ(last.head, expected);
}

TEST_F(PushPullTableTest, AStoredTensorGoesToItsRootDirectlyAndFollowsNoPlan) {
  TableActions actions;
  PushPull request{.name = "w", .bytes = 10'000, .op = ReduceOp::kSeed, .root = 1, .staleness = 3};
  ASSERT_TRUE(table_.start(1, request, actions).is_ok());
  sort(actions);
  EXPECT_EQ(declared_.at(0).mode, (TensorMode{true, 3}));
  ASSERT_TRUE(place("w", 5, {2, 0, 1}).is_ok());
  ASSERT_EQ(started_.size(), 3u);
  EXPECT_EQ(started_[2].parent, (Parent{1, Level::kRanks}));
  EXPECT_EQ(started_[2].head.staleness, 3);
  EXPECT_EQ(started_[2].head.root, 1u);
  for (int i = 0; i < 3; ++i) complete(1, Plan{.partition_scale = 6, .credit = 1});
  EXPECT_TRUE(declared_.empty()) << "another partitioning would lose the value";
  request.op = ReduceOp::kAccumulate;
  actions.clear();
  ASSERT_TRUE(table_.start(2, request, actions).is_ok());
  sort(actions);
  ASSERT_EQ(started_.size(), 3u);
  EXPECT_EQ(started_[0].head.round, 2u);
  EXPECT_EQ(started_[0].head.op, ReduceOp::kAccumulate);
}

TEST_F(PushPullTableTest, ARankCannotChangeTheModeOfATensor) {
  ASSERT_TRUE(start(1, "w").is_ok());
  ASSERT_TRUE(place("w", 5, {0}).is_ok());
  complete(1);
  TableActions actions;
  const PushPull stored{.name = "w", .bytes = 8, .op = ReduceOp::kSeed, .staleness = kUnboundedStaleness};
  const Status status = table_.start(2, stored, actions);
  EXPECT_EQ(status.message(),
            "tensor 'w': this rank reduces it so far, now it stores it with unbounded staleness");
}

TEST_F(PushPullTableTest, FinishesWhenTheLastPartitionIsComplete) {
  ASSERT_TRUE(start(1, "w", 10'000).is_ok());
  ASSERT_TRUE(place("w", 5, {0, 0, 0}).is_ok());
  complete(1);
  complete(1);
  EXPECT_TRUE(finished_.empty());
  EXPECT_EQ(table_.in_flight(), 1u);
  complete(1);
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(finished_[0].handle, 1u);
  EXPECT_TRUE(finished_[0].status.is_ok());
  EXPECT_EQ(table_.in_flight(), 0u);
}

TEST_F(PushPullTableTest, FinishesWithTheFirstFailureAndOnlyAfterTheLastPartition) {
  ASSERT_TRUE(start(1, "w", 10'000).is_ok());
  ASSERT_TRUE(place("w", 5, {0, 0, 0}).is_ok());
  complete(1, unavailable("rank 0 is gone"));
  complete(1, internal("later"));
  EXPECT_TRUE(finished_.empty());
  complete(1);
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(finished_[0].status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(finished_[0].status.message(), "tensor 'w': rank 0 is gone");
}

TEST_F(PushPullTableTest, DeclaringAheadMakesTheFirstUseImmediate) {
  ASSERT_TRUE(declare("w", 8).is_ok());
  EXPECT_EQ(declared_.size(), 1u);
  ASSERT_TRUE(place("w", 5, {2}).is_ok());
  EXPECT_TRUE(started_.empty());
  ASSERT_TRUE(start(1, "w").is_ok());
  EXPECT_TRUE(declared_.empty());
  EXPECT_EQ(started_.size(), 1u);
}

TEST_F(PushPullTableTest, EmptyTensorIsOneEmptyPartition) {
  ASSERT_TRUE(start(1, "w", 0).is_ok());
  ASSERT_TRUE(place("w", 5, {2}).is_ok());
  ASSERT_EQ(started_.size(), 1u);
  EXPECT_EQ(started_[0].head.bytes, 0u);
}

TEST_F(PushPullTableTest, RootTravelsOnlyWithBroadcasts) {
  ASSERT_TRUE(start(1, "b", 8, ReduceOp::kBroadcast, 1).is_ok());
  ASSERT_TRUE(place("b", 1, {0}).is_ok());
  EXPECT_EQ(started_[0].head.root, 1u);
  ASSERT_TRUE(start(2, "s", 8, ReduceOp::kSum, 1).is_ok());
  ASSERT_TRUE(place("s", 2, {0}).is_ok());
  EXPECT_EQ(started_[0].head.root, 0u);
}

TEST_F(PushPullTableTest, RefusesBadRequestsAndBeginsNothing) {
  ASSERT_TRUE(start(1, "w").is_ok());
  struct Case {
    Status status;
    const char* says;
  };
  const Case cases[] = {
      {start(2, "w"), "tensor 'w': a push_pull of it is in flight already"},
      {start(4, ""), "expected 1 to 1024 bytes, got 0"},
      {start(5, std::string(1025, 'x')), "expected 1 to 1024 bytes, got 1025"},
      {start(6, "x", 6), "tensor 'x': size: expected a multiple of the element size"},
      {start(7, "x", kMaxTensorBytes + 4), "expected at most"},
      {start(8, "x", 8, ReduceOp::kBroadcast, 2), "tensor 'x': root: expected a rank below 2, got 2"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(c.status.code(), StatusCode::kInvalidArgument) << c.says;
    EXPECT_NE(c.status.message().find(c.says), std::string::npos) << c.status;
  }
  EXPECT_EQ(table_.in_flight(), 1u);
  EXPECT_TRUE(start(9, "x").is_ok()) << "a refused use must not bind the name";
}

TEST_F(PushPullTableTest, RefusedNameFailsWaitingAndLaterPushPulls) {
  ASSERT_TRUE(start(1, "w").is_ok());
  refuse("w", "ranks disagree");
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(finished_[0].status.message(), "tensor 'w': ranks disagree");
  EXPECT_EQ(start(2, "w").message(), "tensor 'w': ranks disagree");
  refuse("w", "again");
  EXPECT_TRUE(finished_.empty());
  EXPECT_EQ(start(3, "w").message(), "tensor 'w': ranks disagree");
}

TEST_F(PushPullTableTest, RefusalOfAPlacedTensorLeavesItsPartitionsToTheServices) {
  ASSERT_TRUE(start(1, "w").is_ok());
  ASSERT_TRUE(place("w", 5, {0}).is_ok());
  refuse("w", "ranks disagree");
  EXPECT_TRUE(finished_.empty()) << "its memory is still in use";
  complete(1, invalid_argument("ranks disagree"));
  EXPECT_EQ(finished_.size(), 1u);
  EXPECT_FALSE(start(2, "w").is_ok());
}

TEST_F(PushPullTableTest, RefusalOfATensorOfOthersIsIgnored) {
  refuse("theirs", "ranks disagree");
  EXPECT_TRUE(start(1, "theirs").is_ok()) << "the scheduler answers that itself";
}

TEST_F(PushPullTableTest, PlacementThatDoesNotFitIsRefused) {
  EXPECT_EQ(place("w", 1, {0}).code(), StatusCode::kDataLoss) << "never requested";
  ASSERT_TRUE(start(1, "w", 10'000).is_ok());
  EXPECT_FALSE(place("w", 1, {0, 0}).is_ok()) << "a partition without a location";
  EXPECT_FALSE(place("w", 1, {0, 0, kReducerHosts}).is_ok()) << "no such reducer host";
  EXPECT_FALSE(place("w", 0, {0, 0, 0}).is_ok()) << "no number";
  EXPECT_TRUE(started_.empty());
  ASSERT_TRUE(place("w", 1, {0, 0, 0, 0}).is_ok()) << "others have requested more";
  EXPECT_EQ(started_.size(), 3u);
  EXPECT_EQ(place("w", 1, {0, 0, 0}).code(), StatusCode::kDataLoss) << "twice";
  EXPECT_TRUE(started_.empty());
}

TEST_F(PushPullTableTest, TheSizeMayChangeAndOnlyMissingLocationsAreRequested) {
  ASSERT_TRUE(start(1, "w", 10'000).is_ok());
  ASSERT_TRUE(place("w", 5, {0, 1, 2}).is_ok());
  for (int i = 0; i < 3; ++i) complete(1);
  for (const uint64_t bytes : {4'000ull, 8'192ull, 12'000ull}) {
    ASSERT_TRUE(start(2, "w", bytes).is_ok());
    EXPECT_TRUE(declared_.empty()) << bytes;
    const std::vector<StartPartition> started = started_;
    ASSERT_EQ(started.size(), (bytes + 4095) / 4096);
    EXPECT_EQ(started[0].head.key, (Key{key_tensor(5, 0), 0}));
    for (const StartPartition& each : started) complete(each.handle);
  }
  ASSERT_TRUE(start(3, "w", 16'000).is_ok());
  EXPECT_EQ(declared_, (std::vector<Declare>{{"w", DType::kFloat32, 16'000}}));
  EXPECT_TRUE(started_.empty());
  EXPECT_FALSE(place("w", 6, {0, 1, 2, 0}).is_ok()) << "the number of another name";
  ASSERT_TRUE(place("w", 5, {0, 1, 2, 0}).is_ok());
  ASSERT_EQ(started_.size(), 4u);
  EXPECT_EQ(started_[3].head.round, 5u) << "of the name, whatever the size";
}

TEST_F(PushPullTableTest, TheShapeIsInEveryHeadAndFitsTheBytes) {
  const auto with_shape = [&](Handle handle, std::vector<int64_t> dims) {
    TableActions actions;
    PushPull request{.name = "w", .bytes = 24, .shape = *Shape::of(dims)};
    Status status = table_.start(handle, request, actions);
    sort(actions);
    return status;
  };
  ASSERT_TRUE(with_shape(1, {2, 3}).is_ok());
  ASSERT_TRUE(place("w", 5, {0}).is_ok());
  EXPECT_EQ(started_[0].head.shape.describe(), "(2, 3)");
  complete(1);
  EXPECT_EQ(with_shape(2, {2, 4}).message(),
            "tensor 'w': shape: expected one of 6 elements of float32, got (2, 4)");
}

TEST_F(PushPullTableTest, FailureOfTheJobEndsWaitingPushPullsAndEveryLaterStart) {
  ASSERT_TRUE(start(1, "placed").is_ok());
  ASSERT_TRUE(place("placed", 5, {0}).is_ok());
  ASSERT_TRUE(start(3, "waiting").is_ok());
  ASSERT_TRUE(start(2, "waiting too").is_ok());
  fail(unavailable("rank 0 is gone"));
  ASSERT_EQ(finished_.size(), 2u);
  EXPECT_EQ(finished_[0].handle, 2u);
  EXPECT_EQ(finished_[1].handle, 3u);
  EXPECT_EQ(finished_[1].status.message(), "tensor 'waiting': rank 0 is gone");
  fail(internal("later"));
  EXPECT_TRUE(finished_.empty());
  EXPECT_EQ(start(4, "new").message(), "rank 0 is gone");
  ASSERT_TRUE(place("waiting", 6, {0}).is_ok()) << "the answer was in flight";
  EXPECT_TRUE(started_.empty());
  complete(1, unavailable("connection closed"));
  EXPECT_EQ(finished_.size(), 1u);
  EXPECT_EQ(table_.in_flight(), 0u);
}

}  // namespace
}  // namespace byteps::protocol
