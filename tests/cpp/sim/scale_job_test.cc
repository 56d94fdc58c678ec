#include "sim/scale_job.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

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

// Layers of float32 that have `bytes` together, rounded down.
ScaleModel even_model(uint64_t bytes, uint32_t num_layers, double compute_s) {
  const Layer layer{.gradient_bytes = bytes / num_layers / 4 * 4, .work = 1};
  return {.layers = std::vector<Layer>(num_layers, layer), .compute_s = compute_s};
}

ScaleResult run(const ScaleOptions& options) {
  const auto result = simulate(options, &always);
  EXPECT_TRUE(result) << result.status();
  return result ? *result : ScaleResult{};
}

ScaleOptions options_of(const std::vector<ReducerHost>& reducer_hosts, const ScaleModel& model,
                        Kind kind = Kind::kAuto) {
  return {.reducer_hosts = reducer_hosts, .placement = {.kind = kind}, .model = model};
}

ScaleResult run(const std::vector<ReducerHost>& reducer_hosts, Kind kind, const ScaleModel& model) {
  return run(options_of(reducer_hosts, model, kind));
}

// Communication alone, as one tensor, and in many partitions for each reducer_host.
ScaleOptions one_tensor(const std::vector<ReducerHost>& reducer_hosts, Kind kind) {
  return {.reducer_hosts = reducer_hosts,
          .placement = {.kind = kind},
          .model = even_model(reducer_hosts.size() * (40 << 20), 1, 0),
          .partition_bytes = 512 << 10};
}

void expect_at_the_bound(const std::vector<ReducerHost>& reducer_hosts, const std::string& what) {
  for (const Kind kind : {Kind::kAuto, Kind::kAllReduce, Kind::kPs}) {
    const ScaleResult result = run(one_tensor(reducer_hosts, kind));
    EXPECT_GT(result.summed_s, result.predicted_s * 0.98) << what << ", placement " << static_cast<int>(kind);
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

TEST(ScaleJob, IsDeterministic) {
  const auto model = model_named("resnet50").value();
  const ScaleResult one = run(equal_reducer_hosts(8, 3), Kind::kAuto, model);
  const ScaleResult other = run(equal_reducer_hosts(8, 3), Kind::kAuto, model);
  EXPECT_EQ(one.summed_s, other.summed_s);
  EXPECT_EQ(one.step_s, other.step_s);
  EXPECT_EQ(one.messages, other.messages);
}

TEST(ScaleJob, CountsTheMessagesOfAllPartitions) {
  const ScaleOptions options = options_of(equal_reducer_hosts(5, 2), model_named("resnet50").value());
  uint64_t partitions = 0;
  for (const Layer& layer : options.model.layers)
    partitions += protocol::cut_evenly(layer.gradient_bytes, options.partition_bytes).count();
  EXPECT_EQ(run(options).messages, 2 * 5 * partitions);
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

TEST(ScaleJob, LatencyCountsOnEachWay) {
  ScaleOptions options = options_of(equal_reducer_hosts(2, 2), even_model(4096, 1, 0));
  options.latency_s = 0.25;
  EXPECT_NEAR(run(options).summed_s, 0.5, 1e-4);
}

// 256 GPUs: 32 machines of 8, 100 Gbit/s. Against all-reduce the gain grows with the servers and
// ends at as many as machines; a parameter server with fewer is the slowest of all. The evaluation
// of the OSDI'20 paper has this shape.
TEST(ScaleJob, GainsAsInThePaperAt256Gpus) {
  ScaleModel model = model_named("vgg16").value();
  model.compute_s = 0.02;  // bound by communication
  struct Case {
    size_t servers;
    double gain, gain_over_ps;  // of the bounds alone
  };
  const Case cases[] = {{0, 1, 1}, {8, 1.234, 2.550}, {16, 1.469, 1.516}, {32, 1.938, 1}, {48, 1.938, 1}};
  for (const Case& expected : cases) {
    const auto step_s = [&](Kind kind) {
      return run({.reducer_hosts = equal_reducer_hosts(32, expected.servers),
                  .placement = {.kind = kind},
                  .model = model,
                  .partition_bytes = 512 << 10})
          .step_s;
    };
    const double ours = step_s(Kind::kAuto);
    EXPECT_NEAR(step_s(Kind::kAllReduce) / ours / expected.gain, 0.97, 0.04) << expected.servers;
    EXPECT_NEAR(step_s(Kind::kPs) / ours / expected.gain_over_ps, 0.97, 0.04) << expected.servers;
  }
}

TEST(ScaleJob, GainsNothingWhereComputationTakesLonger) {
  const ScaleModel model = model_named("resnet50").value();
  const double without = run(equal_reducer_hosts(32, 0), Kind::kAuto, model).step_s;
  EXPECT_NEAR(without / run(equal_reducer_hosts(32, 32), Kind::kAuto, model).step_s, 1, 0.02);
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
}

TEST(ScaleJob, EndsWhenAskedTo) {
  const auto result = simulate(one_tensor(equal_reducer_hosts(32, 0), Kind::kAuto), [] { return false; });
  EXPECT_EQ(result.status().code(), StatusCode::kAborted);
}

}  // namespace
}  // namespace byteps::sim
