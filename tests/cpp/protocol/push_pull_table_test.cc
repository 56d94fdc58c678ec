#include "protocol/push_pull_table.h"

#include <gtest/gtest.h>

#include "protocol/rounds.h"

namespace byteps::protocol {
namespace {

constexpr uint32_t kRank = 1;
constexpr uint16_t kSites = 3;

// Two workers on machines of their own, and a server; each with two shards.
Tree two_workers_and_a_server() {
  std::vector<NodeInfo> nodes(3);
  for (size_t i = 0; i < nodes.size(); ++i) {
    nodes[i].machine = std::to_string(i);
    nodes[i].addresses = {"a", "b"};
  }
  return {nodes, 2};
}

// A table, and what its actions said, sorted.
class PushPullTableTest : public testing::Test {
 protected:
  Status start(Handle handle, const std::string& name, uint64_t bytes = 8, ReduceOp op = ReduceOp::kSum,
               uint32_t root = 0) {
    TableActions actions;
    Status status = table_.start(handle, {name, DType::kFloat32, bytes, op, root, 7}, actions);
    sort(actions);
    return status;
  }
  Status declare(const std::string& name, uint64_t bytes) {
    TableActions actions;
    Status status = table_.declare(name, DType::kFloat32, bytes, actions);
    sort(actions);
    return status;
  }
  Status place(const std::string& name, uint32_t number, const std::vector<uint16_t>& reducer_hosts) {
    std::vector<RootLocation> places;
    for (const uint16_t reducer_host : reducer_hosts) places.push_back({reducer_host, 1});
    TableActions actions;
    Status status = table_.on_placed({name, number, std::move(places)}, actions);
    sort(actions);
    return status;
  }
  void refuse(const std::string& name, const std::string& why) {
    TableActions actions;
    table_.on_refused({name, 9, StatusCode::kInvalidArgument, why}, actions);
    sort(actions);
  }
  void complete(Handle handle, const Result<Plan>& outcome = Plan{}) {
    TableActions actions;
    table_.complete(handle, outcome, actions);
    sort(actions);
  }
  void fail(const Status& why) {
    TableActions actions;
    table_.fail(why, actions);
    sort(actions);
  }
  void sort(const TableActions& actions) {
    declared_.clear();
    told_.clear();
    started_.clear();
    failed_.clear();
    finished_.clear();
    for (const TableAction& action : actions) {
      if (const auto* send = std::get_if<SendDeclare>(&action)) declared_.push_back(send->declare);
      if (const auto* send = std::get_if<SendRoundFailed>(&action)) told_.push_back(send->failed);
      if (const auto* start = std::get_if<StartPartition>(&action)) started_.push_back(*start);
      if (const auto* fail = std::get_if<FailPartition>(&action)) failed_.push_back(*fail);
      if (const auto* finish = std::get_if<FinishHandle>(&action)) finished_.push_back(*finish);
    }
  }

  PushPullTable table_{kRank, two_workers_and_a_server(), PartitionRule({}, 4096)};
  std::vector<RoundFailed> told_;        // by the last call
  std::vector<Declare> declared_;        // by the last call
  std::vector<StartPartition> started_;  // by the last call
  std::vector<FailPartition> failed_;    // by the last call
  std::vector<FinishHandle> finished_;   // by the last call
};

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
  expected.shard_index = 1;
  EXPECT_EQ(last.head, expected);
}

TEST_F(PushPullTableTest, WhatIsKeptGoesToItsRootDirectlyAndFollowsNoPlan) {
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
  EXPECT_TRUE(declared_.empty()) << "another cut would lose the value";
  request.op = ReduceOp::kAccumulate;
  actions.clear();
  ASSERT_TRUE(table_.start(2, request, actions).is_ok());
  sort(actions);
  ASSERT_EQ(started_.size(), 3u);
  EXPECT_EQ(started_[0].head.round, 2u);
  EXPECT_EQ(started_[0].head.op, ReduceOp::kAccumulate);
}

TEST_F(PushPullTableTest, OneRankDoesNotChangeItsMindAboutWhatIsKept) {
  ASSERT_TRUE(start(1, "w").is_ok());
  ASSERT_TRUE(place("w", 5, {0}).is_ok());
  complete(1);
  TableActions actions;
  const PushPull kept{.name = "w", .bytes = 8, .op = ReduceOp::kSeed, .staleness = kUnboundedStaleness};
  const Status status = table_.start(2, kept, actions);
  EXPECT_EQ(status.message(),
            "tensor 'w': this rank reduces it so far, and now keeps it with unbounded staleness");
}

TEST_F(PushPullTableTest, FinishesWhenTheLastPartitionIsSettled) {
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

TEST_F(PushPullTableTest, RoundsCountTheStartsOfATensor) {
  ASSERT_TRUE(start(1, "w").is_ok());
  ASSERT_TRUE(place("w", 5, {0}).is_ok());
  EXPECT_EQ(started_[0].head.round, 1u);
  complete(1);
  ASSERT_TRUE(start(2, "w").is_ok());
  EXPECT_TRUE(declared_.empty()) << "the placement is kept";
  ASSERT_EQ(started_.size(), 1u);
  EXPECT_EQ(started_[0].head.round, 2u);
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

TEST_F(PushPullTableTest, RefusedNameFailsWhatWaitsAndWhatFollows) {
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
  EXPECT_EQ(place("w", 1, {0}).code(), StatusCode::kDataLoss) << "never asked for";
  ASSERT_TRUE(start(1, "w", 10'000).is_ok());
  EXPECT_FALSE(place("w", 1, {0, 0}).is_ok()) << "a partition without a place";
  EXPECT_FALSE(place("w", 1, {0, 0, kSites}).is_ok()) << "no such reducer_host";
  EXPECT_FALSE(place("w", 0, {0, 0, 0}).is_ok()) << "no number";
  EXPECT_TRUE(started_.empty());
  ASSERT_TRUE(place("w", 1, {0, 0, 0, 0}).is_ok()) << "others have asked for more";
  EXPECT_EQ(started_.size(), 3u);
  EXPECT_EQ(place("w", 1, {0, 0, 0}).code(), StatusCode::kDataLoss) << "twice";
  EXPECT_TRUE(started_.empty());
}

TEST_F(PushPullTableTest, TheSizeMayChangeAndPlacesAreAskedForOnlyWhereThereAreMore) {
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

// Else the service may hear of the next round before, and say no more than that this rank has gone on.
TEST_F(PushPullTableTest, TheServiceOfTheFirstPartitionHearsOfARefusalFromTheRankItself) {
  EXPECT_FALSE(start(1, "w", 8, ReduceOp::kBroadcast, 2).is_ok());
  EXPECT_TRUE(failed_.empty()) << "it is not known which service that is";
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
  EXPECT_EQ(failed_[0].head.shard_index, first.shard_index);
  EXPECT_EQ(failed_[0].head.rank, kRank);
  EXPECT_NE(failed_[0].why.message().find("(host "), std::string::npos) << "who it was: " << failed_[0].why;
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

TEST_F(PushPullTableTest, ThatOthersHaveGoneOnGivesWayToACause) {
  ASSERT_TRUE(start(1, "w", 10'000).is_ok());
  ASSERT_TRUE(place("w", 5, {0, 0, 0}).is_ok());
  complete(1, aborted("rank 0 has gone on"));
  complete(1, invalid_argument("rank 0 asks for another"));
  complete(1, aborted("rank 0 has gone on"));
  EXPECT_EQ(finished_.at(0).status.message(), "tensor 'w': rank 0 asks for another");
}

TEST_F(PushPullTableTest, ARefusalOfWhatIsKeptEndsTheName) {
  TableActions actions;
  PushPull request{.name = "w", .bytes = 8, .op = ReduceOp::kSeed};
  ASSERT_TRUE(table_.start(1, request, actions).is_ok());
  ASSERT_TRUE(place("w", 5, {0}).is_ok());
  complete(1);
  request.bytes = 12;
  const Status status = table_.start(2, request, actions);
  sort(actions);
  EXPECT_EQ(status.message(),
            "tensor 'w': services keep 2 elements of float32, and now it has 3 elements of float32");
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

TEST_F(PushPullTableTest, FailureOfTheJobEndsWhatWaitsAndEveryLaterStart) {
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
  ASSERT_TRUE(place("waiting", 6, {0}).is_ok()) << "was on its way";
  EXPECT_TRUE(started_.empty());
  complete(1, unavailable("connection closed"));
  EXPECT_EQ(finished_.size(), 1u);
  EXPECT_EQ(table_.in_flight(), 0u);
}

}  // namespace
}  // namespace byteps::protocol
