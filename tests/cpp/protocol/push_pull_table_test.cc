#include "protocol/push_pull_table.h"

#include <gtest/gtest.h>

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
  Status place(const std::string& name, uint32_t id, uint64_t partition_bytes,
               const std::vector<uint16_t>& sites) {
    std::vector<Place> places;
    for (const uint16_t site : sites) places.push_back({site, 1});
    TableActions actions;
    Status status = table_.on_placed({name, id, partition_bytes, std::move(places)}, actions);
    sort(actions);
    return status;
  }
  void refuse(const std::string& name, const std::string& why) {
    TableActions actions;
    table_.on_refused({name, 9, StatusCode::kInvalidArgument, why}, actions);
    sort(actions);
  }
  void settle(Handle handle, const Result<Plan>& outcome = Plan{}) {
    TableActions actions;
    table_.settle(handle, outcome, actions);
    sort(actions);
  }
  void fail(const Status& why) {
    TableActions actions;
    table_.fail(why, actions);
    sort(actions);
  }
  void sort(const TableActions& actions) {
    declared_.clear();
    started_.clear();
    finished_.clear();
    for (const TableAction& action : actions) {
      if (const auto* send = std::get_if<SendDeclare>(&action)) declared_.push_back(send->declare);
      if (const auto* start = std::get_if<StartPartition>(&action)) started_.push_back(*start);
      if (const auto* finish = std::get_if<FinishHandle>(&action)) finished_.push_back(*finish);
    }
  }

  PushPullTable table_{kRank, two_workers_and_a_server()};
  std::vector<Declare> declared_;        // by the last call
  std::vector<StartPartition> started_;  // by the last call
  std::vector<FinishHandle> finished_;   // by the last call
};

TEST_F(PushPullTableTest, FirstUseDeclaresAndPlacementStartsThePartitions) {
  ASSERT_TRUE(start(1, "w", 10'000).is_ok());
  EXPECT_EQ(declared_, (std::vector<Declare>{{"w", DType::kFloat32, 10'000}}));
  EXPECT_TRUE(started_.empty());
  ASSERT_TRUE(place("w", 5, 4096, {2, 0, 1}).is_ok());
  ASSERT_EQ(started_.size(), 3u);
  const StartPartition& last = started_[2];
  EXPECT_EQ(last.handle, 1u);
  EXPECT_EQ(last.parent, (Parent{1, Level::kCluster}));
  EXPECT_EQ(last.offset, 8192u);
  DataHead expected;
  expected.type = DataType::kPushPull;
  expected.key = {5, 2};
  expected.round = 1;
  expected.rank = kRank;
  expected.priority = 7;
  expected.bytes = 10'000 - 8192;
  expected.top = 1;
  expected.lane = 1;
  EXPECT_EQ(last.head, expected);
}

TEST_F(PushPullTableTest, WhatIsKeptGoesToItsRootDirectlyAndFollowsNoPlan) {
  TableActions actions;
  PushPull request{.name = "w", .bytes = 10'000, .op = ReduceOp::kSeed, .root = 1, .staleness = 3};
  ASSERT_TRUE(table_.start(1, request, actions).is_ok());
  sort(actions);
  EXPECT_EQ(declared_.at(0).upkeep, (Upkeep{true, 3}));
  ASSERT_TRUE(place("w", 5, 4096, {2, 0, 1}).is_ok());
  ASSERT_EQ(started_.size(), 3u);
  EXPECT_EQ(started_[2].parent, (Parent{1, Level::kRanks}));
  EXPECT_EQ(started_[2].head.staleness, 3);
  EXPECT_EQ(started_[2].head.root, 1u);
  for (int i = 0; i < 3; ++i) settle(1, Plan{.cut = 6, .credit = 1});
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
  TableActions actions;
  const PushPull kept{.name = "w", .bytes = 8, .op = ReduceOp::kSeed, .staleness = kUnboundedStaleness};
  const Status status = table_.start(2, kept, actions);
  EXPECT_EQ(status.message(),
            "tensor 'w': this rank reduces it so far, and now keeps it with unbounded staleness");
}

TEST_F(PushPullTableTest, FinishesWhenTheLastPartitionIsSettled) {
  ASSERT_TRUE(start(1, "w", 10'000).is_ok());
  ASSERT_TRUE(place("w", 5, 4096, {0, 0, 0}).is_ok());
  settle(1);
  settle(1);
  EXPECT_TRUE(finished_.empty());
  EXPECT_EQ(table_.in_flight(), 1u);
  settle(1);
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(finished_[0].handle, 1u);
  EXPECT_TRUE(finished_[0].status.is_ok());
  EXPECT_EQ(table_.in_flight(), 0u);
}

TEST_F(PushPullTableTest, FinishesWithTheFirstFailureAndOnlyAfterTheLastPartition) {
  ASSERT_TRUE(start(1, "w", 10'000).is_ok());
  ASSERT_TRUE(place("w", 5, 4096, {0, 0, 0}).is_ok());
  settle(1, unavailable("rank 0 is gone"));
  settle(1, internal("later"));
  EXPECT_TRUE(finished_.empty());
  settle(1);
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(finished_[0].status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(finished_[0].status.message(), "tensor 'w': rank 0 is gone");
}

TEST_F(PushPullTableTest, RoundsCountTheStartsOfATensor) {
  ASSERT_TRUE(start(1, "w").is_ok());
  ASSERT_TRUE(place("w", 5, 4096, {0}).is_ok());
  EXPECT_EQ(started_[0].head.round, 1u);
  settle(1);
  ASSERT_TRUE(start(2, "w").is_ok());
  EXPECT_TRUE(declared_.empty()) << "the placement is kept";
  ASSERT_EQ(started_.size(), 1u);
  EXPECT_EQ(started_[0].head.round, 2u);
}

TEST_F(PushPullTableTest, DeclaringAheadMakesTheFirstUseImmediate) {
  ASSERT_TRUE(declare("w", 8).is_ok());
  EXPECT_EQ(declared_.size(), 1u);
  ASSERT_TRUE(place("w", 5, 4096, {2}).is_ok());
  EXPECT_TRUE(started_.empty());
  ASSERT_TRUE(start(1, "w").is_ok());
  EXPECT_TRUE(declared_.empty());
  EXPECT_EQ(started_.size(), 1u);
}

TEST_F(PushPullTableTest, EmptyTensorIsOneEmptyPartition) {
  ASSERT_TRUE(start(1, "w", 0).is_ok());
  ASSERT_TRUE(place("w", 5, 4096, {2}).is_ok());
  ASSERT_EQ(started_.size(), 1u);
  EXPECT_EQ(started_[0].head.bytes, 0u);
}

TEST_F(PushPullTableTest, RootTravelsOnlyWithBroadcasts) {
  ASSERT_TRUE(start(1, "b", 8, ReduceOp::kBroadcast, 1).is_ok());
  ASSERT_TRUE(place("b", 1, 4096, {0}).is_ok());
  EXPECT_EQ(started_[0].head.root, 1u);
  ASSERT_TRUE(start(2, "s", 8, ReduceOp::kSum, 1).is_ok());
  ASSERT_TRUE(place("s", 2, 4096, {0}).is_ok());
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
      {start(3, "w", 12),
       "tensor 'w': declared with 2 elements of float32 before, now used with 3 elements of float32"},
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
  ASSERT_TRUE(place("w", 5, 4096, {0}).is_ok());
  refuse("w", "ranks disagree");
  EXPECT_TRUE(finished_.empty()) << "its memory is still in use";
  settle(1, invalid_argument("ranks disagree"));
  EXPECT_EQ(finished_.size(), 1u);
  EXPECT_FALSE(start(2, "w").is_ok());
}

TEST_F(PushPullTableTest, RefusalOfATensorOfOthersIsIgnored) {
  refuse("theirs", "ranks disagree");
  EXPECT_TRUE(start(1, "theirs").is_ok()) << "the scheduler answers that itself";
}

TEST_F(PushPullTableTest, PlacementThatDoesNotFitIsRefused) {
  EXPECT_EQ(place("w", 1, 4096, {0}).code(), StatusCode::kDataLoss) << "never asked for";
  ASSERT_TRUE(start(1, "w", 10'000).is_ok());
  EXPECT_FALSE(place("w", 1, 4096, {0, 0}).is_ok()) << "a partition without a place";
  EXPECT_FALSE(place("w", 1, 4096, {0, 0, 0, 0}).is_ok()) << "a place too many";
  EXPECT_FALSE(place("w", 1, 4096, {0, 0, kSites}).is_ok()) << "no such site";
  EXPECT_FALSE(place("w", 1, 0, {}).is_ok()) << "no size";
  EXPECT_FALSE(place("w", 1, 1, {}).is_ok()) << "splits elements";
  EXPECT_TRUE(started_.empty());
  ASSERT_TRUE(place("w", 1, 4096, {0, 0, 0}).is_ok());
  EXPECT_EQ(place("w", 1, 4096, {0, 0, 0}).code(), StatusCode::kDataLoss) << "twice";
  EXPECT_TRUE(started_.empty());
}

TEST_F(PushPullTableTest, FailureOfTheJobEndsWhatWaitsAndEveryLaterStart) {
  ASSERT_TRUE(start(1, "placed").is_ok());
  ASSERT_TRUE(place("placed", 5, 4096, {0}).is_ok());
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
  ASSERT_TRUE(place("waiting", 6, 4096, {0}).is_ok()) << "was on its way";
  EXPECT_TRUE(started_.empty());
  settle(1, unavailable("connection closed"));
  EXPECT_EQ(finished_.size(), 1u);
  EXPECT_EQ(table_.in_flight(), 0u);
}

}  // namespace
}  // namespace byteps::protocol
