// The real Scheduler and Clients of a whole cluster, on one thread, in virtual time, over the
// simulated network.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "cluster/client.h"
#include "cluster/scheduler.h"
#include "sim/sim_network.h"
#include "sim/virtual_time.h"

namespace byteps::sim {
namespace {

constexpr TimeUs kTimeoutUs = 10'000'000;
constexpr int kPort = 9000;

class Process final : public cluster::ClientEvents {
 public:
  Process(SimNetwork& network, std::string ip, const std::string& secret)
      : ip_(std::move(ip)),
        loop_(network.time().make_loop(ip_)),
        transport_(make_sim_transport(network, {.ip = ip_, .credentials = {secret, "job 7"}})) {}

  void host_scheduler(uint32_t workers, uint32_t servers) {
    scheduler_ =
        std::make_unique<cluster::Scheduler>(*loop_, *transport_,
                                             protocol::SchedulerOptions{.num_workers = workers,
                                                                        .num_servers = servers,
                                                                        .start_timeout_us = kTimeoutUs,
                                                                        .refusal_timeout_us = 1'000'000,
                                                                        .timeout_us = kTimeoutUs,
                                                                        .op_timeout_us = kTimeoutUs,
                                                                        .failover = false,
                                                                        .first_epoch = 77});
    ASSERT_TRUE(scheduler_->listen(*transport_, ip_, {kPort}).is_ok());
  }
  void join(const std::string& scheduler_ip, protocol::Role role, int32_t rank, uint32_t workers,
            uint32_t servers) {
    client_ = std::make_unique<cluster::Client>(
        *loop_, *transport_,
        cluster::ClientOptions{.scheduler_host = scheduler_ip,
                               .scheduler_addresses = {{scheduler_ip, 0}},
                               .scheduler_ports = {kPort},
                               .start_deadline_us = loop_->now_us() + kTimeoutUs,
                               .timeout_us = kTimeoutUs},
        *this);
    protocol::Join join;
    join.self.role = role;
    join.self.rank = rank;
    join.self.host = join.self.machine = ip_;
    join.self.endpoints = {{"tcp", {ip_ + ":1"}}};
    join.num_workers = workers;
    join.num_servers = servers;
    client_->join(std::move(join));
  }
  void leave() {
    client_->leave(loop_->now_us() + kTimeoutUs, [this] { has_left = true; });
  }
  // As by SIGKILL: nothing runs any more, and the kernel closes what was open.
  void kill() {
    loop_->kill();
    client_.reset();
    scheduler_.reset();
  }

  VirtualLoop& loop() { return *loop_; }
  cluster::Scheduler* scheduler() { return scheduler_.get(); }
  const std::string& ip() const { return ip_; }

  std::optional<protocol::Roster> roster;
  std::optional<Status> failure;
  TimeUs failed_us = 0;
  bool has_left = false;

  void on_probe_setup(const protocol::ProbeSetup&) override {}
  void on_probe_start(const protocol::ProbeStart&) override {}
  void on_started(const protocol::Roster& started) override { roster = started; }
  void on_failed(const Status& why) override {
    EXPECT_FALSE(failure) << "told twice";
    failure = why;
    failed_us = loop_->now_us();
  }
  void on_node_left(uint32_t) override {}
  void on_node_removed(const protocol::Removed&) override {}
  void on_node_added(const protocol::NodeInfo&) override {}
  void on_finished(const std::string&) override {
    if (!has_left) leave();  // a server, when all workers have left
  }
  void on_still_waiting(const std::string&) override {}
  Status on_answer(const protocol::Control&) override { return Status::ok(); }

 private:
  const std::string ip_;
  const std::unique_ptr<VirtualLoop> loop_;
  const std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<cluster::Scheduler> scheduler_;
  std::unique_ptr<cluster::Client> client_;
};

// Three workers and a server; the first worker's process has the scheduler.
class Cluster {
 public:
  explicit Cluster(uint64_t seed, int stranger = -1) : time_(seed), network_(time_, {}) {
    for (int i = 0; i < kProcesses; ++i) {
      processes_.push_back(std::make_unique<Process>(network_, "10.0.0." + std::to_string(i + 1),
                                                     i == stranger ? "another secret" : "a secret"));
    }
    processes_[0]->host_scheduler(kWorkers, kProcesses - kWorkers);
    std::vector<int> order{0, 1, 2, 3};
    time_.random().shuffle(order);
    for (const int i : order) {
      const auto role = i < kWorkers ? protocol::Role::kWorker : protocol::Role::kServer;
      processes_[i]->join("10.0.0.1", role, i < kWorkers ? i : -1, kWorkers, kProcesses - kWorkers);
    }
  }

  bool run_until(const std::function<bool(const Process&)>& is_so, int except = -1) {
    return time_.run_until(time_.now_us() + 6 * kTimeoutUs, [&] {
      return std::all_of(processes_.begin(), processes_.end(), [&](const auto& process) {
        return process.get() == (except < 0 ? nullptr : processes_[except].get()) || is_so(*process);
      });
    });
  }
  bool start() {
    return run_until([](const Process& process) { return process.roster.has_value(); });
  }
  Process& at(int index) { return *processes_[index]; }
  VirtualTime& time() { return time_; }
  SimNetwork& network() { return network_; }

  static constexpr int kProcesses = 4;
  static constexpr int kWorkers = 3;

 private:
  VirtualTime time_;
  SimNetwork network_;
  std::vector<std::unique_ptr<Process>> processes_;
};

bool has_failed(const Process& process) { return process.failure.has_value(); }

class ClusterRoles : public testing::TestWithParam<int> {
 protected:
  uint64_t seed() const { return static_cast<uint64_t>(GetParam()); }
  int victim() const { return 1 + GetParam() % (Cluster::kProcesses - 1); }  // not the scheduler's process
  void expect_named(Cluster& cluster, int victim) {
    for (int i = 0; i < Cluster::kProcesses; ++i) {
      if (i == victim) continue;
      ASSERT_TRUE(cluster.at(i).failure) << i;
      EXPECT_NE(cluster.at(i).failure->message().find("host " + cluster.at(victim).ip()), std::string::npos)
          << i << ": " << *cluster.at(i).failure;
    }
  }
};

TEST_P(ClusterRoles, AllGetTheSameRoster) {
  Cluster cluster(seed());
  ASSERT_TRUE(cluster.start());
  for (int i = 1; i < Cluster::kProcesses; ++i) {
    EXPECT_EQ(cluster.at(i).roster->nodes, cluster.at(0).roster->nodes);
    EXPECT_EQ(cluster.at(i).roster->epoch, 77u);
  }
}

TEST_P(ClusterRoles, AProcessThatIsKilledIsNamedAtOnce) {
  Cluster cluster(seed());
  ASSERT_TRUE(cluster.start());
  const TimeUs killed_us = cluster.time().now_us();
  cluster.at(victim()).kill();
  ASSERT_TRUE(cluster.run_until(has_failed, victim()));
  expect_named(cluster, victim());
  EXPECT_LT(cluster.at(0).failed_us - killed_us, 10'000);
}

TEST_P(ClusterRoles, AProcessThatIsStoppedIsNamedAfterTheTimeout) {
  Cluster cluster(seed());
  ASSERT_TRUE(cluster.start());
  const TimeUs stopped_us = cluster.time().now_us();
  cluster.at(victim()).loop().pause(true);
  ASSERT_TRUE(cluster.run_until(has_failed, victim()));
  expect_named(cluster, victim());
  EXPECT_LT(cluster.at(0).failed_us - stopped_us, kTimeoutUs + kTimeoutUs / 2);
}

TEST_P(ClusterRoles, BothSidesOfACutHear) {
  Cluster cluster(seed());
  ASSERT_TRUE(cluster.start());
  cluster.network().cut(cluster.at(0).ip(), cluster.at(victim()).ip());
  if (GetParam() % 2 == 0) cluster.network().cut(cluster.at(victim()).ip(), cluster.at(0).ip());
  ASSERT_TRUE(cluster.run_until(has_failed));
}

TEST_P(ClusterRoles, AShortCutIsNoFailure) {
  Cluster cluster(seed());
  ASSERT_TRUE(cluster.start());
  cluster.network().cut(cluster.at(0).ip(), cluster.at(victim()).ip());
  cluster.time().run_until(cluster.time().now_us() + kTimeoutUs / 3, [] { return false; });
  cluster.network().restore(cluster.at(0).ip(), cluster.at(victim()).ip());
  cluster.time().run_until(cluster.time().now_us() + 3 * kTimeoutUs, [] { return false; });
  for (int i = 0; i < Cluster::kProcesses; ++i) EXPECT_FALSE(cluster.at(i).failure) << i;
}

TEST_P(ClusterRoles, AStrangerDoesNotJoin) {
  Cluster cluster(seed(), victim());
  ASSERT_TRUE(cluster.run_until(has_failed));
  EXPECT_EQ(cluster.at(victim()).failure->code(), StatusCode::kPermissionDenied)
      << *cluster.at(victim()).failure;
  EXPECT_FALSE(cluster.at(0).roster);
}

TEST_P(ClusterRoles, AllLeaveInOrder) {
  Cluster cluster(seed());
  ASSERT_TRUE(cluster.start());
  for (int i = Cluster::kWorkers - 1; i >= 0; --i) cluster.at(i).leave();
  ASSERT_TRUE(cluster.run_until([](const Process& process) { return process.has_left; }));
  ASSERT_TRUE(
      cluster.run_until([&](const Process&) { return cluster.at(0).scheduler()->ended().is_reached(); }));
  EXPECT_TRUE(cluster.at(0).scheduler()->outcome().is_ok()) << cluster.at(0).scheduler()->outcome();
  for (int i = 0; i < Cluster::kProcesses; ++i) EXPECT_FALSE(cluster.at(i).failure) << i;
}

std::string story(uint64_t seed) {
  Cluster cluster(seed);
  EXPECT_TRUE(cluster.start());
  std::ostringstream text;
  text << cluster.time().now_us();
  cluster.at(2).kill();
  EXPECT_TRUE(cluster.run_until(has_failed, 2));
  for (int i = 0; i < Cluster::kProcesses; ++i) text << ' ' << cluster.at(i).failed_us;
  return text.str();
}

TEST_P(ClusterRoles, ASeedReplaysToTheMicrosecond) { EXPECT_EQ(story(seed()), story(seed())); }

INSTANTIATE_TEST_SUITE_P(Seeds, ClusterRoles, testing::Range(0, 40));

}  // namespace
}  // namespace byteps::sim
