#include "sim/elastic_run.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "cluster/coordinator.h"
#include "sim/elastic_program.h"
#include "transport/resume/resuming_transport.h"

namespace byteps::sim {
namespace {

using Kind = ElasticFault::Kind;

constexpr uint64_t kMostElasticPasses = 3'000'000;
constexpr uint16_t kCoordinatorPort = 9000;
constexpr const char* kElasticSecret = "secret";
constexpr const char* kElasticJob = "job";

double in_seconds(TimeUs us) { return static_cast<double>(us) * 1e-6; }
std::string ip_of(uint32_t machine) { return "10.0.0." + std::to_string(machine + 1); }

class ElasticRun {
 public:
  ElasticRun(const ElasticScenario& scenario, bool keep_trace);
  ~ElasticRun() {
    stop_coordinator();
    processes_.clear();
  }

  void run_to_end();
  RunResult judge();

 private:
  void start(size_t member);
  NodeConfig config_of(size_t member) const;
  void strike(const ElasticFault& fault);
  void cut(const ElasticFault& fault);
  void kill_coordinator();
  void stop_coordinator();
  bool is_over();
  bool may_fail() const;
  void judge_member(size_t member);
  void judge_sums();
  void call_at(TimeUs at_us, UniqueFunction<void()> task) {
    world_.network.loop().schedule(at_us, std::move(task));
  }

  const ElasticScenario scenario_;
  World world_;
  std::unique_ptr<VirtualLoop> coordinator_loop_;
  std::unique_ptr<transport::Transport> coordinator_tcp_;
  std::unique_ptr<cluster::Coordinator> coordinator_;
  bool coordinator_was_killed_ = false;
  std::optional<Status> job_outcome_;
  std::vector<std::unique_ptr<SimProcess>> processes_;
  std::vector<std::unique_ptr<ElasticProgram>> programs_;
  std::vector<bool> is_disturbed_;  // a fault has struck the member, so it may have been lost
  uint64_t num_sums_ = 0;
  uint64_t num_partial_ = 0;
  uint64_t num_failed_ = 0;
};

ElasticRun::ElasticRun(const ElasticScenario& scenario, bool keep_trace)
    : scenario_(scenario),
      world_(scenario.seed, scenario.network, keep_trace),
      is_disturbed_(scenario.members.size()) {
  coordinator_loop_ = world_.time.make_loop("coordinator");
  SimTransportOptions options{.ip = ip_of(scenario_.coordinator_machine()),
                              .credentials = {kElasticSecret, kElasticJob, false}};
  options.is_resumed = true;
  coordinator_tcp_ = transport::make_resuming_transport(
      make_sim_transport(world_.network, options), {.nonce = 1, .limit_us = scenario_.timeout_us * 3 / 4});
  coordinator_ = std::make_unique<cluster::Coordinator>(
      *coordinator_loop_, protocol::CoordinatorOptions{.min_workers = scenario_.least,
                                                       .max_workers = scenario_.most,
                                                       .initial_workers = scenario_.initial,
                                                       .start_timeout_us = 10'000'000,
                                                       .timeout_us = scenario_.timeout_us,
                                                       .shortage_timeout_us = 5 * scenario_.timeout_us,
                                                       .gather_us = scenario_.gather_us,
                                                       .version = "1"});
  const Status status = coordinator_->listen(*coordinator_tcp_, {options.ip, kCoordinatorPort});
  if (!status.is_ok()) world_.report("coordinator", status.to_string());
  coordinator_->ended().when_reached([this] {
    job_outcome_ = coordinator_->outcome();
    world_.note("coordinator", 40, [this] { return "the job has ended: " + job_outcome_->to_string(); });
    call_at(world_.time.now_us() + 100'000, [this] { stop_coordinator(); });  // its process ends
  });
  for (size_t i = 0; i < scenario_.members.size(); ++i) {
    const ElasticScenario::Member& member = scenario_.members[i];
    HostFacts facts{.ip = ip_of(member.machine),
                    .machine = "m" + std::to_string(member.machine),
                    .host = "host" + std::to_string(member.machine),
                    .process_id = 1000 + i,
                    .arena_bytes = scenario_.arena_bytes,
                    .nic_mbps = 1000,
                    .usable_cores = 1,
                    .preemption_us = member.preemption_us};
    processes_.push_back(std::make_unique<SimProcess>(world_, "member " + std::to_string(i), facts));
    programs_.push_back(std::make_unique<ElasticProgram>(world_, *processes_[i], scenario_, i));
    call_at(member.starts_us, [this, i] { start(i); });
  }
  for (const ElasticFault& fault : scenario_.faults) call_at(fault.at_us, [this, &fault] { strike(fault); });
}

NodeConfig ElasticRun::config_of(size_t member) const {
  NodeConfig config;
  config.role = "worker";
  config.scheduler_host = ip_of(scenario_.coordinator_machine());
  config.scheduler_ports = {kCoordinatorPort};
  config.machine = "m" + std::to_string(scenario_.members[member].machine);
  config.shm = scenario_.shm;
  config.transport = "tcp";
  config.secret = kElasticSecret;
  config.job_id = kElasticJob;
  config.version = "1";
  config.start_timeout_s = 10;
  config.timeout_s = in_seconds(scenario_.timeout_us);
  config.op_timeout_s = 3600;
  config.stall_warning_s = 3600;
  config.partition_bytes = static_cast<int64_t>(scenario_.partition_bytes);
  config.nic_probe = false;
  config.log_level = "error";
  return config;
}

void ElasticRun::start(size_t member) {
  SimProcess& process = *processes_[member];
  if (process.was_killed() || coordinator_was_killed_) return;
  if (process.is_paused()) return call_at(world_.time.now_us() + 5'000, [this, member] { start(member); });
  const transport::Address coordinator{ip_of(scenario_.coordinator_machine()), kCoordinatorPort};
  process.start_member(config_of(member), coordinator,
                       [this, member](const Status& status) { programs_[member]->begin(status); });
}

void ElasticRun::strike(const ElasticFault& fault) {
  SimProcess& process = *processes_[fault.member];
  switch (fault.kind) {
    case Kind::kKill:
      if (process.is_gone() || process.is_leaving()) return;
      world_.note(process.name(), 20, [] { return "KILLED"; });
      is_disturbed_[fault.member] = true;
      return process.kill();
    case Kind::kPause:
      if (process.is_gone() || process.is_paused()) return;
      world_.note(process.name(), 21, [] { return "STOPPED"; });
      if (fault.lasts_us >= scenario_.timeout_us / 2) is_disturbed_[fault.member] = true;
      process.pause(true);
      return call_at(world_.time.now_us() + fault.lasts_us, [this, &process] {
        if (process.is_gone()) return;
        world_.note(process.name(), 22, [] { return "continues"; });
        process.pause(false);
      });
    case Kind::kCut: return cut(fault);
    case Kind::kReset: {
      const auto reset = world_.network.reset_one();
      if (!reset) return;
      world_.note("network", 24,
                  [&] { return "RESET from " + reset->hosts.first + " to " + reset->hosts.second; });
      if (reset->is_resumed) return;
      for (size_t i = 0; i < processes_.size(); ++i) {
        const std::string& ip = processes_[i]->facts().ip;
        if (ip == reset->hosts.first || ip == reset->hosts.second) is_disturbed_[i] = true;
      }
      return;
    }
    case Kind::kKillCoordinator: return kill_coordinator();
  }
}

void ElasticRun::cut(const ElasticFault& fault) {
  const std::string one = processes_[fault.member]->facts().ip;
  const std::string other = ip_of(fault.other_machine);
  if (one == other) return;
  world_.note("network", 23, [&] { return "CUT between " + one + " and " + other; });
  if (fault.lasts_us >= scenario_.timeout_us / 2) {
    for (size_t i = 0; i < processes_.size(); ++i) {
      const std::string& ip = processes_[i]->facts().ip;
      if (ip == one || ip == other) is_disturbed_[i] = true;
    }
  }
  world_.network.cut(one, other);
  world_.network.cut(other, one);
  call_at(world_.time.now_us() + fault.lasts_us, [this, one, other] {
    world_.note("network", 25, [&] { return "restored between " + one + " and " + other; });
    world_.network.restore(one, other);
    world_.network.restore(other, one);
  });
}

void ElasticRun::kill_coordinator() {
  if (!coordinator_ || job_outcome_) return;
  world_.note("coordinator", 20, [] { return "KILLED"; });
  coordinator_was_killed_ = true;
  coordinator_loop_->kill();
  stop_coordinator();
}

void ElasticRun::stop_coordinator() {
  coordinator_.reset();
  coordinator_tcp_.reset();
}

bool ElasticRun::is_over() {
  if (world_.time.num_passes() > kMostElasticPasses) return true;
  bool all_ended = true;
  for (size_t i = 0; i < processes_.size(); ++i) {
    processes_[i]->reap();
    const bool never_started = !processes_[i]->member() && !processes_[i]->is_gone();
    const bool will_start =
        world_.time.now_us() <= scenario_.members[i].starts_us || processes_[i]->is_paused();
    all_ended = all_ended && (never_started ? !will_start : processes_[i]->is_gone());
  }
  return all_ended;
}

void ElasticRun::run_to_end() {
  world_.time.run_until(scenario_.limit_us(), [this] { return is_over(); });
}

// The job may end with an error: there is no coordinator, nobody is left with the state, too few have
// been there for too long, or members cannot reach each other for long.
bool ElasticRun::may_fail() const {
  if (coordinator_was_killed_ || scenario_.has(Kind::kCut)) return true;
  if (scenario_.least > 1) return true;
  for (size_t i = 0; i < programs_.size(); ++i) {
    const bool stays = !is_disturbed_[i] && scenario_.members[i].leaves_after >= scenario_.steps;
    if (stays && programs_[i]->is_founder()) return false;
  }
  return true;
}

void ElasticRun::judge_member(size_t member) {
  const SimProcess& process = *processes_[member];
  const ElasticProgram& program = *programs_[member];
  if (process.was_killed()) return;
  const bool has_started = process.is_gone() || const_cast<SimProcess&>(process).member() != nullptr;
  if (!has_started) return;
  if (!process.is_gone())
    return world_.report(process.name(), "hangs after step " + std::to_string(program.step()));
  if (!program.at_end()) return world_.report(process.name(), "has ended before its program");
  if (program.outcome().is_ok()) return;
  ++num_failed_;
  // It may also come when the job is over, or is over before it has the state, and somebody was lost.
  const bool has_loss = std::ranges::find(is_disturbed_, true) != is_disturbed_.end();
  const bool others_are_done =
      std::ranges::any_of(programs_, [this](const auto& each) { return each->step() >= scenario_.steps; });
  const bool came_too_late = !program.has_begun() || (has_loss && !program.has_state() && others_are_done);
  if (!may_fail() && !is_disturbed_[member] && !came_too_late)
    world_.report(process.name(), "ends with an error: " + program.outcome().to_string());
}

void ElasticRun::judge_sums() {
  std::map<std::pair<int64_t, size_t>, std::map<ElasticProgram::Runs, std::vector<size_t>>> all;
  for (size_t i = 0; i < programs_.size(); ++i) {
    // One that is lost may have used a result that nobody else has got: that of its last step.
    const bool is_lost = processes_[i]->was_killed() || !programs_[i]->outcome().is_ok();
    for (const auto& [key, runs] : programs_[i]->sums()) {
      ++num_sums_;
      if (runs.size() > 1) ++num_partial_;
      if (!is_lost || key.first < programs_[i]->step()) all[key][runs].push_back(i);
    }
  }
  for (const auto& [key, sums] : all) {
    const std::string what = "step " + std::to_string(key.first) + " tensor " + std::to_string(key.second);
    if (sums.size() > 1) world_.report(what, "members have used different sums");
  }
}

RunResult ElasticRun::judge() {
  for (const std::string& violation : world_.network.violations()) world_.report("network", violation);
  if (world_.time.num_passes() > kMostElasticPasses) world_.findings.push_back("the run does not end");
  RunResult result;
  bool all_steps = false;
  for (size_t i = 0; i < processes_.size(); ++i) {
    judge_member(i);
    all_steps = all_steps || programs_[i]->step() >= scenario_.steps;
    result.num_moves += static_cast<uint64_t>(programs_[i]->num_entered());
  }
  if (!all_steps && !may_fail()) world_.report("the job", "nobody has made all steps");
  judge_sums();
  result.num_succeeded = num_sums_;
  result.num_failed = num_failed_;
  result.num_partial = num_partial_;
  result.findings = std::move(world_.findings);
  result.fingerprint = world_.fingerprint ^ world_.time.fingerprint();
  result.trace = std::move(world_.trace);
  result.num_passes = world_.time.num_passes();
  return result;
}

}  // namespace

RunResult run(const ElasticScenario& scenario, bool keep_trace) {
  ElasticRun run(scenario, keep_trace);
  run.run_to_end();
  return run.judge();
}

}  // namespace byteps::sim
