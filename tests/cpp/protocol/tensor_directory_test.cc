#include "protocol/tensor_directory.h"

#include <gtest/gtest.h>

namespace byteps::protocol {
namespace {

// Workers on machines of their own.
PlaceGiver places_on(uint32_t machines) {
  std::vector<NodeInfo> nodes(machines);
  for (size_t i = 0; i < nodes.size(); ++i) nodes[i].machine = std::to_string(i);
  return {Tree(nodes, machines), std::vector<double>(machines, 1.0 / machines)};
}

class TensorDirectoryTest : public testing::Test {
 protected:
  TensorDirectory directory_{
      {"rank 0 (a)", "rank 1 (b)", "rank 2 (c)"}, places_on(3), PartitionRule({}, 8192)};
};

TEST_F(TensorDirectoryTest, FirstDeclarationBindsTheName) {
  const auto first = directory_.declare(2, {"w", DType::kFloat32, 20'000});
  EXPECT_FALSE(first.to_all);
  const auto& placed = std::get<Placed>(first.message);
  EXPECT_EQ(placed.name, "w");
  EXPECT_EQ(placed.tensor, 1u);
  EXPECT_EQ(placed.partition_bytes, 8192u);
  EXPECT_EQ(placed.places, (std::vector<Place>{{0, 0}, {1, 0}, {2, 0}}));
  EXPECT_EQ(directory_.declare(0, {"w", DType::kFloat32, 20'000}).message, first.message);
  const auto other = directory_.declare(0, {"v", DType::kInt8, 1});
  EXPECT_EQ(std::get<Placed>(other.message).tensor, 2u);
}

TEST_F(TensorDirectoryTest, DisagreementSpoilsTheNameForAllAndNamesBothRanks) {
  const Declare wrong[] = {{"w", DType::kFloat32, 80}, {"w", DType::kInt32, 100}};
  for (const Declare& declare : wrong) {
    TensorDirectory directory({"rank 0 (a)", "rank 1 (b)"}, places_on(1), PartitionRule({}, 8192));
    directory.declare(1, {"w", DType::kFloat32, 100});
    const auto conflict = directory.declare(0, declare);
    EXPECT_TRUE(conflict.to_all);
    const auto& refused = std::get<Refused>(conflict.message);
    EXPECT_EQ(refused.tensor, 1u);
    EXPECT_EQ(refused.code, StatusCode::kInvalidArgument);
    const std::string other =
        declare.dtype == DType::kInt32 ? "25 elements of int32" : "20 elements of float32";
    EXPECT_EQ(refused.text, "rank 1 (b) declares 25 elements of float32, rank 0 (a) declares " + other);
    const auto late = directory.declare(1, {"w", DType::kFloat32, 100});
    EXPECT_EQ(late.message, conflict.message);
    EXPECT_FALSE(late.to_all) << "the others know";
  }
}

TEST_F(TensorDirectoryTest, ImpossibleTensorIsRefusedToWhoAsksAndBindsNothing) {
  const auto answer = directory_.declare(0, {"w", DType::kFloat32, 6});
  EXPECT_FALSE(answer.to_all);
  EXPECT_EQ(std::get<Refused>(answer.message).tensor, 0u);
  const auto large = directory_.declare(0, {"w", DType::kFloat32, kMaxTensorBytes});
  EXPECT_NE(std::get<Refused>(large.message).text.find("make partitions larger"), std::string::npos);
  EXPECT_TRUE(std::holds_alternative<Placed>(directory_.declare(1, {"w", DType::kFloat32, 8}).message));
}

TEST(TensorDirectory, NamesAreNotWithoutEnd) {
  TensorDirectory directory({"rank 0", "rank 1"}, places_on(1), PartitionRule({}, 8192), 3);
  for (const char* name : {"a", "b", "c"}) {
    EXPECT_TRUE(std::holds_alternative<Placed>(directory.declare(0, {name, DType::kInt8, 0}).message));
  }
  const auto answer = directory.declare(0, {"d", DType::kInt8, 0});
  EXPECT_EQ(std::get<Refused>(answer.message).text, "expected at most 3 names in a job");
  EXPECT_TRUE(std::holds_alternative<Placed>(directory.declare(1, {"b", DType::kInt8, 0}).message));
}

}  // namespace
}  // namespace byteps::protocol
