#include "sim/scale_job.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "protocol/message.h"
#include "protocol/partition.h"

namespace byteps::sim {
namespace {

using protocol::PlacementPolicy;
using protocol::ReducerHost;
using Kind = PlacementPolicy::Kind;
using Speeds = std::vector<double>;

constexpr double kMbps = 100'000;

std::vector<ReducerHost> sites_of(const Speeds& machines_mbps, const Speeds& servers_mbps) {
  std::vector<ReducerHost> reducer_hosts;
  for (const double mbps : machines_mbps) reducer_hosts.push_back({.nic_mbps = mbps});
  for (const double mbps : servers_mbps) reducer_hosts.push_back({.is_server = true, .nic_mbps = mbps});
  return reducer_hosts;
}

std::vector<ReducerHost> equal_reducer_hosts(size_t n, size_t k) {
  return sites_of(Speeds(n, kMbps), Speeds(k, kMbps));
}

bool always() { return true; }

constexpr double kAtOnce = 1e18;  // bytes/s of a core that sums in no time

// Layers of float32 that have `bytes` together, rounded down.
ScaleModel even_model(uint64_t bytes, uint32_t num_layers, double compute_s) {
  const Layer layer{.gradient_bytes = bytes / num_layers / 4 * 4, .work = 1};
  return model_of(std::vector<Layer>(num_layers, layer), compute_s);
}

ScaleModel named_model(const char* name, double compute_s) {
  return model_of(model_named(name).value().layers, compute_s);
}

ScaleResult run(const ScaleOptions& options) {
  const auto result = simulate(options, &always);
  EXPECT_TRUE(result) << result.status();
  return result ? *result : ScaleResult{};
}

ScaleOptions options_of(const std::vector<ReducerHost>& reducer_hosts, const ScaleModel& model,
                        Kind kind = Kind::kAuto) {
  return {.reducer_hosts = reducer_hosts,
          .placement = {.kind = kind},
          .model = model,
          .sum_bytes_per_s = kAtOnce};
}

ScaleResult run(const std::vector<ReducerHost>& reducer_hosts, Kind kind, const ScaleModel& model) {
  return run(options_of(reducer_hosts, model, kind));
}

// Communication alone, as one tensor, and in many partitions for each reducer_host.
ScaleOptions one_tensor(const std::vector<ReducerHost>& reducer_hosts, Kind kind) {
  ScaleOptions options = options_of(reducer_hosts, even_model(reducer_hosts.size() * (80 << 20), 1, 0), kind);
  options.partition_bytes = 512 << 10;
  return options;
}

void expect_at_the_bound(const std::vector<ReducerHost>& reducer_hosts, const std::string& what) {
  for (const Kind kind : {Kind::kAuto, Kind::kAllReduce, Kind::kPs}) {
    const ScaleResult result = run(one_tensor(reducer_hosts, kind));
    EXPECT_GT(result.summed_s, result.predicted_s) << what << ", placement " << static_cast<int>(kind);
    EXPECT_LT(result.summed_s, result.predicted_s * 1.05) << what << ", placement " << static_cast<int>(kind);
    EXPECT_EQ(result.step_s, result.summed_s) << what;
  }
}

TEST(ScaleJob, TakesAsLongAsPredictedWithEqualCards) {
  for (const auto& [n, k] :
       {std::pair{2, 0}, {2, 1}, {2, 2}, {3, 1}, {4, 2}, {6, 3}, {8, 2}, {8, 8}, {8, 11}, {16, 4}}) {
    expect_at_the_bound(equal_reducer_hosts(static_cast<size_t>(n), static_cast<size_t>(k)),
                        std::to_string(n) + " machines, " + std::to_string(k) + " servers");
  }
}

TEST(ScaleJob, TakesAsLongAsPredictedWithUnequalCards) {
  expect_at_the_bound(sites_of({200, 200, 100, 200}, {200, 200}), "a slow machine");
  expect_at_the_bound(sites_of({200, 200, 200, 200}, {400, 100}), "a fast and a slow server");
  expect_at_the_bound(sites_of({400, 400, 400, 400, 100}, {}), "a slow machine, no servers");
  expect_at_the_bound(sites_of({1, 2, 3, 4, 5, 6, 7, 8}, {9, 3}), "all different");
}

// Medians of three push_pulls of 64 MiB in the lab (benchmarks/lab), 24 November 2026. The program
// there had summed something small before, so one partition more or less was at a root.
TEST(ScaleJob, TakesAsLongAsInTheLabWithPartitionsOfAnySize) {
  struct Measured {
    size_t servers;
    uint64_t partition_mib;
    double seconds;
  };
  const Measured all[] = {{2, 1, 3.708}, {2, 2, 4.228}, {2, 4, 4.759},
                          {0, 1, 4.399}, {0, 2, 4.514}, {0, 4, 4.844}};
  for (const Measured& measured : all) {
    ScaleOptions options =
        options_of(sites_of(Speeds(4, 200), Speeds(measured.servers, 200)), even_model(64 << 20, 1, 0));
    options.partition_bytes = measured.partition_mib << 20;
    EXPECT_NEAR(run(options).summed_s / measured.seconds, 1, 0.04)
        << measured.servers << " servers, " << measured.partition_mib << " MiB";
  }
}

TEST(ScaleJob, IsNearTheBoundOnAThousandMachines) {
  for (const size_t n : {64, 256, 1024}) {
    const ScaleOptions options = options_of(equal_reducer_hosts(n, n / 2), even_model(1'300'000'000, 50, 0));
    const ScaleResult result = run(options);
    EXPECT_LT(result.summed_s / result.predicted_s, 1.15) << n << " machines";
  }
}

// Partitions of their own size: what pacing leaves to each of 32 connections.
TEST(ScaleJob, IsNearTheBoundWithManyConnections) {
  ScaleOptions options = options_of(equal_reducer_hosts(8, 4), even_model(1'300'000'000, 50, 0));
  options.ranks_per_machine = 8;
  options.threads = 4;
  const ScaleResult result = run(options);
  EXPECT_LT(result.summed_s / result.predicted_s, 1.15);
}

TEST(ScaleJob, CardsCarryLessThanTheirRate) {
  const ScaleResult result = run(options_of(sites_of({200, 200}, {}), even_model(25'000'000, 1, 0)));
  EXPECT_NEAR(result.predicted_s, 1514.0 / 1448, 1e-6);
}

TEST(ScaleJob, RootsTakeTimeToSum) {
  ScaleOptions options = one_tensor(equal_reducer_hosts(4, 4), Kind::kAuto);
  const double bytes = static_cast<double>(gradient_bytes(options.model));
  options.sum_bytes_per_s = 1e8;
  const ScaleResult result = run(options);
  EXPECT_DOUBLE_EQ(result.predicted_s, 4 * bytes / 4 / 1e8);
  EXPECT_NEAR(result.summed_s / result.predicted_s, 1, 0.03);
  options.threads = 4;
  EXPECT_NEAR(run(options).summed_s / result.summed_s, 0.25, 0.02);
}

TEST(ScaleJob, RanksOfAMachineTakeTimeToSum) {
  ScaleOptions options = options_of(equal_reducer_hosts(1, 0), even_model(1 << 30, 4, 0));
  options.ranks_per_machine = 8;
  options.sum_bytes_per_s = 1e9;
  // Each of eight threads sums an eighth of what eight ranks have, and gives it to eight ranks.
  EXPECT_NEAR(run(options).summed_s, 2.0 * (1 << 30) / 1e9, 0.01);
  EXPECT_DOUBLE_EQ(run(options).predicted_s, 2.0 * (1 << 30) / 1e9);
}

TEST(ScaleJob, IsDeterministic) {
  const auto model = named_model("resnet50", 0.08);
  const ScaleResult one = run(equal_reducer_hosts(8, 3), Kind::kAuto, model);
  const ScaleResult other = run(equal_reducer_hosts(8, 3), Kind::kAuto, model);
  EXPECT_EQ(one.summed_s, other.summed_s);
  EXPECT_EQ(one.step_s, other.step_s);
  EXPECT_EQ(one.partitions, other.partitions);
}

TEST(ScaleJob, UsesThePartitionsOfAJob) {
  const auto hosts = equal_reducer_hosts(5, 2);
  ScaleOptions options = options_of(hosts, named_model("resnet50", 0));
  for (const uint64_t fixed_bytes : {0, 64 << 10}) {
    uint64_t partitions = 0;
    for (const Gradient& gradient : options.model.gradients)
      partitions += protocol::PartitionRule(hosts, fixed_bytes).partition(gradient.bytes).count();
    options.partition_bytes = fixed_bytes;
    EXPECT_EQ(run(options).partitions, partitions);
  }
}

TEST(ScaleJob, OfOneMachineOnlyComputes) {
  const ScaleModel model = even_model(1 << 30, 10, 0.3);
  const ScaleResult result = run(equal_reducer_hosts(1, 0), Kind::kAuto, model);
  EXPECT_DOUBLE_EQ(result.step_s, 0.3);
}

TEST(ScaleJob, HidesCommunicationBehindComputation) {
  // 80 ms of communication, 300 ms of computation; the first layer's sum alone cannot be hidden.
  const ScaleResult result = run(equal_reducer_hosts(8, 0), Kind::kAuto, even_model(560 << 20, 40, 0.3));
  EXPECT_GT(result.predicted_s, 0.08);
  EXPECT_LT(result.step_s, 0.31);
}

TEST(ScaleJob, WaitingForAllSumsIsNeverFaster) {
  ScaleOptions options = options_of(equal_reducer_hosts(8, 2), named_model("vgg16", 0.04));
  const double priorities_s = run(options).step_s;
  options.waits_for_all = true;
  const ScaleResult plain = run(options);
  EXPECT_GT(plain.step_s, priorities_s * 1.05);
  // The first gradient, that of the last layer, is ready after nearly no time.
  EXPECT_NEAR(plain.step_s, plain.summed_s + options.model.forward_s, 1e-3);
}

TEST(ScaleJob, LatencyCountsOnEachWay) {
  ScaleOptions options = options_of(equal_reducer_hosts(2, 2), even_model(4096, 1, 0));
  options.latency_s = 0.25;
  EXPECT_NEAR(run(options).summed_s, 0.5, 1e-4);
}

// 256 GPUs: 32 machines of 8, 100 Gbit/s. Against all-reduce the gain grows with the servers and
// ends at as many as machines; a parameter server with fewer is the slowest of all. The evaluation
// of the OSDI'20 paper has this shape.
TEST(ScaleJob, GainsAsInThePaperAt256Gpus) {
  const ScaleModel model = named_model("vgg16", 0.02);  // bound by communication
  struct Case {
    size_t servers;
    double gain, gain_over_ps;  // of the bounds alone
  };
  const Case cases[] = {{0, 1, 1}, {8, 1.234, 2.550}, {16, 1.469, 1.516}, {32, 1.938, 1}, {48, 1.938, 1}};
  for (const Case& expected : cases) {
    const auto step_s = [&](Kind kind) {
      return run(equal_reducer_hosts(32, expected.servers), kind, model).step_s;
    };
    const double ours = step_s(Kind::kAuto);
    EXPECT_NEAR(step_s(Kind::kAllReduce) / ours / expected.gain, 0.96, 0.06) << expected.servers;
    EXPECT_NEAR(step_s(Kind::kPs) / ours / expected.gain_over_ps, 0.96, 0.06) << expected.servers;
  }
}

TEST(ScaleJob, GainsNothingWhereComputationTakesLonger) {
  const ScaleModel model = named_model("resnet50", 0.08);
  const double without = run(equal_reducer_hosts(32, 0), Kind::kAuto, model).step_s;
  EXPECT_NEAR(without / run(equal_reducer_hosts(32, 32), Kind::kAuto, model).step_s, 1, 0.02);
}

// What it needs grows with the machines, not with their square.
TEST(ScaleJob, OfAsManyMachinesAsAJobMayHave) {
  const ScaleResult result =
      run(equal_reducer_hosts(protocol::kMaxNodes, 0), Kind::kAuto, even_model(1 << 20, 1, 0));
  EXPECT_GT(result.summed_s, result.predicted_s);
}

TEST(ScaleJob, IsNeverFasterThanTheBound) {
  for (const auto& [n, k] : {std::pair{2, 0}, {2, 2}, {4, 1}, {8, 0}, {8, 4}, {8, 16}}) {
    for (const uint64_t bytes : {100ull, 40'000ull, 1ull << 20, 50ull << 20}) {
      for (const uint32_t ranks : {1u, 4u}) {
        ScaleOptions options = options_of(equal_reducer_hosts(static_cast<size_t>(n), static_cast<size_t>(k)),
                                          even_model(bytes, 3, 0));
        options.ranks_per_machine = ranks;
        options.threads = 4;
        const ScaleResult result = run(options);
        EXPECT_GE(result.summed_s, result.predicted_s * (1 - 1e-9))
            << n << ", " << k << ": " << bytes << " bytes, " << ranks << " ranks";
      }
    }
  }
}

TEST(ScaleJob, GradientsMayHaveAnyNumberOfBytes) {
  ScaleOptions options =
      options_of(equal_reducer_hosts(2, 0), {.gradients = {{.bytes = 3}, {.bytes = 2002}}});
  EXPECT_EQ(run(options).partitions, 2u);
}

TEST(ScaleJob, TakesLargerPartitionsWhereThereWouldBeTooMany) {
  ScaleOptions options = options_of(equal_reducer_hosts(1024, 0), even_model(100ull << 30, 7, 0));
  options.partition_bytes = 64 << 10;
  const ScaleResult result = run(options);
  EXPECT_GT(result.larger_partition_bytes, 64u << 10);
  EXPECT_LE(result.partitions, 300'000'000u / 1024 + 7);
  EXPECT_NEAR(result.summed_s / result.predicted_s, 1, 0.02);
  EXPECT_EQ(run(options_of(equal_reducer_hosts(1024, 0), even_model(1 << 30, 7, 0))).larger_partition_bytes,
            0u);
}

TEST(ScaleJob, SaysWhatCannotBeSimulated) {
  const auto failure = [](const ScaleOptions& options) {
    return simulate(options, &always).status().message();
  };
  const ScaleModel small = even_model(4096, 1, 0);
  EXPECT_EQ(failure(options_of(sites_of({100, 0}, {}), small)),
            "simulation: reducer_host 1: expected the speed of its card, got 0.000000 Mbit/s");
  ScaleOptions options = options_of(equal_reducer_hosts(2, 0), small, Kind::kWeights);
  options.placement.weights = {1};
  EXPECT_EQ(failure(options), "placement: expected 2 weights, for 2 worker machines and 0 servers, got 1");
  options = options_of(equal_reducer_hosts(2048, 1), small);
  options.ranks_per_machine = 8;
  EXPECT_EQ(failure(options), "a job has at most 16384 processes, not 2048 machines of 8 and 1 servers");
}

TEST(ScaleJob, EndsWhenAskedTo) {
  const auto result = simulate(one_tensor(equal_reducer_hosts(32, 0), Kind::kAuto), [] { return false; });
  EXPECT_EQ(result.status().code(), StatusCode::kAborted);
}

}  // namespace
}  // namespace byteps::sim
