#include "sim/cluster_under_test.h"

#include <algorithm>
#include <utility>

namespace byteps::sim {
namespace {

// What a job of this size needs when nothing goes wrong, with much to spare.
constexpr TimeUs kNaturalUs = 2'000'000;
// Four steps of an orderly end, each with its own deadline, and what is under way meanwhile.
constexpr TimeUs kLeaveUs = 1'200'000;
constexpr TimeUs kSlackUs = 200'000;
constexpr uint64_t kMaxEvents = 2'000'000;

bool is_timed(FaultKind kind) {
  return kind == FaultKind::kKilled || kind == FaultKind::kStopped || is_of_connection(kind);
}

}  // namespace

RunResult run(const Scenario& scenario, const RunOptions& options) {
  ClusterUnderTest cluster(scenario, options);
  cluster.run_to_end();
  return cluster.take_result();
}

ClusterUnderTest::ClusterUnderTest(const Scenario& scenario, const RunOptions& options)
    : scenario_(scenario), world_(scenario, options.sabotage, options.keep_trace), expectations_(scenario) {
  for (uint32_t i = 0; i < scenario.num_workers; ++i) {
    auto& process = processes_.emplace_back(
        std::make_unique<VirtualProcess>(world_.clock, "worker " + std::to_string(i)));
    users_.push_back(std::make_unique<SimUser>(world_, *process, i, expectations_));
    nodes_.push_back(std::make_unique<SimNode>(world_, *process, i, users_.back().get()));
  }
  for (uint32_t i = 0; i < scenario.num_servers; ++i) {
    auto& process = processes_.emplace_back(
        std::make_unique<VirtualProcess>(world_.clock, "server process " + std::to_string(i)));
    nodes_.push_back(std::make_unique<SimNode>(world_, *process, scenario.num_workers + i, nullptr));
  }
  if (!scenario.scheduler_in_rank_0) {
    processes_.push_back(std::make_unique<VirtualProcess>(world_.clock, "scheduler"));
  }
  start_processes();
  plan_fault();
}

// ---- the run ------------------------------------------------------------------------------------------------

void ClusterUnderTest::start_processes() {
  for (size_t i = 0; i < processes_.size(); ++i) {
    if (scenario_.starts_us[i] == kNever) continue;
    processes_[i]->at(scenario_.starts_us[i], [this, i] {
      if (i < nodes_.size()) return nodes_[i]->start();
      VirtualProcess& process = *processes_[i];
      scheduler_ = std::make_unique<SimScheduler>(world_, process, [this, &process] {
        process.soon([this, &process] {
          process.end();
          world_.network.on_process_gone(process);
        });
      });
    });
  }
}

void ClusterUnderTest::plan_fault() {
  const Fault& fault = scenario_.fault;
  if (is_timed(fault.kind)) {
    world_.clock.at(fault.at_us, [this] { apply_fault(); });
  } else if (fault.kind != FaultKind::kNone && fault.kind != FaultKind::kRepeats) {
    fault_had_effect_ = true;
    guilty_.push_back(processes_[fault.process].get());
  }
}

void ClusterUnderTest::apply_fault() {
  const Fault& fault = scenario_.fault;
  VirtualProcess& process = *processes_[fault.process];
  all_had_started_ = std::ranges::all_of(nodes_, [](const auto& node) { return node->job_started(); });
  if (is_of_connection(fault.kind)) {
    const bool silent = fault.kind == FaultKind::kConnectionSilenced;
    const auto [first, second] = silent ? world_.network.silence_one() : world_.network.cut_one();
    if (first == nullptr) return;
    fault_had_effect_ = true;
    guilty_ = {first, second};
    return world_.note(*first, 20, [silent, second = second] {
      return (silent ? "SILENT to " : "CUT from ") + second->name();
    });
  }
  if (process.gone()) return;
  fault_had_effect_ = true;
  guilty_ = {&process};
  world_.note(process, 21, [&] { return fault.kind == FaultKind::kKilled ? "KILLED" : "STOPPED"; });
  if (fault.kind == FaultKind::kKilled) {
    process.end();
    return world_.network.on_process_gone(process);
  }
  process.stop();
  if (fault.duration_us == kNever) return;
  world_.clock.at(world_.clock.now() + fault.duration_us, [this, &process] {
    world_.note(process, 22, [] { return "CONTINUED"; });
    process.resume();
  });
}

void ClusterUnderTest::run_to_end() {
  while (!all_ended() && event_count_ < kMaxEvents && world_.clock.run_one(end_limit_us())) ++event_count_;
  judge();
}

bool ClusterUnderTest::all_ended() const {
  for (size_t i = 0; i < processes_.size(); ++i) {
    if (can_end(i) && !processes_[i]->gone()) return false;
  }
  return true;
}

// A process that is stopped for ever, or never was, does not.
bool ClusterUnderTest::can_end(size_t process) const {
  const bool for_ever = scenario_.fault.duration_us == kNever;
  return scenario_.starts_us[process] != kNever && !(processes_[process]->stopped() && for_ever);
}

// ---- the verdict --------------------------------------------------------------------------------------------

TimeUs ClusterUnderTest::last_start_us() const {
  TimeUs last = 0;
  for (const TimeUs start : scenario_.starts_us) last = start == kNever ? last : std::max(last, start);
  return last;
}

TimeUs ClusterUnderTest::answer_limit_us() const {
  const Fault& fault = scenario_.fault;
  const TimeUs natural_us = last_start_us() + kNaturalUs;
  const TimeUs start_us = last_start_us() + scenario_.start_timeout_us;
  const TimeUs detected_us = 2 * scenario_.timeout_us + kSlackUs;
  switch (fault.kind) {
    case FaultKind::kNone:
    case FaultKind::kRepeats: return natural_us;
    case FaultKind::kNeverStarts: return start_us + detected_us;
    case FaultKind::kKilled:
    case FaultKind::kStopped:
    case FaultKind::kConnectionCut:
    case FaultKind::kConnectionSilenced: {
      const bool ends = fault.kind == FaultKind::kStopped && fault.duration_us != kNever;
      const TimeUs over_us = fault.at_us + (ends ? fault.duration_us : 0);
      return std::max(all_had_started_ ? natural_us : start_us, over_us) + detected_us;
    }
    case FaultKind::kOtherSizeOnce:
    case FaultKind::kRefusedOnce: return natural_us;  // nobody has to wait for a time-out
    default:
      return natural_us + static_cast<TimeUs>(scenario_.rounds + 1) * scenario_.op_timeout_us + detected_us;
  }
}

TimeUs ClusterUnderTest::end_limit_us() const { return answer_limit_us() + kLeaveUs; }

bool ClusterUnderTest::must_succeed() const {
  const Fault& fault = scenario_.fault;
  const bool short_stop = fault.kind == FaultKind::kStopped && fault.duration_us < scenario_.timeout_us / 2;
  return !fault_had_effect_ || short_stop;
}

void ClusterUnderTest::judge() {
  if (event_count_ == kMaxEvents) world_.findings.push_back("the run goes on for ever");
  check_ended();
  for (uint32_t i = 0; i < scenario_.num_workers; ++i) {
    const bool guilty = std::ranges::find(guilty_, processes_[i].get()) != guilty_.end();
    const bool lives = can_end(i) && !(guilty && scenario_.fault.kind == FaultKind::kKilled);
    if (lives) check_outcomes(i);
  }
  if (has_a_round(scenario_.fault.kind)) check_one_round();
  if (!must_succeed()) check_names();
}

void ClusterUnderTest::check_ended() {
  for (size_t i = 0; i < processes_.size(); ++i) {
    if (can_end(i) && !processes_[i]->gone()) {
      world_.findings.push_back(processes_[i]->name() + ": still there after " +
                                std::to_string(world_.clock.now() / 1000) + " ms");
    }
  }
}

void ClusterUnderTest::check_outcomes(uint32_t worker) {
  const SimUser& user = *users_[worker];
  const VirtualProcess& process = *processes_[worker];
  if (must_succeed() && !(user.at_end() && user.start_failure().is_ok())) {
    world_.report(process, "did not come to its end: " + user.start_failure().to_string());
  }
  for (const Outcome& outcome : user.outcomes()) {
    ++(outcome.status.is_ok() ? succeeded_count_ : failed_count_);
    if (outcome.times_done != 1) {
      world_.report(process, outcome.what + ": answered " + std::to_string(outcome.times_done) + " times");
    } else if (must_succeed() && !outcome.status.is_ok()) {
      world_.report(process, outcome.what + ": " + outcome.status.to_string());
    } else if (outcome.done_us > answer_limit_us()) {
      world_.report(process,
                    outcome.what + ": answered after " + std::to_string(outcome.done_us / 1000) + " ms");
    }
  }
}

// The round with the fault fails on all ranks, and no other push_pull does, unless ranks wait for it until a time-out.
void ClusterUnderTest::check_one_round() {
  const Fault& fault = scenario_.fault;
  for (uint32_t i = 0; i < scenario_.num_workers; ++i) {
    if (std::ranges::any_of(scenario_.workers, &WorkerPlan::gives_up)) return;  // which fails more
    for (const Outcome& outcome : users_[i]->outcomes()) {
      const bool fails = outcome.tensor == fault.tensor && outcome.round == fault.round;
      if (outcome.status.is_ok() != fails) continue;
      if (!fails && !concerns_one_round(fault.kind)) continue;
      world_.report(*processes_[i], outcome.what + ": " + outcome.status.to_string());
    }
  }
}

// A process that died, hung, raised or never came is named in every failure. A rank that left, or that asked for something
// else, is named in the first one: ranks that go on after it get into trouble with each other as well.
void ClusterUnderTest::check_names() {
  const bool some_give_up =
      std::ranges::any_of(scenario_.workers, [](const auto& each) { return each.gives_up; });
  if (some_give_up) return;
  const bool every = is_timed(scenario_.fault.kind) || scenario_.fault.kind == FaultKind::kNeverStarts ||
                     scenario_.fault.kind == FaultKind::kRaises;
  const Outcome* first = nullptr;
  size_t first_process = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (std::ranges::find(guilty_, processes_[i].get()) != guilty_.end()) continue;
    if (every) check_named(i, "the job", nodes_[i]->failure());
    if (i >= users_.size()) continue;
    for (const Outcome& outcome : users_[i]->outcomes()) {
      if (outcome.status.is_ok()) continue;
      if (every) check_named(i, outcome.what, outcome.status);
      const bool of_one_tensor = concerns_one_tensor(scenario_.fault.kind);
      if (of_one_tensor && (outcome.is_barrier || outcome.tensor != scenario_.fault.tensor)) continue;
      if (first == nullptr || outcome.done_us < first->done_us)
        std::tie(first, first_process) = std::pair(&outcome, i);
    }
  }
  if (!every && first != nullptr) check_named(first_process, first->what, first->status);
}

void ClusterUnderTest::check_named(size_t process, const std::string& what, const Status& status) {
  if (status.is_ok() || names_guilty(status.message())) return;
  // Who comes late to a job that failed before its start finds no scheduler to ask.
  if (!nodes_[process]->job_started() && scenario_.fault.kind != FaultKind::kNeverStarts) return;
  if (is_left_alone(process, status)) return;
  world_.report(*processes_[process], what + " does not name the guilty process: " + status.message());
}

// Who is through may leave, the scheduler's process as well, before it could notice a process that is silent. Then nobody
// is left to say who is guilty, but for those who have lost a connection to it themselves.
bool ClusterUnderTest::is_left_alone(size_t process, const Status& status) const {
  const bool by_scheduler = processes_[scenario_.scheduler_process()]->gone() &&
                            status.message().find("the scheduler at ") != std::string::npos &&
                            status.message().find(" has left the job") != std::string::npos;
  return by_scheduler && !names_guilty(nodes_[process]->suspects());
}

bool ClusterUnderTest::names_guilty(const std::string& text) const {
  for (const VirtualProcess* process : guilty_) {
    const auto found = std::ranges::find(processes_, process, &std::unique_ptr<VirtualProcess>::get);
    const auto index = static_cast<size_t>(found - processes_.begin());
    const std::string name = index < nodes_.size() ? nodes_[index]->known_name() : "scheduler";
    if (text.find(name) != std::string::npos) return true;  // also if nobody can know the name
  }
  return false;
}

RunResult ClusterUnderTest::take_result() {
  return {.findings = std::move(world_.findings),
          .fingerprint = world_.trace.fingerprint(),
          .trace = world_.trace.lines(),
          .event_count = event_count_,
          .succeeded_count = succeeded_count_,
          .failed_count = failed_count_};
}

}  // namespace byteps::sim
