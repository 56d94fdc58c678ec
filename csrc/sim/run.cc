#include "sim/run.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "sim/cluster_under_test.h"
#include "sim/world.h"

namespace byteps::sim {
namespace {

constexpr uint64_t kMostPasses = 3'000'000;

// The cluster of the scenario, and perhaps another one beside it or after it.
class Run {
 public:
  Run(const Scenario& scenario, bool keep_trace)
      : scenario_(scenario), world_(scenario.seed, scenario.network, keep_trace) {
    add_cluster(scenario, 0).start_all();
    if (scenario.has_second_job) add_second_job();
    if (scenario.resumes) add_next_job();
  }

  void run_to_end();
  RunResult judge();

 private:
  ClusterUnderTest& add_cluster(const Scenario& scenario, int job) {
    return *clusters_.emplace_back(std::make_unique<ClusterUnderTest>(scenario, job, world_));
  }
  void add_second_job();
  void add_next_job();
  static void start_all_now(ClusterUnderTest& cluster) {
    for (size_t i = 0; i < cluster.num_processes(); ++i) cluster.start_now(i);
  }
  bool is_over();

  const Scenario& scenario_;
  World world_;
  std::vector<std::unique_ptr<ClusterUnderTest>> clusters_;
  uint64_t num_changes_seen_ = UINT64_MAX;
};

void Run::add_second_job() {
  ClusterUnderTest& second = add_cluster(make_other_scenario(mix(scenario_.seed)), 1);
  world_.network.loop().schedule(scenario_.starts_us.front(), [&second] { start_all_now(second); });
}

// Workers resume at once. The first job refuses processes that it does not know, so those come when
// its scheduler ends.
void Run::add_next_job() {
  Scenario next = make_other_scenario(mix(scenario_.seed));
  const size_t resuming = std::min(scenario_.num_workers, next.num_workers);
  std::copy_n(scenario_.machines.begin(), resuming, next.machines.begin());
  ClusterUnderTest& second = add_cluster(next, 0);
  clusters_.front()->on_ended([&second, resuming, scheduler = scenario_.scheduler_process()](size_t ended) {
    if (ended < resuming) second.start_now(ended);
    if (ended == scheduler) start_all_now(second);
  });
}

bool Run::is_over() {
  if (world_.time.num_passes() > kMostPasses) return true;
  if (std::exchange(num_changes_seen_, world_.num_changes) == world_.num_changes) return false;
  bool all_ended = true;
  for (const auto& cluster : clusters_) all_ended = cluster->all_ended() && all_ended;
  return all_ended;
}

// The limit of a second cluster is known only when its processes have started.
void Run::run_to_end() {
  TimeUs limit_us = 0;
  do {
    for (const auto& cluster : clusters_) limit_us = std::max(limit_us, cluster->end_limit_us());
  } while (!world_.time.run_until(limit_us, [this] { return is_over(); }) &&
           std::ranges::any_of(clusters_, [&](const auto& each) { return each->end_limit_us() > limit_us; }));
}

RunResult Run::judge() {
  for (const std::string& violation : world_.network.violations()) world_.report("network", violation);
  if (world_.time.num_passes() > kMostPasses) world_.findings.push_back("the run does not end");
  RunResult result;
  for (const auto& cluster : clusters_) {
    cluster->judge();
    result.num_succeeded += cluster->num_succeeded();
    result.num_failed += cluster->num_failed();
    result.num_moves += cluster->num_moves();
    result.num_servers_lost += cluster->num_servers_lost();
    result.num_schedulers_lost += cluster->num_schedulers_lost();
    result.num_held_sent += cluster->num_held_sent();
    result.num_newcomers_used += cluster->num_newcomers_used();
  }
  result.findings = std::move(world_.findings);
  result.fingerprint = world_.fingerprint ^ world_.time.fingerprint();
  result.trace = std::move(world_.trace);
  result.num_passes = world_.time.num_passes();
  return result;
}

}  // namespace

RunResult run(const Scenario& scenario, bool keep_trace) {
  Run run(scenario, keep_trace);
  run.run_to_end();
  return run.judge();
}

}  // namespace byteps::sim
