// Sums of whole jobs in one process, of every shape.
#include "node/node.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <tuple>

#include "support/job.h"

namespace byteps::node {
namespace {

struct Shape {
  int workers;
  int servers;
  int ranks_per_machine = 1;

  JobOptions options() const {
    return {
        .workers = workers, .servers = servers, .ranks_per_machine = ranks_per_machine, .adjust = nullptr};
  }
};

class JobTest : public testing::TestWithParam<Shape> {};

INSTANTIATE_TEST_SUITE_P(Shapes, JobTest,
                         testing::Values(Shape{1, 0}, Shape{1, 1}, Shape{2, 0}, Shape{2, 1}, Shape{2, 2},
                                         Shape{2, 3}, Shape{3, 0}, Shape{4, 2}, Shape{2, 0, 2},
                                         Shape{4, 0, 4}, Shape{4, 1, 4}, Shape{4, 0, 2}, Shape{5, 1, 2},
                                         Shape{5, 2, 3}),
                         [](const auto& test) {
                           return std::to_string(test.param.workers) + "workers" +
                                  std::to_string(test.param.servers) + "servers" +
                                  std::to_string(test.param.ranks_per_machine) + "together";
                         });

TEST_P(JobTest, SumsTensorsOfManySizesOverSeveralRounds) {
  Job job(GetParam().options());
  ASSERT_TRUE(job.all_started());
  const int n = GetParam().workers;
  job.on_all([n](int rank, Node& node) {
    EXPECT_EQ(node.rank(), rank);
    EXPECT_EQ(node.size(), n);
    for (int round = 0; round < 3; ++round) {
      for (const size_t count : {0, 1, 7, 1000, 16384, 16385, 200'000}) {
        std::vector<int32_t> values(count);
        for (size_t i = 0; i < count; ++i) values[i] = static_cast<int32_t>(i) * (rank + 1) + round;
        ASSERT_TRUE(push_pull(node, "tensor" + std::to_string(count), values, DType::kInt32).is_ok());
        for (size_t i = 0; i < count; ++i) {
          ASSERT_EQ(values[i], static_cast<int32_t>(i) * n * (n + 1) / 2 + round * n) << count << " " << i;
        }
      }
    }
  });
}

TEST_P(JobTest, EveryReductionAndBroadcast) {
  Job job(GetParam().options());
  ASSERT_TRUE(job.all_started());
  const int n = GetParam().workers;
  job.on_all([n](int rank, Node& node) {
    const auto run = [&](ReduceOp op, uint32_t root = 0) {
      std::vector<double> values(50'000, rank + 1.0);
      EXPECT_TRUE(push_pull(node, std::string(to_string(op)) + std::to_string(root), values, DType::kFloat64,
                            op, root)
                      .is_ok());
      EXPECT_EQ(values.front(), values.back());
      return values.front();
    };
    EXPECT_EQ(run(ReduceOp::kSum), n * (n + 1) / 2.0);
    EXPECT_DOUBLE_EQ(run(ReduceOp::kAverage), (n + 1) / 2.0);
    EXPECT_EQ(run(ReduceOp::kMin), 1);
    EXPECT_EQ(run(ReduceOp::kMax), n);
    EXPECT_EQ(run(ReduceOp::kProduct), std::tgamma(n + 1));
    for (int root = 0; root < n; ++root)
      EXPECT_EQ(run(ReduceOp::kBroadcast, static_cast<uint32_t>(root)), root + 1);
  });
}

TEST_P(JobTest, ManyInFlightInAnOrderOfEachRanksOwn) {
  Job job(GetParam().options());
  ASSERT_TRUE(job.all_started());
  const int n = GetParam().workers;
  job.on_all([n](int rank, Node& node) {
    constexpr int kTensors = 100;
    std::mt19937 random(static_cast<unsigned>(rank));
    std::vector<int> order(kTensors);
    std::iota(order.begin(), order.end(), 0);
    for (int round = 0; round < 3; ++round) {
      std::shuffle(order.begin(), order.end(), random);
      std::vector<std::vector<float>> input(kTensors), output(kTensors);
      std::vector<protocol::Handle> handles(kTensors);
      for (const int t : order) {
        const auto index = static_cast<size_t>(t);
        input[index].assign(100 + 1000 * (index % 40), static_cast<float>(rank + t));
        output[index].resize(input[index].size());
        auto handle = node.push_pull({.name = "t" + std::to_string(t),
                                      .dtype = DType::kFloat32,
                                      .bytes = input[index].size() * sizeof(float),
                                      .op = ReduceOp::kSum,
                                      .root = 0,
                                      .priority = -t},
                                     {reinterpret_cast<const std::byte*>(input[index].data()),
                                      reinterpret_cast<std::byte*>(output[index].data())});
        ASSERT_TRUE(handle.is_ok()) << handle.status();
        handles[index] = *handle;
      }
      for (const int t : order) {
        const auto index = static_cast<size_t>(t);
        ASSERT_TRUE(node.wait(handles[index], kNever, always).is_ok());
        const auto expected = static_cast<float>(n * t + n * (n - 1) / 2);
        EXPECT_EQ(output[index].front(), expected);
        EXPECT_EQ(output[index].back(), expected);
        EXPECT_EQ(input[index].front(), static_cast<float>(rank + t)) << "the input was written to";
      }
    }
  });
}

// Rank 0's averages, as bytes. Every order of summation rounds the values differently.
std::string averages_of_noise(const JobOptions& options) {
  Job job(options);
  EXPECT_TRUE(job.all_started());
  std::string result;
  job.on_all([&](int rank, Node& node) {
    std::mt19937 random(static_cast<unsigned>(rank));
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      std::vector<uint16_t> values(150'002);
      for (size_t i = 0; i < values.size(); ++i) {
        // Numbers of either sign between about 2^-7 and 2^8 in both 16-bit formats: no NaN, no
        // infinity.
        values[i] = static_cast<uint16_t>((random() & 0x8fff) | 0x3800);
        // The lower half of each value.
        if (dtype == DType::kFloat32 && i % 2 == 0) values[i] = static_cast<uint16_t>(random());
      }
      ASSERT_TRUE(push_pull(node, std::string(to_string(dtype)), values, dtype, ReduceOp::kAverage).is_ok());
      if (rank == 0) result.append(reinterpret_cast<const char*>(values.data()), values.size() * 2);
    }
  });
  return result;
}

class BitsTest : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(RanksPerMachine, BitsTest, testing::Values(1, 2, 4));

TEST_P(BitsTest, DependOnNothingButWhichRanksShareAMachine) {
  const int together = GetParam();
  std::string first;
  for (const int servers : {0, 1, 3}) {
    for (const std::string placement : {"auto", "ps", "allreduce", "weights"}) {
      if (servers == 0 && placement == "ps") continue;
      for (const int64_t partition_bytes : {4096, 100'000, 1 << 20}) {
        for (const bool shm : {true, false}) {
          if (!shm && (together == 1 || partition_bytes == 4096)) continue;
          JobOptions options{
              .workers = 4, .servers = servers, .ranks_per_machine = together, .adjust = nullptr};
          options.adjust = [&](NodeConfig& config, int) {
            config.partition_bytes = partition_bytes;
            config.shm = shm;
            config.placement = placement;
            if (placement != "weights") return;
            config.placement += ":1";
            for (int reducer_host = 1; reducer_host < 4 / together + servers; ++reducer_host)
              config.placement += ",2.5";
          };
          const std::string bits = averages_of_noise(options);
          if (first.empty()) first = bits;
          ASSERT_TRUE(bits == first) << placement << ", " << servers << " servers, partitions of "
                                     << partition_bytes << (shm ? "" : ", without shared memory");
        }
      }
    }
  }
}

}  // namespace
}  // namespace byteps::node
