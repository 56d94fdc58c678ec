#include "sim/cluster_under_test.h"

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

namespace byteps::sim {
namespace {

constexpr int kPort = 9000;
// A job of these sizes without a fault takes less.
constexpr TimeUs kNaturalUs = 2'000'000;
constexpr TimeUs kSlackUs = 1'500'000;
// The steps of leaving have deadlines of 5 s each.
constexpr TimeUs kLeaveUs = 30'000'000;
constexpr uint64_t kMostPasses = 3'000'000;

double seconds(TimeUs us) { return static_cast<double>(us) * 1e-6; }

}  // namespace

RunResult run(const Scenario& scenario, bool keep_trace) {
  World world(scenario.seed, scenario.network, keep_trace);
  std::vector<std::unique_ptr<ClusterUnderTest>> clusters;
  ClusterUnderTest& first = *clusters.emplace_back(std::make_unique<ClusterUnderTest>(scenario, 0, world));
  first.start_all();
  if (scenario.has_second_job || scenario.resumes) {
    Scenario other = make_other_scenario(mix(scenario.seed));
    const size_t resuming = scenario.resumes ? std::min(scenario.num_workers, other.num_workers) : 0;
    std::copy_n(scenario.machines.begin(), resuming, other.machines.begin());
    ClusterUnderTest& second = *clusters.emplace_back(
        std::make_unique<ClusterUnderTest>(other, scenario.has_second_job ? 1 : 0, world));
    const auto start_all = [&second, count = other.num_processes()] {
      for (size_t i = 0; i < count; ++i) second.start_now(i);
    };
    if (scenario.has_second_job) {
      world.network.loop().schedule(scenario.starts_us.front(), start_all);
    } else {
      // Workers resume at once. The first job refuses processes that it does not know, so those
      // come when its scheduler ends.
      first.on_ended([&second, start_all, resuming, scheduler = scenario.scheduler_process()](size_t ended) {
        if (ended < resuming) second.start_now(ended);
        if (ended == scheduler) start_all();
      });
    }
  }
  uint64_t num_changes_seen = UINT64_MAX;
  const auto all_ended = [&] {
    if (std::exchange(num_changes_seen, world.num_changes) == world.num_changes) return false;
    return std::ranges::all_of(clusters, [](const auto& each) { return each->all_ended(); });
  };
  const auto is_over = [&] { return world.time.num_passes() > kMostPasses || all_ended(); };
  // The second job has its limit only when its processes have started.
  while (!is_over()) {
    TimeUs limit_us = 0;
    for (const auto& cluster : clusters) limit_us = std::max(limit_us, cluster->end_limit_us());
    if (world.time.now_us() >= limit_us || !world.time.run_until(limit_us, is_over)) break;
  }
  for (const std::string& violation : world.network.violations()) world.report("network", violation);
  if (world.time.num_passes() > kMostPasses) world.findings.push_back("the run does not end");
  RunResult result;
  for (const auto& cluster : clusters) {
    cluster->judge();
    cluster->add_counts(result);
  }
  result.findings = std::move(world.findings);
  result.fingerprint = world.trace.fingerprint() ^ world.time.fingerprint();
  result.trace = world.trace.lines();
  result.num_passes = world.time.num_passes();
  return result;
}

ClusterUnderTest::ClusterUnderTest(const Scenario& scenario, int job, World& world)
    : scenario_(scenario),
      job_(job),
      world_(world),
      expectations_(scenario_),
      guilty_(scenario.num_processes()) {
  for (size_t i = 0; i < scenario.num_processes(); ++i) {
    const bool is_worker = i < scenario.num_workers;
    const std::string name = is_worker                  ? "worker " + std::to_string(i)
                             : i < scenario.num_nodes() ? "server " + std::to_string(i)
                                                        : "scheduler";
    processes_.push_back(std::make_unique<SimProcess>(world_, name, facts_of(i)));
    if (!is_worker) continue;
    programs_.push_back(std::make_unique<Program>(world_, *processes_[i], scenario_, static_cast<uint32_t>(i),
                                                  expectations_));
    processes_.back()->on_stopped([program = programs_.back().get()] { program->on_stopped(); });
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
  if (scenario_.has_stranger) call_at(scenario_.starts_us.back() / 2, [this] { start_stranger(); });
  for (const Fault& fault : scenario_.faults) {
    if (is_timed(fault.kind)) call_at(fault.at_us, [this, &fault] { strike(fault); });
  }
}

void ClusterUnderTest::start_now(size_t process) {
  if (process >= processes_.size() || scenario_.starts_us[process] != kNever) return;
  const Fault* const own = scenario_.program_fault();
  if (own != nullptr && own->kind == FaultKind::kNeverStarts && own->process == process) return;
  scenario_.starts_us[process] = world_.time.now_us();
  ++world_.num_changes;
  call_at(world_.time.now_us(), [this, process] { start(process); });
}

// ---- the run

void ClusterUnderTest::call_at(TimeUs at_us, UniqueFunction<void()> task) {
  world_.network.loop().schedule(at_us, std::move(task));
}

HostFacts ClusterUnderTest::facts_of(size_t process) const {
  const std::string machine = std::to_string(scenario_.machines[process]);
  return {.ip = "10.0.0." + std::to_string(scenario_.machines[process] + 1),
          .machine = "m" + machine,
          .host = "host" + machine,
          .process_id = 1000 + process,
          .lend_bytes = scenario_.lend_bytes};
}

NodeConfig ClusterUnderTest::config_of(size_t process) const {
  const bool is_worker = process < scenario_.num_workers;
  const bool knows_sizes = is_worker || scenario_.sizes_are_given;
  NodeConfig config;
  config.role = is_worker ? "worker" : process < scenario_.num_nodes() ? "server" : "scheduler";
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
  config.service_threads = static_cast<int>(scenario_.shards[process]);
  config.placement = scenario_.placement;
  config.nic_probe = scenario_.probes_nics;
  config.log_level = "error";
  return config;
}

void ClusterUnderTest::start(size_t process) {
  SimProcess& self = *processes_[process];
  if (self.was_killed()) return;
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

void ClusterUnderTest::note_guilt(const Fault& fault, const char* what) {
  const bool is_short = fault.duration_us < scenario_.timeout_us / 2;
  const bool can_be_short = fault.kind == FaultKind::kStopped || is_cut(fault.kind);
  if (!can_be_short || !is_short) a_fault_matters_ = true;
  for (size_t i = 0; i < scenario_.num_nodes(); ++i) {
    if (!processes_[i]->job_started()) all_had_started_ = false;
  }
  for (size_t i = 0; i < processes_.size(); ++i) {
    const uint32_t machine = scenario_.machines[i];
    const bool is_near =
        machine == scenario_.machines[fault.process] || machine == scenario_.machines[fault.other];
    if (is_cut(fault.kind) ? is_near : i == fault.process) guilty_[i] = true;
  }
  world_.note(processes_[fault.process]->name(), 20, [&] { return what; });
}

void ClusterUnderTest::strike(const Fault& fault) {
  SimProcess& process = *processes_[fault.process];
  if (is_cut(fault.kind)) return cut(fault);
  if (fault.kind == FaultKind::kReset) {
    const auto hosts = world_.network.reset_one();
    if (!hosts) return;
    note_guilt(fault, "RESET of one connection");
    for (size_t i = 0; i < processes_.size(); ++i) {
      const std::string& ip = processes_[i]->facts().ip;
      if (ip == hosts->first || ip == hosts->second) guilty_[i] = true;
    }
    return;
  }
  if (process.is_gone() || process.was_killed()) return;
  note_guilt(fault, fault.kind == FaultKind::kKilled ? "KILLED" : "STOPPED");
  if (fault.kind == FaultKind::kKilled) return process.kill();
  process.pause(true);
  if (fault.duration_us == kNever) return;
  call_at(world_.time.now_us() + fault.duration_us, [this, &process] {
    world_.note(process.name(), 22, [] { return "CONTINUED"; });
    if (!process.was_killed()) process.pause(false);
  });
}

void ClusterUnderTest::cut(const Fault& fault) {
  const std::string from = processes_[fault.process]->facts().ip;
  const std::string to = processes_[fault.other]->facts().ip;
  note_guilt(fault, fault.kind == FaultKind::kCut ? "CUT" : "CUT one way");
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

// ---- the verdict

TimeUs ClusterUnderTest::last_start_us() const {
  TimeUs last = 0;
  for (const TimeUs start : scenario_.starts_us) last = start == kNever ? last : std::max(last, start);
  return last;
}

TimeUs ClusterUnderTest::answer_limit_us() const {
  TimeUs limit_us = last_start_us() + kNaturalUs;
  const TimeUs detected_us = 3 * scenario_.timeout_us + kSlackUs;
  const Fault* const own = scenario_.program_fault();
  if (own != nullptr && own->kind == FaultKind::kNeverStarts) {
    limit_us = last_start_us() + scenario_.start_timeout_us + detected_us;
  } else if (own != nullptr && !concerns_one_round(own->kind)) {
    limit_us += static_cast<TimeUs>(scenario_.rounds + 1) * scenario_.op_timeout_us + detected_us;
  }
  if (!all_had_started_) limit_us = std::max(limit_us, last_start_us() + scenario_.start_timeout_us);
  for (const Fault& fault : scenario_.faults) {
    if (!is_timed(fault.kind)) continue;
    const TimeUs lasts_us = fault.duration_us == kNever || !a_fault_matters_ ? 0 : fault.duration_us;
    limit_us = std::max(limit_us, fault.at_us) + lasts_us + detected_us;
  }
  return limit_us;
}

TimeUs ClusterUnderTest::end_limit_us() const {
  const TimeUs start_us = last_start_us() + scenario_.start_timeout_us;
  return std::max(answer_limit_us(), start_us) + kLeaveUs;
}

bool ClusterUnderTest::must_succeed() const { return !a_fault_matters_; }

bool ClusterUnderTest::is_guilty(size_t process) const { return guilty_[process]; }

void ClusterUnderTest::judge() {
  check_ended();
  for (uint32_t i = 0; i < scenario_.num_workers; ++i) {
    if (can_end(i) && !processes_[i]->was_killed()) check_outcomes(i);
  }
  if (const Fault* own = scenario_.program_fault(); own != nullptr && has_a_round(own->kind))
    check_one_round();
  if (!must_succeed()) check_names();
}

void ClusterUnderTest::check_ended() {
  for (size_t i = 0; i < processes_.size(); ++i) {
    if (can_end(i) && !processes_[i]->is_gone()) {
      world_.findings.push_back(processes_[i]->name() + ": still there after " +
                                std::to_string(world_.time.now_us() / 1000) + " ms");
    }
  }
}

void ClusterUnderTest::check_outcomes(uint32_t worker) {
  Program& program = *programs_[worker];
  const std::string& name = processes_[worker]->name();
  program.check_buffers();
  if (must_succeed() && !(program.at_end() && program.start_failure().is_ok())) {
    world_.report(name, "did not come to its end: " + program.start_failure().to_string());
  }
  for (const Outcome& outcome : program.outcomes()) {
    ++(outcome.status.is_ok() ? num_succeeded_ : num_failed_);
    if (outcome.times_done != 1) {
      world_.report(name, outcome.what + ": answered " + std::to_string(outcome.times_done) + " times");
    } else if (must_succeed() && !outcome.status.is_ok()) {
      world_.report(name, outcome.what + ": " + outcome.status.to_string());
    } else if (outcome.done_us > answer_limit_us()) {
      world_.report(name,
                    outcome.what + ": answered after " + std::to_string(outcome.done_us / 1000) + " ms");
    }
  }
}

// The round with the fault fails on all ranks, and no other push_pull fails, unless ranks wait for
// it until a deadline.
void ClusterUnderTest::check_one_round() {
  const Fault& fault = *scenario_.program_fault();
  if (scenario_.has_timed_faults()) return;
  if (std::ranges::any_of(scenario_.workers, &WorkerPlan::gives_up)) return;  // more fails then
  for (uint32_t i = 0; i < scenario_.num_workers; ++i) {
    for (const Outcome& outcome : programs_[i]->outcomes()) {
      const bool fails = outcome.tensor == fault.tensor && outcome.round == fault.round;
      if (outcome.status.is_ok() != fails) continue;
      if (!fails && !concerns_one_round(fault.kind)) continue;
      world_.report(processes_[i]->name(), outcome.what + ": " + outcome.status.to_string());
    }
  }
}

// A process that died, hung, raised or never came is named in every failure. A rank that left, or
// that asked for something else, is named in the first failure: ranks that go on after it get into
// trouble with each other as well.
void ClusterUnderTest::check_names() {
  if (std::ranges::any_of(scenario_.workers, &WorkerPlan::gives_up)) return;
  const Fault* const own = scenario_.program_fault();
  const bool in_every =
      own == nullptr || own->kind == FaultKind::kNeverStarts || own->kind == FaultKind::kRaises;
  // The guilty process is then the one whose fault came first.
  if (!in_every && scenario_.has_timed_faults()) return;
  const Outcome* first = nullptr;
  size_t first_process = 0;
  for (size_t i = 0; i < scenario_.num_nodes(); ++i) {
    if (is_guilty(i)) continue;
    if (in_every) check_named(i, "the job", processes_[i]->failure());
    if (i >= programs_.size()) continue;
    for (const Outcome& outcome : programs_[i]->outcomes()) {
      if (outcome.status.is_ok()) continue;
      if (in_every) check_named(i, outcome.what, outcome.status);
      const bool of_one_tensor = own != nullptr && concerns_one_tensor(own->kind);
      if (of_one_tensor && (outcome.is_barrier || outcome.tensor != own->tensor)) continue;
      if (first == nullptr || outcome.done_us < first->done_us)
        std::tie(first, first_process) = std::pair(&outcome, i);
    }
  }
  if (in_every || first == nullptr) return;
  check_named(first_process, first->what, first->status);
  const bool is_kept =
      is_stored(scenario_.tensors[own->tensor].op);  // messages name the rank that waits, too
  if (own->kind == FaultKind::kSkips && !is_kept) check_no_other_named(first_process, *own, *first);
}

void ClusterUnderTest::check_no_other_named(size_t process, const Fault& fault, const Outcome& outcome) {
  for (size_t i = 0; i < scenario_.num_workers; ++i) {
    if (i == fault.process || outcome.status.message().find(known_name(i)) == std::string::npos) continue;
    world_.report(processes_[process]->name(),
                  outcome.what + " names an innocent process: " + outcome.status.message());
  }
}

void ClusterUnderTest::check_named(size_t process, const std::string& what, const Status& status) {
  if (status.is_ok() || names_guilty(status.message())) return;
  const Fault* const own = scenario_.program_fault();
  const bool never_starts = own != nullptr && own->kind == FaultKind::kNeverStarts;
  // A process that comes late to a job that failed before its start finds no scheduler to ask.
  if (!processes_[process]->job_started() && (!never_starts || scenario_.has_timed_faults())) return;
  // The scheduler's process may leave when its program is through, before it could notice a process
  // that is silent. Then nobody can say who is guilty.
  const bool scheduler_left = processes_[scenario_.scheduler_process()]->is_gone() &&
                              status.message().find(" has left the job") != std::string::npos;
  if (scheduler_left) return;
  world_.report(processes_[process]->name(), what + " does not name the guilty process: " + status.message());
}

bool ClusterUnderTest::names_guilty(const std::string& text) const {
  for (size_t i = 0; i < processes_.size(); ++i) {
    if (is_guilty(i) && text.find(known_name(i)) != std::string::npos) return true;
  }
  return false;
}

// Name of a process in messages; "" if the others cannot know a name.
std::string ClusterUnderTest::known_name(size_t process) const {
  if (process >= scenario_.num_nodes()) return "scheduler";
  if (processes_[process]->job_started())
    return "pid " + std::to_string(processes_[process]->facts().process_id) + ")";
  // The scheduler knows which ranks are missing only if the workers come with their ranks.
  const bool is_numbered =
      process < scenario_.num_workers && scenario_.ranks_are_given && scenario_.num_workers > 1;
  return is_numbered ? "rank " + std::to_string(process) : "";
}

void ClusterUnderTest::add_counts(RunResult& result) const {
  result.num_succeeded += num_succeeded_;
  result.num_failed += num_failed_;
}

}  // namespace byteps::sim
