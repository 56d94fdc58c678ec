#include "protocol/tensor_directory.h"

#include <gtest/gtest.h>

namespace byteps::protocol {
namespace {

// Workers on machines of their own.
RootAssigner assigner_for(uint32_t machines) {
  std::vector<NodeInfo> nodes(machines);
  for (size_t i = 0; i < nodes.size(); ++i) nodes[i].machine = std::to_string(i);
  return {Tree(nodes, machines), std::vector<double>(machines, 1.0 / machines)};
}

class TensorDirectoryTest : public testing::Test {
 protected:
  TensorDirectory directory_{
      {"rank 0 (a)", "rank 1 (b)", "rank 2 (c)"}, assigner_for(3), PartitionRule({}, 8192)};
};

TEST_F(TensorDirectoryTest, FirstDeclarationBindsTheName) {
  const auto first = directory_.declare(2, {"w", DType::kFloat32, 20'000});
  EXPECT_FALSE(first.to_all);
  const auto& placed = std::get<Placed>(first.message);
  EXPECT_EQ(placed.name, "w");
  EXPECT_EQ(placed.tensor, 1u);
  EXPECT_EQ(placed.locations, (std::vector<RootLocation>{{0, 0}, {1, 0}, {2, 0}}));
  EXPECT_EQ(directory_.declare(0, {"w", DType::kFloat32, 20'000}).message, first.message);
  const auto other = directory_.declare(0, {"v", DType::kInt8, 1});
  EXPECT_EQ(std::get<Placed>(other.message).tensor, 2u);
}

TEST_F(TensorDirectoryTest, TheListOfANameGrowsAndNeverChangesOtherwise) {
  const auto locations = [&](uint32_t rank, DType dtype, uint64_t bytes) {
    const auto answer = directory_.declare(rank, {"w", dtype, bytes});
    EXPECT_FALSE(answer.to_all);
    return std::get<Placed>(answer.message).locations;
  };
  const std::vector<RootLocation> one = locations(0, DType::kFloat32, 100);
  EXPECT_EQ(one.size(), 1u);
  const std::vector<RootLocation> seven = locations(1, DType::kInt64, 56'000);
  ASSERT_EQ(seven.size(), 7u);
  EXPECT_EQ(seven[0], one[0]) << "ranks that mean different tensors meet there";
  EXPECT_EQ(locations(2, DType::kFloat32, 100), seven) << "a smaller tensor uses the first ones";
  for (int i = 0; i < 1'000; ++i) ASSERT_EQ(locations(0, DType::kInt8, i % 2 == 0 ? 8 : 50'000), seven);
}

TEST_F(TensorDirectoryTest, DisagreementAboutStoredTensorsMakesTheNameUnusableAndNamesBothRanks) {
  struct Case {
    Declare declare;
    const char* says;
  };
  const Case cases[] = {
      {{"w", DType::kFloat32, 80, 0, {true, 3}},
       "rank 1 (b) stores 25 elements of float32, rank 0 (a) stores 20 elements of float32"},
      {{"w", DType::kInt32, 100, 0, {true, 3}},
       "rank 1 (b) stores 25 elements of float32, rank 0 (a) stores 25 elements of int32"},
      {{"w", DType::kFloat32, 100}, "rank 1 (b) stores it with staleness 3, rank 0 (a) reduces it"},
  };
  for (const Case& c : cases) {
    TensorDirectory directory({"rank 0 (a)", "rank 1 (b)"}, assigner_for(1), PartitionRule({}, 8192));
    directory.declare(1, {"w", DType::kFloat32, 100, 0, {true, 3}});
    const auto conflict = directory.declare(0, c.declare);
    EXPECT_TRUE(conflict.to_all);
    const auto& refused = std::get<Refused>(conflict.message);
    EXPECT_EQ(refused, (Refused{"w", 1, StatusCode::kInvalidArgument, c.says, kEveryRound}));
    const auto late = directory.declare(1, {"w", DType::kFloat32, 100, 0, {true, 3}});
    EXPECT_EQ(late.message, conflict.message);
    EXPECT_FALSE(late.to_all) << "the others know";
  }
}

TEST_F(TensorDirectoryTest, ARoundThatARankRefusedFailsForAllOnceAndNamesTheRank) {
  directory_.declare(0, {"w", DType::kFloat32, 8});
  const RoundFailed failed{"w", 3, true, StatusCode::kInvalidArgument, "op is 'sum'"};
  EXPECT_EQ(directory_.fail_round(2, failed),
            (Refused{"w", 1, StatusCode::kInvalidArgument, "rank 2 (c): op is 'sum'", 3}));
  EXPECT_FALSE(directory_.fail_round(0, {"w", 3, false, StatusCode::kInvalidArgument, "as told"}));
  EXPECT_EQ(
      directory_.fail_round(1, {"w", 4, false, StatusCode::kDeadlineExceeded, "as a service said"})->text,
      "as a service said");
  EXPECT_TRUE(std::holds_alternative<Placed>(directory_.declare(1, {"w", DType::kFloat32, 8}).message));
}

TEST_F(TensorDirectoryTest, ARefusalMayComeBeforeTheFirstDeclaration) {
  const auto refused = directory_.fail_round(1, {"w", 1, true, StatusCode::kInvalidArgument, "no dtype"});
  ASSERT_TRUE(refused);
  const auto placed = directory_.declare(0, {"w", DType::kFloat32, 8});
  EXPECT_EQ(std::get<Placed>(placed.message).tensor, refused->tensor);
}

TEST_F(TensorDirectoryTest, ARefusalForEveryRoundEndsTheName) {
  directory_.declare(0, {"w", DType::kFloat32, 8, 0, {true, 0}});
  const auto refused = directory_.fail_round(1, {"w", kEveryRound, true, StatusCode::kInvalidArgument, "no"});
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->round, kEveryRound);
  EXPECT_EQ(directory_.declare(2, {"w", DType::kFloat32, 8, 0, {true, 0}}).message, Control(*refused));
}

TEST_F(TensorDirectoryTest, AnImpossibleTensorIsRefusedToItsSenderAndBindsNothing) {
  const auto answer = directory_.declare(0, {"w", DType::kFloat32, 6});
  EXPECT_FALSE(answer.to_all);
  EXPECT_EQ(std::get<Refused>(answer.message).tensor, 0u);
  EXPECT_EQ(std::get<Placed>(directory_.declare(1, {"v", DType::kFloat32, 8}).message).tensor, 1u);
}

TEST_F(TensorDirectoryTest, ARankThatForgetsANameAgainBeforeAnyAnswerKeepsItsPlan) {
  const Declare declare{"g", DType::kFloat32, 40};
  directory_.declare(0, declare);
  directory_.declare(1, declare);
  directory_.forget(1, Forget{{{.name = "g", .round = 1, .calls = 0, .plan = {.partition_scale = 2}}}});
  // Its second push_pull of the name was refused, and was not answered.
  directory_.fail_round(1, {"g", 1, true, StatusCode::kInvalidArgument, "root", 1});
  directory_.forget(1, Forget{{{.name = "g", .round = 1, .calls = 1, .plan = {}}}});
  const auto answer = directory_.declare(1, declare);
  const auto& placed = std::get<Placed>(answer.message);
  EXPECT_EQ(placed.round, 2u);
  EXPECT_EQ(placed.plan, Plan{.partition_scale = 2});
}

TEST(TensorDirectory, NamesAreNotWithoutEnd) {
  TensorDirectory directory({"rank 0", "rank 1"}, assigner_for(1), PartitionRule({}, 8192), 3);
  for (const char* name : {"a", "b", "c"}) {
    EXPECT_TRUE(std::holds_alternative<Placed>(directory.declare(0, {name, DType::kInt8, 0}).message));
  }
  const auto answer = directory.declare(0, {"d", DType::kInt8, 0});
  EXPECT_EQ(std::get<Refused>(answer.message).text, "expected at most 3 names in use at the same time");
  EXPECT_TRUE(std::holds_alternative<Placed>(directory.declare(1, {"b", DType::kInt8, 0}).message));
}

}  // namespace
}  // namespace byteps::protocol
