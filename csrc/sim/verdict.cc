// The verdict on a cluster at the end of a run.
#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "sim/cluster_under_test.h"

namespace byteps::sim {
namespace {

// A job of these sizes without a fault takes less, but for the time in which bytes travel.
constexpr TimeUs kNaturalUs = 2'000'000;
// Roots are not always where they are best while links change.
constexpr TimeUs kTransfers = 2;
constexpr TimeUs kSlackUs = 1'500'000;
// The steps of leaving have deadlines of 5 s each.
constexpr TimeUs kLeaveUs = 30'000'000;

// Time in which everything travels to the slowest card and back.
TimeUs transfer_us(const Scenario& scenario) {
  uint64_t bytes_per_s = scenario.network.bytes_per_s;
  if (bytes_per_s == 0) return 0;
  for (const RateChange& change : scenario.rate_changes)
    bytes_per_s = std::min(bytes_per_s, change.bytes_per_s);
  uint64_t bytes = 0;
  for (const TensorPlan& tensor : scenario.tensors)
    bytes += std::max(tensor.elements, tensor.other_elements) * size_of(tensor.dtype);
  return static_cast<TimeUs>(2 * scenario.num_workers * scenario.rounds * bytes * 1'000'000 / bytes_per_s);
}

TimeUs natural_us(const Scenario& scenario) {
  const TimeUs natural_us = kNaturalUs + kTransfers * transfer_us(scenario);
  // Measurements over long paths take seconds; they end by the deadline of the start.
  return scenario.long_path_us == kNever ? natural_us : natural_us + scenario.start_timeout_us;
}

}  // namespace

TimeUs ClusterUnderTest::answer_limit_us() const {
  TimeUs limit_us = scenario_.last_start_us() + natural_us(scenario_);
  const TimeUs detected_us = 3 * scenario_.timeout_us + kSlackUs;
  const Fault* const own = scenario_.program_fault();
  // Ranks may wait for one that gives up while it leaves, which a stopped server delays.
  const bool delays_others = std::ranges::any_of(scenario_.workers, &WorkerPlan::gives_up);
  if (scenario_.never_starts()) {
    limit_us = scenario_.last_start_us() + scenario_.start_timeout_us + detected_us;
  } else if (own != nullptr && (delays_others || !concerns_one_round(own->kind))) {
    limit_us += static_cast<TimeUs>(scenario_.rounds + 1) * scenario_.op_timeout_us + detected_us;
    if (own->kind == FaultKind::kHangs) limit_us += scenario_.hang_us();
  }
  if (!all_had_started_)
    limit_us = std::max(limit_us, scenario_.last_start_us() + scenario_.start_timeout_us);
  for (const Fault& fault : scenario_.faults) {
    if (!is_timed(fault.kind)) continue;
    const TimeUs lasts_us = fault.duration_us == kNever || !a_fault_matters_ ? 0 : fault.duration_us;
    limit_us = std::max(limit_us, fault.at_us) + lasts_us + detected_us;
  }
  return limit_us;
}

// Time that one operation takes at most, whatever programs do; a root is a quarter more patient
// than its children.
TimeUs ClusterUnderTest::operation_limit_us() const {
  return scenario_.has_timed_faults() ? kNever : scenario_.op_timeout_us * 5 / 4 + natural_us(scenario_);
}

TimeUs ClusterUnderTest::end_limit_us() const {
  TimeUs last_us = scenario_.last_start_us();
  for (size_t i = scenario_.num_at_start(); i < processes_.size(); ++i) {
    if (scenario_.starts_us[i] != kNever) last_us = std::max(last_us, scenario_.starts_us[i]);
  }
  return std::max(answer_limit_us(), last_us + scenario_.start_timeout_us) + kLeaveUs;
}

uint64_t ClusterUnderTest::num_moves() const {
  uint64_t moves = 0;
  for (const auto& program : programs_) moves = std::max(moves, program->num_moves());
  return moves;
}

uint64_t ClusterUnderTest::num_servers_lost() const {
  uint64_t lost = 0;
  for (const auto& program : programs_) lost = std::max(lost, program->num_servers_lost());
  return lost;
}

uint64_t ClusterUnderTest::num_schedulers_lost() const {
  const auto is_lost = [](const auto& program) { return program->num_schedulers_lost() > 0; };
  return std::ranges::any_of(programs_, is_lost) ? 1 : 0;
}

uint64_t ClusterUnderTest::num_newcomers_used() const {
  uint64_t used = 0;
  for (size_t i = scenario_.num_at_start(); i < processes_.size(); ++i) {
    if (!processes_[i]->summed_tensors().empty()) ++used;
  }
  return used;
}

uint64_t ClusterUnderTest::num_held_sent() const {
  uint64_t sent = 0;
  for (const auto& program : programs_) sent += program->num_held_sent();
  return sent;
}

void ClusterUnderTest::judge() {
  check_ended();
  for (uint32_t i = 0; i < scenario_.num_workers; ++i) {
    if (can_end(i) && !processes_[i]->was_killed()) check_outcomes(i);
  }
  if (const Fault* own = scenario_.program_fault(); own != nullptr && has_a_round(own->kind))
    check_one_round();
  if (a_fault_matters_) return check_names();
  check_forgotten();
  check_servers();
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
  // Everybody is told when a rank leaves.
  const Fault* const own = scenario_.program_fault();
  const bool nobody_waits_long = own != nullptr && !scenario_.has_timed_faults() &&
                                 (own->kind == FaultKind::kLeavesEarly || own->kind == FaultKind::kRaises);
  program.check_buffers();
  if (!a_fault_matters_ && !(program.at_end() && program.start_failure().is_ok())) {
    world_.report(name, "did not come to its end: " + program.start_failure().to_string());
  }
  for (const Outcome& outcome : program.outcomes()) {
    ++(outcome.status.is_ok() ? num_succeeded_ : num_failed_);
    if (outcome.times_done != 1) {
      world_.report(name, outcome.what + ": answered " + std::to_string(outcome.times_done) + " times");
    } else if (!a_fault_matters_ && !outcome.status.is_ok()) {
      world_.report(name, outcome.what + ": " + outcome.status.to_string());
    } else if (nobody_waits_long && outcome.status.code() == StatusCode::kDeadlineExceeded) {
      world_.report(name, outcome.what + ": waited for a rank that has left: " + outcome.status.message());
    } else if (outcome.done_us - outcome.begun_us > operation_limit_us()) {
      world_.report(name, outcome.what + ": took " +
                              std::to_string((outcome.done_us - outcome.begun_us) / 1000) + " ms");
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

// Of the servers, because a worker that leaves does not listen to the scheduler any more.
void ClusterUnderTest::check_forgotten() {
  size_t scheduler = scenario_.scheduler_process();
  for (size_t i = 0; num_schedulers_lost() > 0 && i < scenario_.num_workers; ++i) {
    if (processes_[i]->rank() == 0) scheduler = i;
  }
  if (guilty_[scheduler]) return;
  const std::set<uint64_t>& known = processes_[scheduler]->known_tensors();
  for (size_t i = scenario_.num_workers; i < processes_.size(); ++i) {
    if (!scenario_.is_server(i)) continue;
    if (guilty_[i]) continue;  // the scheduler tells a lost server nothing
    for (const uint64_t number : processes_[i]->summed_tensors()) {
      if (!known.contains(number))
        world_.report(processes_[i]->name(),
                      "keeps tensor " + std::to_string(number) + ", which is forgotten");
    }
  }
}

// Servers that are not lost end with the job, unless the scheduler is lost after rank 0 has left.
void ClusterUnderTest::check_servers() {
  if (guilty_[scenario_.scheduler_process()] && num_schedulers_lost() == 0) return;
  for (size_t i = scenario_.num_workers; i < processes_.size(); ++i) {
    const SimProcess& server = *processes_[i];
    if (!scenario_.is_server(i) || guilty_[i] || !server.job_started() || server.was_killed()) continue;
    if (!server.failure().is_ok()) world_.report(server.name(), "ended by " + server.failure().to_string());
  }
}

// Whoever runs the scheduler ends last.
void ClusterUnderTest::check_ended_last(size_t process) {
  const bool runs_scheduler =
      processes_[process]->rank() == 0 && programs_[process]->num_schedulers_lost() > 0;
  if (!runs_scheduler || a_fault_matters_) return;
  for (size_t i = 0; i < programs_.size(); ++i) {
    if (!programs_[i]->at_end())
      world_.report(processes_[process]->name(),
                    "runs the scheduler, and ended before " + processes_[i]->name());
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
  bool is_named = false;
  for (size_t i = 0; i < scenario_.num_nodes(); ++i) {
    if (guilty_[i]) continue;
    if (in_every) check_named(i, "the job", processes_[i]->failure());
    if (i >= programs_.size()) continue;
    for (const Outcome& outcome : programs_[i]->outcomes()) {
      if (outcome.status.is_ok()) continue;
      if (in_every) check_named(i, outcome.what, outcome.status);
      is_named = is_named || names_guilty(outcome.status.message());
      const bool of_one_tensor = own != nullptr && concerns_one_tensor(own->kind);
      if (of_one_tensor && (outcome.is_barrier || outcome.tensor != own->tensor)) continue;
      if (first == nullptr || outcome.done_us < first->done_us)
        std::tie(first, first_process) = std::pair(&outcome, i);
    }
  }
  if (in_every || first == nullptr) return;
  // Ranks that wait for one that hangs are waited for as well, perhaps longer.
  if (own->kind == FaultKind::kHangs && is_named) return;
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
  // A process that comes late to a job that failed before its start finds no scheduler to ask.
  if (!processes_[process]->job_started() && (!scenario_.never_starts() || scenario_.has_timed_faults()))
    return;
  // The scheduler's process may leave when its program is through, before it could notice a process
  // that is silent. Then nobody can say who is guilty.
  const bool scheduler_left = processes_[scenario_.scheduler_process()]->is_gone() &&
                              status.message().find(" has left the job") != std::string::npos;
  if (scheduler_left) return;
  world_.report(processes_[process]->name(), what + " does not name the guilty process: " + status.message());
}

bool ClusterUnderTest::names_guilty(const std::string& text) const {
  for (size_t i = 0; i < processes_.size(); ++i) {
    if (guilty_[i] && text.find(known_name(i)) != std::string::npos) return true;
  }
  return false;
}

// Name of a process in messages; "" if the others cannot know a name.
std::string ClusterUnderTest::known_name(size_t process) const {
  if (process >= scenario_.num_workers && !scenario_.is_server(process)) return "scheduler";
  if (processes_[process]->job_started())
    return "pid " + std::to_string(processes_[process]->facts().process_id) + ")";
  // The scheduler knows which ranks are missing only if the workers come with their ranks.
  const bool is_numbered =
      process < scenario_.num_workers && scenario_.ranks_are_given && scenario_.num_workers > 1;
  return is_numbered ? "rank " + std::to_string(process) : "";
}

}  // namespace byteps::sim
