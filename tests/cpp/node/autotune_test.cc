// Jobs whose plan changes while they run, which must not affect results.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "support/job.h"

namespace byteps::node {
namespace {

constexpr int kWorkers = 4;
constexpr uint32_t kPartitionBytes = 128 << 10;
constexpr int kSteps = 60;  // enough for a search, and steps with the chosen plan

struct TunedJob {
  const char* name;
  int servers;
  int ranks_per_machine;
  bool shm = true;
};

// Values of very different magnitude, so that another order of summation gives other bits.
std::vector<float> make_noise(int rank) {
  std::vector<float> values(100'000);
  uint32_t state = static_cast<uint32_t>(rank * 7919 + 1);
  for (float& value : values) {
    state = state * 1664525 + 1013904223;
    value = std::ldexp(static_cast<float>(state >> 8), static_cast<int>(state & 31) - 24);
  }
  return values;
}

// Tensors of a step: a large and a small one, one of every third step, one from the twentieth step
// on.
std::vector<std::pair<std::string, size_t>> tensors_of(int step) {
  std::vector<std::pair<std::string, size_t>> tensors = {
      {"large", 80'001}, {"small", 10}, {"medium", 20'000}};
  if (step % 3 == 0) tensors.emplace_back("now and then", 40'000);
  if (step >= 20) tensors.emplace_back("new", 35'000);
  if (step % 7 == 0) tensors.emplace_back("once, in step " + std::to_string(step), 15'000);
  return tensors;
}

class AutotuneTest : public testing::TestWithParam<TunedJob> {
 protected:
  static JobOptions options(bool autotune) {
    return {.workers = kWorkers,
            .servers = GetParam().servers,
            .ranks_per_machine = GetParam().ranks_per_machine,
            .adjust = [autotune](NodeConfig& config, int) {
              config.autotune = autotune;
              config.partition_bytes = kPartitionBytes;
              config.shm = GetParam().shm;
            }};
  }

  // All results of a rank, step by step.
  static std::vector<float> train(Node& node, int rank) {
    const std::vector<float> noise = make_noise(rank);
    std::vector<float> results;
    for (int step = 0; step < kSteps; ++step) {
      std::map<protocol::Handle, std::vector<float>> in_flight;
      for (const auto& [name, count] : tensors_of(step)) {
        const auto first = noise.begin() + step;
        std::vector<float> values(first, first + static_cast<ptrdiff_t>(count));
        auto* data = reinterpret_cast<std::byte*>(values.data());
        const auto handle = node.push_pull({.name = name,
                                            .dtype = DType::kFloat32,
                                            .bytes = count * sizeof(float),
                                            .op = ReduceOp::kSum,
                                            .root = 0,
                                            .priority = 0},
                                           {data, data});
        EXPECT_TRUE(handle.is_ok()) << handle.status();
        if (!handle) return results;
        in_flight.emplace(*handle, std::move(values));
        if (rank == 2) std::this_thread::yield();  // so that some ranks are ahead of others
      }
      for (const auto& [handle, values] : in_flight) {
        const Status status = node.wait(handle, now_us() + 60'000'000, [] { return true; });
        EXPECT_TRUE(status.is_ok()) << "rank " << rank << ", step " << step << ": " << status;
        results.insert(results.end(), values.begin(), values.end());
      }
    }
    return results;
  }
};

INSTANTIATE_TEST_SUITE_P(Shapes, AutotuneTest,
                         testing::Values(TunedJob{"each_a_machine", 0, 1}, TunedJob{"servers", 2, 1},
                                         TunedJob{"one_machine", 0, 4},
                                         TunedJob{"one_machine_without_shm", 0, 4, false},
                                         TunedJob{"two_machines", 1, 2}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(AutotuneTest, ChangesThePlanOnAllRanksAndNoBitOfASum) {
  // Results without tuning, by ranks per machine: only sharing of machines affects the bits.
  static std::map<int, std::vector<float>> results_without;
  std::vector<float>& expected = results_without[GetParam().ranks_per_machine];
  if (expected.empty()) {
    Job job(options(false));
    ASSERT_TRUE(job.all_started());
    job.on_all([&](int rank, Node& node) {
      const std::vector<float> results = train(node, rank);
      if (rank == 0) expected = results;
      EXPECT_EQ(node.metrics().plan_changes, 0u);
      EXPECT_EQ(node.metrics().partition_factor, 1);
    });
  }
  Job job(options(true));
  ASSERT_TRUE(job.all_started());
  std::vector<std::vector<float>> results(kWorkers);
  job.on_all([&](int rank, Node& node) { results[static_cast<size_t>(rank)] = train(node, rank); });
  for (int rank = 0; rank < kWorkers; ++rank) {
    EXPECT_TRUE(results[static_cast<size_t>(rank)] == expected) << "rank " << rank;
    const Metrics& metrics = job.worker(rank).metrics();
    EXPECT_GE(metrics.plan_changes, 4u) << "rank " << rank << ": the search tries that many at least";
    EXPECT_EQ(metrics.partition_factor, job.worker(0).metrics().partition_factor) << "rank " << rank;
    EXPECT_EQ(metrics.credit_bytes, job.worker(0).metrics().credit_bytes) << "rank " << rank;
  }
}

TEST(Autotune, ARankThatLeavesDuringASearchFailsTheOthersAsEver) {
  Job job({.workers = 3, .servers = 0, .adjust = [](NodeConfig& config, int) { config.autotune = true; }});
  ASSERT_TRUE(job.all_started());
  job.on_all([&](int rank, Node& node) {
    Status status;
    std::vector<float> values(500'000, 1);
    for (int step = 0; step < 200 && status.is_ok(); ++step) {
      if (rank == 2 && step == 12) return node.shutdown();
      status = push_pull(node, "w", values, DType::kFloat32);
    }
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_NE(status.message().find("rank 2"), std::string::npos) << status;
  });
}

}  // namespace
}  // namespace byteps::node
