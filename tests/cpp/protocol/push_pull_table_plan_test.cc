// Changes of the plan: the partition scale of a tensor changes between two push_pulls.
#include <gtest/gtest.h>

#include "protocol/push_pull_table.h"
#include "protocol/tensor_directory.h"

namespace byteps::protocol {
namespace {

constexpr uint64_t kPartitionBytes = 512 << 10;
constexpr uint64_t kTensorBytes = 1 << 20;
constexpr Plan k128KiB{.partition_scale = 2, .credit = 0};
constexpr Plan k256KiB{.partition_scale = 3, .credit = 0};
static_assert(scaled_partition_bytes(k128KiB.partition_scale, kPartitionBytes) == 128 << 10);
static_assert(scaled_partition_bytes(k256KiB.partition_scale, kPartitionBytes) == 256 << 10);

Tree one_rank_each() {
  std::vector<NodeInfo> nodes(2);
  for (int32_t rank = 0; rank < 2; ++rank) {
    nodes[static_cast<size_t>(rank)].rank = rank;
    nodes[static_cast<size_t>(rank)].machine = std::to_string(rank);
  }
  return {nodes, 2};
}

// The table of rank 1, and its scheduler's directory, which answers when place() is called.
class PlanChange : public testing::Test {
 protected:
  Status start(Handle handle, const std::string& name = "w", uint64_t bytes = kTensorBytes) {
    clear();
    const Status status =
        table_.start(handle, {name, DType::kFloat32, bytes, ReduceOp::kSum, 0, 0}, actions_);
    sort();
    return status;
  }
  // The scheduler answers the Declares.
  void place() {
    const std::vector<Declare> declared = std::exchange(declared_, {});
    clear();
    for (const Declare& declare : declared) {
      EXPECT_TRUE(
          table_.on_placed(std::get<Placed>(directory_.declare(1, declare).message), actions_).is_ok());
    }
    sort();
  }
  // Completes all partitions of the last start.
  void complete(const Result<Plan>& outcome) {
    const std::vector<StartPartition> started = started_;
    clear();
    for (const StartPartition& partition : started) table_.complete(partition.handle, outcome, actions_);
    sort();
  }
  void clear() {
    actions_.clear();
    started_.clear();
    plans_.clear();
    finished_.clear();
  }
  void sort() {
    for (const TableAction& action : actions_) {
      if (const auto* send = std::get_if<SendDeclare>(&action)) declared_.push_back(send->declare);
      if (const auto* change = std::get_if<ChangePlan>(&action)) plans_.push_back(change->plan);
      if (const auto* start = std::get_if<StartPartition>(&action)) started_.push_back(*start);
      if (const auto* finish = std::get_if<FinishHandle>(&action)) finished_.push_back(finish->status);
    }
  }
  // "w" has been used once, and the results asked for `next`; its locations have arrived if
  // `placed`.
  void first_push_pull(const Plan& next, bool placed = true) {
    ASSERT_TRUE(start(1).is_ok());
    place();
    ASSERT_EQ(started_.size(), 2u);
    complete(next);
    if (placed) place();
  }

  PushPullTable table_{1, one_rank_each(), PartitionRule({}, kPartitionBytes)};
  TensorDirectory directory_{
      {"rank 0", "rank 1"}, RootAssigner(one_rank_each(), {0.5, 0.5}), PartitionRule({}, kPartitionBytes)};
  TableActions actions_;
  std::vector<Declare> declared_;  // without an answer
  // Actions of the last call:
  std::vector<StartPartition> started_;
  std::vector<Plan> plans_;
  std::vector<Status> finished_;
};

TEST_F(PlanChange, TheNextPlacementIsRequestedWithTheResultAndUsedByTheNextPushPull) {
  first_push_pull(k128KiB, false);
  EXPECT_EQ(finished_.size(), 1u);
  EXPECT_EQ(declared_, (std::vector<Declare>{{"w", DType::kFloat32, kTensorBytes, k128KiB.partition_scale}}));
  place();
  EXPECT_TRUE(started_.empty());
  ASSERT_TRUE(start(2).is_ok());
  EXPECT_EQ(plans_, (std::vector<Plan>{k128KiB}));
  ASSERT_EQ(started_.size(), 8u);
  EXPECT_EQ(started_[7].head.key, (Key{key_tensor(1, k128KiB.partition_scale), 7}));
  EXPECT_EQ(started_[7].head.round, 2u) << "rounds are those of the name";
  EXPECT_EQ(started_[7].offset, 7u * (128 << 10));
}

TEST_F(PlanChange, APushPullThatComesBeforeThePlacementWaitsForIt) {
  first_push_pull(k128KiB, false);
  ASSERT_TRUE(start(2).is_ok());
  EXPECT_TRUE(started_.empty());
  place();
  EXPECT_EQ(started_.size(), 8u);
}

TEST_F(PlanChange, AKnownPlacementIsNotRequestedAgain) {
  first_push_pull(k128KiB);
  ASSERT_TRUE(start(2).is_ok());
  complete(Plan{});
  EXPECT_TRUE(declared_.empty());
  ASSERT_TRUE(start(3).is_ok());
  ASSERT_EQ(started_.size(), 2u);
  EXPECT_EQ(started_[0].head.key, (Key{key_tensor(1, 0), 0}));
  EXPECT_EQ(started_[0].head.round, 3u);
  complete(k128KiB);
  ASSERT_TRUE(start(4).is_ok());
  EXPECT_EQ(started_[0].head.key, (Key{key_tensor(1, k128KiB.partition_scale), 0}));
  EXPECT_EQ(started_[0].head.round, 4u);
}

TEST_F(PlanChange, APushPullThatFailedAltogetherChangesNothing) {
  first_push_pull(k128KiB);
  ASSERT_TRUE(start(2).is_ok());
  complete(deadline_exceeded("rank 0 did not come"));
  ASSERT_TRUE(start(3).is_ok());
  EXPECT_EQ(started_.size(), 8u);
  EXPECT_EQ(started_[0].head.round, 3u);
}

TEST_F(PlanChange, OneAnsweredPartitionIsEnough) {
  ASSERT_TRUE(start(1).is_ok());
  place();
  TableActions actions;
  table_.complete(1, deadline_exceeded("rank 0 did not come"), actions);
  table_.complete(1, k128KiB, actions);
  ASSERT_EQ(actions.size(), 3u);
  EXPECT_TRUE(std::holds_alternative<SendRoundFailed>(actions[0]));
  EXPECT_EQ(std::get<SendDeclare>(actions[1]).declare.partition_scale, k128KiB.partition_scale);
}

// The location of the first partition depends only on the plan, so ranks that mean different sizes
// meet there.
TEST_F(PlanChange, TensorsOfAllSizesFollowIt) {
  for (const auto& [name, bytes] : {std::pair{"small", 400ull}, {"empty", 0ull}}) {
    ASSERT_TRUE(start(1, name, bytes).is_ok());
    place();
    complete(k128KiB);
    EXPECT_EQ(declared_.at(0).partition_scale, k128KiB.partition_scale);
    place();
    ASSERT_TRUE(start(2, name, bytes).is_ok());
    ASSERT_EQ(started_.size(), 1u);
    EXPECT_EQ(started_[0].head.key.tensor % (kMaxPartitionScale + 1), k128KiB.partition_scale);
    complete(Plan{});
  }
}

TEST_F(PlanChange, AnotherSizeUnderAnotherScaleRequestsTheMissingLocations) {
  first_push_pull(k128KiB);
  ASSERT_TRUE(start(2, "w", kTensorBytes / 2).is_ok());
  EXPECT_TRUE(declared_.empty());
  EXPECT_EQ(started_.size(), 4u);
  complete(k128KiB);
  ASSERT_TRUE(start(3, "w", 2 * kTensorBytes).is_ok());
  EXPECT_EQ(declared_,
            (std::vector<Declare>{{"w", DType::kFloat32, 2 * kTensorBytes, k128KiB.partition_scale}}));
  place();
  EXPECT_EQ(started_.size(), 16u);
}

TEST_F(PlanChange, APlacementThatNobodyWaitsForAnyMoreStartsNothing) {
  first_push_pull(k128KiB, false);
  const std::vector<Declare> late = std::exchange(declared_, {});
  ASSERT_TRUE(start(2).is_ok());
  declared_ = late;
  place();
  complete(k256KiB);
  const std::vector<Declare> next = std::exchange(declared_, {});
  ASSERT_EQ(next.size(), 1u);
  ASSERT_TRUE(start(3).is_ok());
  EXPECT_TRUE(started_.empty());
  TableActions actions;
  EXPECT_EQ(table_.on_placed(std::get<Placed>(directory_.declare(1, late[0]).message), actions).code(),
            StatusCode::kDataLoss)
      << "twice";
  EXPECT_TRUE(actions.empty());
  declared_ = next;
  place();
  EXPECT_EQ(started_.size(), 4u);
}

TEST_F(PlanChange, AnotherPlacementIsRequestedWithTheResultAndUsedByTheNextPushPull) {
  directory_.change_shares(RootAssigner(one_rank_each(), {0, 1}));
  first_push_pull({.placement = 7}, false);
  ASSERT_EQ(declared_, (std::vector<Declare>{{"w", DType::kFloat32, kTensorBytes, 0, {}, 7}}));
  directory_.change_shares(RootAssigner(one_rank_each(), {1, 0}));
  place();
  ASSERT_TRUE(start(2).is_ok());
  ASSERT_EQ(started_.size(), 2u);
  for (const StartPartition& partition : started_) {
    EXPECT_EQ(partition.head.root_node, 0u);
    EXPECT_EQ(partition.head.key.tensor, key_tensor(1, 0)) << "the same partition, elsewhere";
  }
}

TEST_F(PlanChange, LocationsOfOtherPlacementsAreForgotten) {
  first_push_pull({.placement = 1});
  ASSERT_TRUE(start(2).is_ok());
  complete(Plan{.placement = 1});
  EXPECT_TRUE(declared_.empty()) << "known";
  ASSERT_TRUE(start(3).is_ok());
  complete(Plan{.placement = 2});
  EXPECT_EQ(std::exchange(declared_, {}).size(), 1u);
  ASSERT_TRUE(start(4).is_ok());
  EXPECT_TRUE(started_.empty());
}

// The scheduler's answer to an earlier request may come after the next placement is known.
TEST_F(PlanChange, ALateAnswerAboutAnotherPlacementIsNoError) {
  first_push_pull({.placement = 1}, false);
  TableActions actions;
  ASSERT_TRUE(table_.declare("w", DType::kFloat32, 2 * kTensorBytes, actions).is_ok());
  ASSERT_EQ(actions.size(), 1u);
  const Declare late = std::get<SendDeclare>(actions[0]).declare;
  EXPECT_EQ(late.placement, 1u);
  place();
  ASSERT_TRUE(start(2).is_ok());
  complete(Plan{.placement = 2});
  EXPECT_TRUE(table_.on_placed(std::get<Placed>(directory_.declare(1, late).message), actions).is_ok());
  place();
  ASSERT_TRUE(start(3).is_ok());
  EXPECT_EQ(started_.size(), 2u);
}

TEST_F(PlanChange, TheJobFailsWhileAPushPullWaitsForAPlacement) {
  first_push_pull(k128KiB, false);
  ASSERT_TRUE(start(2).is_ok());
  clear();
  table_.fail(unavailable("rank 0 is gone"), actions_);
  sort();
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(finished_[0].message(), "tensor 'w': rank 0 is gone");
  place();
  EXPECT_TRUE(started_.empty());
  EXPECT_EQ(table_.in_flight(), 0u);
}

TEST_F(PlanChange, TheNameIsRefusedWhileAPushPullWaitsForAPlacement) {
  first_push_pull(k128KiB, false);
  ASSERT_TRUE(start(2).is_ok());
  clear();
  table_.on_refused({"w", 1, StatusCode::kInvalidArgument, "ranks disagree"}, actions_);
  sort();
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(start(3).message(), "tensor 'w': ranks disagree");
}

TEST_F(PlanChange, OnlyTensorsWithAResultFollowAPlan) {
  first_push_pull({.partition_scale = 0, .credit = 5});
  ASSERT_TRUE(start(2).is_ok());
  EXPECT_EQ(plans_, (std::vector<Plan>{{.partition_scale = 0, .credit = 5}}));
  ASSERT_TRUE(start(3, "new").is_ok());
  place();
  EXPECT_EQ(started_.size(), 2u);
  EXPECT_TRUE(plans_.empty()) << "a new tensor follows no plan";
}

TEST_F(PlanChange, ThePlanThatThisRankRequestsIsInEveryHead) {
  table_.ask_for(k256KiB);
  ASSERT_TRUE(start(1).is_ok());
  place();
  for (const StartPartition& partition : started_) EXPECT_EQ(partition.head.plan, k256KiB);
}

TEST_F(PlanChange, APlacementThatIsRequestedKeepsTheOtherRequest) {
  table_.ask_for(k256KiB);
  table_.ask_for_placement(3);
  table_.ask_for(k256KiB);
  ASSERT_TRUE(start(1).is_ok());
  place();
  Plan expected = k256KiB;
  expected.placement = 3;
  for (const StartPartition& partition : started_) EXPECT_EQ(partition.head.plan, expected);
}

TEST(TensorDirectoryPlans, EveryScaleHasItsOwnLocationsAndAllRanksGetTheSame) {
  TensorDirectory directory({"rank 0", "rank 1"}, RootAssigner(one_rank_each(), {0.5, 0.5}),
                            PartitionRule({}, kPartitionBytes));
  const auto placed = [&](uint32_t rank, const Declare& declare) {
    return std::get<Placed>(directory.declare(rank, declare).message);
  };
  EXPECT_EQ(placed(0, {"w", DType::kFloat32, kTensorBytes}).locations.size(), 2u);
  const Placed other = placed(0, {"w", DType::kFloat32, kTensorBytes, k128KiB.partition_scale});
  EXPECT_EQ(other.tensor, 1u);
  EXPECT_EQ(other.partition_scale, k128KiB.partition_scale);
  EXPECT_EQ(other.locations.size(), 8u);
  EXPECT_EQ(placed(1, {"v", DType::kFloat32, 8}).tensor, 2u);
  EXPECT_EQ(placed(1, {"w", DType::kFloat32, kTensorBytes, k128KiB.partition_scale}), other);
}

// The result is the same as if the job had been started with that scale.
TEST(TensorDirectoryPlans, TheLocationsOfAScaleAreBalancedAmongThemselves) {
  const std::vector<uint64_t> sizes = {3 << 20, 100, 256 << 10, 5 << 20, 40'000, 1 << 20, 700 << 10, 2 << 20};
  TensorDirectory directory({"rank 0", "rank 1"}, RootAssigner(one_rank_each(), {0.75, 0.25}),
                            PartitionRule({}, kPartitionBytes));
  std::map<uint16_t, double> bytes_at;
  double total = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const std::string name = std::to_string(i);
    directory.declare(0, {name, DType::kUInt8, sizes[i]});
    const Placed placed = std::get<Placed>(
        directory.declare(0, {name, DType::kUInt8, sizes[i], k128KiB.partition_scale}).message);
    const Partitioning partitioning =
        PartitionRule({}, kPartitionBytes).partition(sizes[i], k128KiB.partition_scale);
    for (uint32_t p = 0; p < placed.locations.size(); ++p) {
      const auto size = static_cast<double>(partitioning.size(p));
      bytes_at[placed.locations[p].reducer_host] += size;
      total += size;
    }
    EXPECT_NEAR(bytes_at[0], 0.75 * total,
                2 * scaled_partition_bytes(k128KiB.partition_scale, kPartitionBytes))
        << name;
  }
}

// Locations of a tensor of two partitions.
std::vector<RootLocation> locations(TensorDirectory& directory, uint32_t rank, uint8_t placement,
                                    const std::string& name = "w", uint64_t bytes = kTensorBytes) {
  const Declare declare{name, DType::kFloat32, bytes, 0, {}, placement};
  const Placed placed = std::get<Placed>(directory.declare(rank, declare).message);
  EXPECT_EQ(placed.placement, placement);
  return placed.locations;
}

TEST(TensorDirectoryPlacements, HaveTheSharesOfTheMomentAndAreTheSameForAllRanks) {
  TensorDirectory directory({"rank 0", "rank 1"}, RootAssigner(one_rank_each(), {1, 0}),
                            PartitionRule({}, kPartitionBytes));
  EXPECT_EQ(locations(directory, 0, 0), (std::vector<RootLocation>{{0, 0}, {0, 0}}));
  directory.change_shares(RootAssigner(one_rank_each(), {0, 1}));
  EXPECT_EQ(locations(directory, 1, 1), (std::vector<RootLocation>{{1, 0}, {1, 0}}));
  EXPECT_EQ(locations(directory, 1, 0), (std::vector<RootLocation>{{0, 0}, {0, 0}})) << "late";
  directory.change_shares(RootAssigner(one_rank_each(), {0.5, 0.5}));
  EXPECT_EQ(locations(directory, 0, 1), (std::vector<RootLocation>{{1, 0}, {1, 0}})) << "known";
}

TEST(TensorDirectoryPlacements, WithTheSameSharesNothingMoves) {
  TensorDirectory directory({"rank 0", "rank 1"}, RootAssigner(one_rank_each(), {0.5, 0.5}),
                            PartitionRule({}, kPartitionBytes));
  locations(directory, 0, 0, "other", 100);
  directory.change_shares(RootAssigner(one_rank_each(), {0.4, 0.6}));
  const auto first = locations(directory, 0, 0, "new", 3 * kPartitionBytes);
  EXPECT_EQ(locations(directory, 0, 1, "new", 3 * kPartitionBytes), first);
  EXPECT_EQ(locations(directory, 1, 0, "new", 5 * kPartitionBytes).size(), 5u);
  EXPECT_EQ(locations(directory, 1, 1, "new", 2 * kPartitionBytes), first);
}

// A rank that has forgotten a name does not know where it is summed by now, and asks as at first.
TEST(TensorDirectoryPlacements, ARankThatComesBackToANameMovesNothing) {
  TensorDirectory directory({"rank 0", "rank 1"}, RootAssigner(one_rank_each(), {1, 0}),
                            PartitionRule({}, kPartitionBytes));
  locations(directory, 0, 0);
  directory.change_shares(RootAssigner(one_rank_each(), {0, 1}));
  const auto first = locations(directory, 0, 1);
  directory.change_shares(RootAssigner(one_rank_each(), {0.5, 0.5}));
  const auto second = locations(directory, 0, 2);
  EXPECT_EQ(locations(directory, 1, 0), second);
  EXPECT_EQ(locations(directory, 1, 2), second);
  EXPECT_EQ(locations(directory, 0, 1), first) << "still kept";
}

TEST(TensorDirectoryPlacements, OfANameTheLastTwoAreKept) {
  TensorDirectory directory({"rank 0", "rank 1"}, RootAssigner(one_rank_each(), {1, 0}),
                            PartitionRule({}, kPartitionBytes));
  std::vector<std::vector<RootLocation>> known;
  for (int i = 0; i < 1000; ++i) {
    directory.change_shares(
        RootAssigner(one_rank_each(), i % 2 == 0 ? std::vector{1.0, 0.0} : std::vector{0.0, 1.0}));
    const auto placement = static_cast<uint8_t>(1 + i % 255);
    known.push_back(locations(directory, 0, placement));
    const auto host = static_cast<uint16_t>(i % 2);
    ASSERT_EQ(known.back(), (std::vector<RootLocation>{{host, 0}, {host, 0}})) << i;
    ASSERT_EQ(locations(directory, 1, placement), known.back());
    if (i == 0) continue;
    ASSERT_EQ(locations(directory, 1, static_cast<uint8_t>(1 + (i - 1) % 255)), known[known.size() - 2]);
  }
}

}  // namespace
}  // namespace byteps::protocol
