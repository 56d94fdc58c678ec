// Whole jobs in one process, with tensors that the services store.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/event_flag.h"
#include "support/job.h"

namespace byteps::node {
namespace {

constexpr size_t kCount = 200'000;  // several partitions
constexpr int kRounds = 20;

Status update(Node& node, ReduceOp op, std::vector<double>& values, uint8_t staleness,
              const std::string& name = "w") {
  auto* data = reinterpret_cast<std::byte*>(values.data());
  auto handle = node.push_pull({.name = name,
                                .dtype = DType::kFloat64,
                                .bytes = values.size() * sizeof(double),
                                .op = op,
                                .staleness = staleness},
                               {data, data});
  if (!handle) return handle.status();
  return node.wait(*handle, now_us() + 60'000'000, [] { return true; });
}

Status barrier(Node& node) {
  return node.barrier([] { return true; });
}

struct StoreJob {
  int workers;
  int servers;
  int ranks_per_machine;
};

class ParameterStoreTest : public testing::TestWithParam<StoreJob> {
 protected:
  JobOptions options() const {
    return {.workers = GetParam().workers,
            .servers = GetParam().servers,
            .ranks_per_machine = GetParam().ranks_per_machine,
            .adjust = nullptr};
  }
};

INSTANTIATE_TEST_SUITE_P(Shapes, ParameterStoreTest,
                         testing::Values(StoreJob{1, 1, 1}, StoreJob{2, 0, 1}, StoreJob{2, 1, 1},
                                         StoreJob{4, 0, 4}, StoreJob{4, 1, 4}, StoreJob{4, 2, 2},
                                         StoreJob{5, 0, 2}),
                         [](const auto& test) {
                           return std::to_string(test.param.workers) + "workers" +
                                  std::to_string(test.param.servers) + "servers" +
                                  std::to_string(test.param.ranks_per_machine) + "together";
                         });

TEST_P(ParameterStoreTest, WithoutStalenessAllRanksAreInStep) {
  Job job(options());
  ASSERT_TRUE(job.all_started());
  const int n = GetParam().workers;
  job.on_all([n](int rank, Node& node) {
    std::vector<double> values(kCount, rank == 0 ? 0.5 : -1);
    ASSERT_TRUE(update(node, ReduceOp::kSeed, values, 0).is_ok());
    EXPECT_EQ(values, std::vector<double>(kCount, 0.5)) << "rank 0's";
    double expected = 0.5;
    for (int round = 0; round < kRounds; ++round) {
      values.assign(kCount, rank + 1.0);
      ASSERT_TRUE(update(node, ReduceOp::kAccumulate, values, 0).is_ok());
      expected += n * (n + 1) / 2.0;
      ASSERT_EQ(values, std::vector<double>(kCount, expected));
    }
  });
}

TEST_P(ParameterStoreTest, WithoutABoundNobodyWaitsAndNothingIsLost) {
  Job job(options());
  ASSERT_TRUE(job.all_started());
  const int n = GetParam().workers;
  job.on_all([n](int rank, Node& node) {
    constexpr uint8_t kUnbounded = protocol::kUnboundedStaleness;
    std::vector<double> values(kCount);
    if (rank > 0) {  // rank 0 finishes before the others start
      ASSERT_TRUE(barrier(node).is_ok());
    }
    ASSERT_TRUE(update(node, ReduceOp::kSeed, values, kUnbounded).is_ok());
    EXPECT_GE(values[0], rank > 0 ? kRounds : 0) << "a late rank gets the current values";
    for (int round = 0; round < kRounds; ++round) {
      values.assign(kCount, 1);
      ASSERT_TRUE(update(node, ReduceOp::kAccumulate, values, kUnbounded).is_ok());
    }
    if (rank == 0) {
      ASSERT_TRUE(barrier(node).is_ok());
    }
    ASSERT_TRUE(barrier(node).is_ok());
    ASSERT_TRUE(update(node, ReduceOp::kSeed, values, kUnbounded).is_ok());
    EXPECT_EQ(values, std::vector<double>(kCount, n * kRounds));
    ASSERT_TRUE(barrier(node).is_ok());
  });
}

TEST_P(ParameterStoreTest, ABoundHoldsARankThatIsTooFarAhead) {
  constexpr uint8_t kStaleness = 3;
  Job job(options());
  ASSERT_TRUE(job.all_started());
  std::vector<std::atomic<int>> begun(static_cast<size_t>(GetParam().workers));
  EventFlag rank_0_is_ahead;  // by the full staleness
  job.on_all([&](int rank, Node& node) {
    std::vector<double> values(1000);
    if (rank > 0) {
      ASSERT_EQ(rank_0_is_ahead.wait(now_us() + 60'000'000), EventFlag::Wake::kSet);
    }
    for (int round = 1; round <= 200; ++round) {
      begun[static_cast<size_t>(rank)] = round;
      values.assign(1000, 1);
      ASSERT_TRUE(
          update(node, round == 1 ? ReduceOp::kSeed : ReduceOp::kAccumulate, values, kStaleness).is_ok());
      for (const auto& other : begun) ASSERT_GE(other + kStaleness, round);
      if (rank == 0 && round == kStaleness) rank_0_is_ahead.set();
    }
  });
}

TEST(ParameterStore, RanksThatDisagreeAreNamed) {
  Job job({.workers = 2, .adjust = nullptr});
  ASSERT_TRUE(job.all_started());
  job.on_all([](int rank, Node& node) {
    std::vector<double> values(10);
    // Rank 1 is not the root. The root's seed would succeed, within the bound, if nobody had
    // disagreed by then.
    const Status status =
        rank == 1 ? update(node, ReduceOp::kSeed, values, 3) : push_pull(node, "w", values, DType::kFloat64);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("stores it with staleness 3"), std::string::npos) << status;
    EXPECT_NE(status.message().find("reduces it"), std::string::npos) << status;
    const Status other = update(node, ReduceOp::kSeed, values, static_cast<uint8_t>(rank), "v");
    EXPECT_NE(other.message().find("stores it with staleness 0"), std::string::npos) << other;
    EXPECT_NE(other.message().find("stores it with staleness 1"), std::string::npos) << other;
    values.resize(10);
    EXPECT_TRUE(push_pull(node, "x", values, DType::kFloat64).is_ok());
    EXPECT_NE(update(node, ReduceOp::kSeed, values, 0, "x").message().find("this rank reduces it so far"),
              std::string::npos);
  });
}

}  // namespace
}  // namespace byteps::node
