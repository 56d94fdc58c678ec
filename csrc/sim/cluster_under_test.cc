#include "sim/cluster_under_test.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace byteps::sim {
namespace {

constexpr int kPort = 9000;

double seconds(TimeUs us) { return static_cast<double>(us) * 1e-6; }

}  // namespace

// Connects to services with the secret of the job, and the epoch of an earlier one.
class ClusterUnderTest::Leftover final : public transport::Receiver {
 public:
  Leftover(World& world, SimTransportOptions options)
      : loop_(world.time.make_loop("leftover")),
        transport_(make_sim_transport(world.network, std::move(options))) {}
  ~Leftover() override { loop_->kill(); }

  void greet(const transport::Address& address, const protocol::DataHead& hello) {
    transport_->connect(*loop_, address, loop_->now_us() + 1'000'000, [this, hello](auto connection) {
      if (!connection) return;
      connections_.push_back(std::move(*connection));
      connections_.back()->start(this);
      connections_.back()->send(protocol::encode(hello), {}, nullptr);
    });
  }
  Result<transport::ReceiveBuffer> on_head(transport::Connection&, const transport::Arrival&) override {
    return transport::ReceiveBuffer::discard();
  }
  Status on_frame(transport::Connection&, const transport::Arrival&, Bytes) override { return Status::ok(); }
  void on_closed(transport::Connection&, const Status&) override {}

 private:
  const std::unique_ptr<VirtualLoop> loop_;
  const std::unique_ptr<transport::Transport> transport_;
  std::vector<std::unique_ptr<transport::Connection>> connections_;
};

ClusterUnderTest::~ClusterUnderTest() = default;

ClusterUnderTest::ClusterUnderTest(const Scenario& scenario, int job, World& world)
    : scenario_(scenario),
      job_(job),
      world_(world),
      expectations_(scenario_),
      guilty_(scenario.num_processes()) {
  for (size_t i = 0; i < scenario.num_processes(); ++i) {
    const bool is_worker = i < scenario.num_workers;
    const std::string name = is_worker               ? "worker " + std::to_string(i)
                             : scenario.is_server(i) ? "server " + std::to_string(i)
                                                     : "scheduler";
    processes_.push_back(std::make_unique<SimProcess>(world_, name, facts_of(i)));
    if (!is_worker) continue;
    programs_.push_back(std::make_unique<Program>(world_, *processes_[i], scenario_, static_cast<uint32_t>(i),
                                                  expectations_));
    processes_.back()->on_stopped([program = programs_.back().get()] { program->on_stopped(); });
    programs_.back()->on_end([this] { on_program_end(); });
  }
  for (const Fault& fault : scenario_.faults) {
    if (is_timed(fault.kind)) continue;
    a_fault_matters_ = true;
    guilty_[fault.process] = true;
  }
}

void ClusterUnderTest::start_all() {
  for (size_t i = 0; i < processes_.size(); ++i) {
    if (scenario_.starts_us[i] != kNever) call_at(scenario_.starts_us[i], [this, i] { start(i); });
  }
  if (scenario_.has_leftover) call_at(scenario_.last_start_us(), [this] { start_leftover(); });
  if (scenario_.has_stranger) call_at(scenario_.last_start_us() / 2, [this] { start_stranger(); });
  for (const Fault& fault : scenario_.faults) {
    if (is_timed(fault.kind) && !fault.at_end) call_at(fault.at_us, [this, &fault] { aim(fault); });
  }
  for (const RateChange& change : scenario_.rate_changes)
    call_at(change.at_us, [this, &change] { change_rate(change); });
}

void ClusterUnderTest::change_rate(const RateChange& change) {
  const HostFacts& facts = processes_[change.process]->facts();
  world_.note(processes_[change.process]->name(), 23,
              [&] { return "the card of " + facts.ip + " carries " + std::to_string(change.bytes_per_s); });
  world_.network.set_rate(facts.ip, change.bytes_per_s);
}

void ClusterUnderTest::start_now(size_t process) {
  if (process >= processes_.size() || scenario_.starts_us[process] != kNever) return;
  if (scenario_.never_starts() && scenario_.program_fault()->process == process) return;
  scenario_.starts_us[process] = world_.time.now_us();
  ++world_.num_changes;
  call_at(world_.time.now_us(), [this, process] { start(process); });
}

HostFacts ClusterUnderTest::facts_of(size_t process) const {
  const std::string machine = std::to_string(scenario_.machines[process]);
  return {.ip = "10.0.0." + std::to_string(scenario_.machines[process] + 1),
          .machine = "m" + machine,
          .host = "host" + machine,
          .process_id = 1000 + process,
          .arena_bytes = scenario_.arena_bytes,
          .nic_mbps = scenario_.rate_changes.empty()
                          ? 0
                          : protocol::nic_mbps_of_payload(static_cast<double>(scenario_.network.bytes_per_s)),
          .usable_cores = static_cast<int>(scenario_.shards[process]),
          .long_path_us = scenario_.long_path_us,
          .names = scenario_.names[process],
          .preemption_us = scenario_.preemption_us};
}

NodeConfig ClusterUnderTest::config_of(size_t process) const {
  const bool is_worker = process < scenario_.num_workers;
  const bool knows_sizes = is_worker || scenario_.sizes_are_given;
  NodeConfig config;
  config.role = is_worker ? "worker" : scenario_.is_server(process) ? "server" : "scheduler";
  config.rank = is_worker && scenario_.ranks_are_given ? static_cast<int>(process) : -1;
  config.num_workers = knows_sizes ? static_cast<int>(scenario_.num_workers) : 0;
  config.num_servers = knows_sizes ? static_cast<int>(scenario_.num_servers) : 0;
  config.host_scheduler = scenario_.scheduler_in_rank_0 && process == 0;
  config.scheduler_by_rank_0 = scenario_.scheduler_in_rank_0;
  config.scheduler_host = scheduler_ip();
  config.scheduler_ports = {kPort, kPort + 1};
  config.shm = scenario_.shm;
  config.transport = "tcp";
  config.secret = "secret " + std::to_string(job_);
  config.job_id = "job " + std::to_string(job_);
  config.start_timeout_s = seconds(scenario_.start_timeout_us);
  config.timeout_s = seconds(scenario_.timeout_us);
  config.op_timeout_s = seconds(scenario_.op_timeout_us);
  config.stall_warning_s = seconds(scenario_.stall_warning_us);
  config.partition_bytes = static_cast<int64_t>(scenario_.partition_bytes);
  config.credit_bytes = static_cast<int64_t>(scenario_.credit_bytes);
  config.autotune = scenario_.autotune;
  config.service_threads = scenario_.probes_nics ? 0 : static_cast<int>(scenario_.shards[process]);
  config.placement = scenario_.placement;
  config.failover = scenario_.failover;
  config.nic_probe = scenario_.probes_nics || !scenario_.rate_changes.empty();
  config.traffic_report_s = seconds(scenario_.traffic_report_us);
  config.log_level = "error";
  return config;
}

void ClusterUnderTest::start(size_t process) {
  SimProcess& self = *processes_[process];
  if (self.was_killed()) return;
  if (scenario_.is_newcomer(process) && comes_later(process)) return;
  if (self.is_paused()) return call_at(world_.time.now_us() + 5'000, [this, process] { start(process); });
  self.start(config_of(process), scheduler_ip(), [this, process](const Status& status) {
    if (process < programs_.size()) return programs_[process]->begin(status);
    SimProcess& server = *processes_[process];
    if (!status.is_ok()) {
      world_.note(server.name(), 3, [&] { return "could not start: " + status.to_string(); });
      return server.leave("", "");
    }
    server.node()->finished().when_reached([&server] {
      // Not inside the node's callback.
      server.program().post([&server] { server.leave("", ""); });
    });
  });
}

bool ClusterUnderTest::comes_later(size_t process) {
  const SimProcess& first = *processes_.front();
  if (first.job_started() && !first.is_gone()) return false;
  const bool is_over = first.is_gone() || first.was_killed() || world_.time.now_us() > end_limit_us() / 2;
  if (is_over) {
    scenario_.starts_us[process] = kNever;
    ++world_.num_changes;
  } else {
    call_at(world_.time.now_us() + 5'000, [this, process] { start(process); });
  }
  return true;
}

// Another user's worker, which looks for its scheduler at this address.
void ClusterUnderTest::start_stranger() {
  HostFacts facts = facts_of(0);
  facts.ip = "10.0.1.1";
  facts.host = facts.machine = "stranger";
  stranger_ = std::make_unique<SimProcess>(world_, "stranger", facts);
  NodeConfig config = config_of(scenario_.num_workers - 1);
  config.secret = "another secret";
  config.host_scheduler = false;
  stranger_->start(config, scheduler_ip(), [this](const Status& status) {
    if (status.is_ok()) world_.report("stranger", "has joined the job");
    stranger_->leave("", "");
  });
}

// It claims to be one of the ranks, and comes before that rank does.
void ClusterUnderTest::start_leftover() {
  const uint64_t choice = mix(scenario_.seed ^ 0x01D);
  const HostFacts host = facts_of(choice % scenario_.num_nodes());
  const NodeConfig config = config_of(0);
  leftover_ = std::make_unique<Leftover>(
      world_, SimTransportOptions{.ip = "10.0.1.2", .credentials = {config.secret, config.job_id, false}});
  const protocol::DataHead hello{.type = protocol::DataType::kHello,
                                 .level = choice & 256 ? protocol::Level::kCluster : protocol::Level::kRanks,
                                 .epoch = static_cast<uint32_t>(choice >> 32),
                                 .rank = static_cast<uint32_t>((choice >> 16) % scenario_.num_workers)};
  for (const transport::Address& address : world_.network.listeners_of(host.ip)) {
    if (address.port > kPort + 1) leftover_->greet(address, hello);
  }
}

void ClusterUnderTest::note_guilt(const Fault& fault, const char* what, bool survives) {
  for (size_t i = 0; i < scenario_.num_nodes(); ++i) {
    if (!processes_[i]->job_started()) all_had_started_ = false;
  }
  const bool is_harmless = is_short(fault) || (survives && all_had_started_);
  if (!is_harmless) a_fault_matters_ = true;
  for (size_t i = 0; i < processes_.size(); ++i) {
    const uint32_t machine = scenario_.machines[i];
    const bool is_near =
        machine == scenario_.machines[fault.process] || machine == scenario_.machines[fault.other];
    if (is_cut(fault.kind) ? is_near : i == fault.process) guilty_[i] = true;
  }
  world_.note(processes_[fault.process]->name(), 20, [&] { return what; });
}

void ClusterUnderTest::on_program_end() {
  if (std::exchange(a_program_has_ended_, true)) return;
  for (const Fault& fault : scenario_.faults) {
    if (is_timed(fault.kind) && fault.at_end)
      call_at(world_.time.now_us() + fault.at_us, [this, &fault] { aim(fault); });
  }
  start_waiting_newcomer();
}

void ClusterUnderTest::aim(const Fault& fault) {
  if (fault.after_send_us == kNever) return strike(fault);
  world_.network.at_next_send(processes_[fault.process]->facts().ip, [this, &fault] {
    call_at(world_.time.now_us() + fault.after_send_us, [this, &fault] { strike(fault); });
  });
}

void ClusterUnderTest::strike(const Fault& fault) {
  SimProcess& process = *processes_[fault.process];
  if (is_cut(fault.kind)) return cut(fault);
  if (fault.kind == FaultKind::kReset) {
    const auto reset = world_.network.reset_one();
    if (!reset) return;
    const std::string& from = reset->hosts.first;
    const std::string& to = reset->hosts.second;
    world_.note("network", 24, [&] { return "RESET of a connection from " + from + " to " + to; });
    if (reset->is_resumed) {
      reset_hosts_.insert({from, to});
      if (!may_delay(fault)) return;
      a_fault_matters_ = true;
      return blame_hosts(reset_hosts_);
    }
    const auto is_of_servers = [this](const std::string& ip) {
      for (size_t i = 0; i < processes_.size(); ++i) {
        if (processes_[i]->facts().ip == ip && !scenario_.may_lose(i)) return false;
      }
      return true;
    };
    note_guilt(fault, "RESET of one connection", is_of_servers(from) || is_of_servers(to));
    return blame_hosts({from, to});
  }
  if (process.is_gone() || process.was_killed()) return;
  // Once rank 0 has left, there is no standby.
  const bool has_standby = std::ranges::none_of(
      processes_, [](const auto& each) { return each->rank() == 0 && each->is_leaving(); });
  const bool is_replaced = fault.process != scenario_.scheduler_process() || has_standby;
  const bool had_failed = a_fault_matters_;
  note_guilt(fault, fault.kind == FaultKind::kKilled ? "KILLED" : "STOPPED",
             is_replaced && scenario_.survives(fault));
  if (fault.process == scenario_.scheduler_process()) {
    // A node that has to connect again at that moment may not know the standby yet.
    if (!all_had_started_) blame_hosts(reset_hosts_);
    // Nodes end when they hear that the job has failed. The standby, if it has not heard of it, finds
    // them silent.
    if (had_failed) guilty_.assign(guilty_.size(), true);
  }
  if (fault.kind == FaultKind::kKilled) {
    process.kill();
    return scenario_.is_server(fault.process) ? start_waiting_newcomer() : void();
  }
  process.pause(true);
  if (fault.duration_us == kNever) return;
  call_at(world_.time.now_us() + fault.duration_us, [this, &process] {
    world_.note(process.name(), 22, [] { return "CONTINUED"; });
    if (!process.was_killed()) process.pause(false);
  });
}

// Whether a process or a path is away for less time than anybody minds.
bool ClusterUnderTest::is_short(const Fault& fault) const {
  const bool can_be_short = fault.kind == FaultKind::kStopped || is_cut(fault.kind);
  return can_be_short && fault.duration_us < scenario_.timeout_us / 2;
}

// Whether a connection that is reset may not be made anew in time, because of another fault.
bool ClusterUnderTest::may_delay(const Fault& reset) const {
  return std::ranges::any_of(scenario_.faults, [&](const Fault& other) {
    if (!is_cut(other.kind) && other.kind != FaultKind::kStopped) return false;
    return !is_short(other) &&
           (other.at_end || reset.at_end || std::abs(other.at_us - reset.at_us) < scenario_.timeout_us / 2);
  });
}

void ClusterUnderTest::blame_hosts(const std::set<std::string>& addresses) {
  for (size_t i = 0; i < processes_.size(); ++i) {
    if (addresses.contains(processes_[i]->facts().ip)) guilty_[i] = true;
  }
}

// The first, if there is one.
void ClusterUnderTest::start_waiting_newcomer() {
  for (size_t i = scenario_.num_at_start(); i < processes_.size(); ++i) {
    if (scenario_.starts_us[i] != kNever) continue;
    scenario_.starts_us[i] = world_.time.now_us() + scenario_.replacement_us;
    ++world_.num_changes;
    return call_at(scenario_.starts_us[i], [this, i] { start(i); });
  }
}

void ClusterUnderTest::cut(const Fault& fault) {
  const std::string from = processes_[fault.process]->facts().ip;
  const std::string to = processes_[fault.other]->facts().ip;
  note_guilt(fault, fault.kind == FaultKind::kCut ? "CUT" : "CUT one way", scenario_.survives(fault));
  world_.network.cut(from, to);
  if (fault.kind == FaultKind::kCut) world_.network.cut(to, from);
  if (fault.duration_us == kNever) return;
  call_at(world_.time.now_us() + fault.duration_us, [this, from, to] {
    world_.network.restore(from, to);
    world_.network.restore(to, from);
  });
}

bool ClusterUnderTest::all_ended() {
  bool all = true;
  for (size_t i = 0; i < processes_.size(); ++i) {
    const bool was_gone = processes_[i]->is_gone();
    processes_[i]->reap();
    if (can_end(i) && !processes_[i]->is_gone()) all = false;
    if (i < programs_.size() && !was_gone && processes_[i]->is_gone()) check_ended_last(i);
    if (on_ended_ && !was_gone && processes_[i]->is_gone()) on_ended_(i);
  }
  if (stranger_) stranger_->reap();
  return all;
}

// A process that was never started, or is stopped for ever, does not end.
bool ClusterUnderTest::can_end(size_t process) const {
  if (scenario_.starts_us[process] == kNever) return false;
  const auto stops_for_ever = [&](const Fault& fault) {
    return fault.kind == FaultKind::kStopped && fault.process == process && fault.duration_us == kNever;
  };
  return !(processes_[process]->is_paused() && std::ranges::any_of(scenario_.faults, stops_for_ever));
}

}  // namespace byteps::sim
