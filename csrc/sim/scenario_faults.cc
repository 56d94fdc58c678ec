#include "sim/scenario_faults.h"

#include <algorithm>
#include <vector>

namespace byteps::sim {
namespace {

using Kind = Step::Kind;

FaultKind pick_program_fault(Random& random) {
  static const std::vector<FaultKind> kKinds = {
      FaultKind::kNeverStarts, FaultKind::kLeavesEarly,   FaultKind::kRaises,      FaultKind::kSkips,
      FaultKind::kOtherDType,  FaultKind::kOtherSize,     FaultKind::kOtherOp,     FaultKind::kOtherSizeOnce,
      FaultKind::kLeavesOut,   FaultKind::kOtherSizeOnce, FaultKind::kRefusedOnce, FaultKind::kRefusedOnce,
      FaultKind::kLeavesOut,   FaultKind::kHangs,         FaultKind::kHangs,       FaultKind::kHangs};
  return random.pick(kKinds);
}

FaultKind pick_timed_fault(Random& random) {
  static const std::vector<FaultKind> kKinds = {
      FaultKind::kKilled, FaultKind::kKilled, FaultKind::kKilled,    FaultKind::kStopped, FaultKind::kStopped,
      FaultKind::kCut,    FaultKind::kCut,    FaultKind::kCutOneWay, FaultKind::kReset,   FaultKind::kReset};
  return random.pick(kKinds);
}

// During the start of the job, or after it; jobs of these sizes take about that long.
TimeUs pick_fault_time(Random& random, const Scenario& scenario) {
  const TimeUs started_us = scenario.last_start_us() + 2'000;
  if (!scenario.loses_servers && random.chance(0.15)) return random.between(0, started_us);
  const auto phases = static_cast<TimeUs>(scenario.rounds);
  return started_us + random.between(0, scenario.network.max_delay_us * (10 + 20 * phases));
}

void erase_one_push_pull(Random& random, std::vector<Step>& program, size_t tensor) {
  std::vector<size_t> places;
  for (size_t i = 0; i < program.size(); ++i) {
    if (program[i].kind == Kind::kPushPull && program[i].tensor == tensor) places.push_back(i);
  }
  if (!places.empty()) program.erase(program.begin() + static_cast<std::ptrdiff_t>(random.pick(places)));
}

void change_belief(FaultKind kind, TensorPlan& tensor) {
  if (kind == FaultKind::kOtherDType)
    tensor.dtype = tensor.dtype == DType::kInt32 ? DType::kInt64 : DType::kInt32;
  if (kind == FaultKind::kOtherSize) tensor.elements += 1;
  if (kind != FaultKind::kOtherOp) return;
  if (is_stored(tensor.op) && tensor.elements % 2 == 0) {
    tensor.staleness ^= 1;
  } else {
    tensor.op = tensor.op == ReduceOp::kSum ? ReduceOp::kMax : ReduceOp::kSum;
  }
}

// False: the tensor has no rounds that all ranks have in common.
bool make_odd(Random& random, Scenario& scenario, WorkerPlan& worker, Fault& fault) {
  TensorPlan& tensor = worker.tensors[fault.tensor];
  const auto rounds = std::ranges::count_if(worker.program, [&](const Step& step) {
    return step.kind == Kind::kPushPull && step.tensor == fault.tensor;
  });
  if (rounds == 0 || is_stored(tensor.op)) return false;
  fault.round = tensor.odd_round = static_cast<uint32_t>(random.between(1, rounds));
  using Odd = TensorPlan::Odd;
  tensor.odd = fault.kind == FaultKind::kRefusedOnce ? Odd::kRefused
               : fault.kind == FaultKind::kLeavesOut ? Odd::kLeftOut
                                                     : Odd::kOtherSize;
  if (fault.kind == FaultKind::kLeavesOut) scenario.counts_steps = true;
  return true;
}

// False: the scenario has no place for it.
bool plant(Random& random, Scenario& scenario, Fault& fault) {
  if (fault.kind == FaultKind::kNeverStarts) {
    fault.process = random.below(scenario.num_at_start());
    scenario.starts_us[fault.process] = kNever;
    return true;
  }
  if (scenario.num_workers == 1) return false;  // there is no other rank
  fault.process = random.below(scenario.num_workers);
  WorkerPlan& worker = scenario.workers[fault.process];
  if (has_a_round(fault.kind)) return make_odd(random, scenario, worker, fault);
  if (fault.kind == FaultKind::kLeavesEarly || fault.kind == FaultKind::kRaises) {
    worker.program.resize(random.below(worker.program.size()));
    worker.raises = fault.kind == FaultKind::kRaises;
  } else if (fault.kind == FaultKind::kHangs) {
    const auto place = static_cast<std::ptrdiff_t>(random.below(worker.program.size()));
    worker.program.insert(worker.program.begin() + place, {Kind::kPause, 0, scenario.hang_us()});
  } else if (fault.kind == FaultKind::kSkips) {
    erase_one_push_pull(random, worker.program, fault.tensor);
  } else {
    change_belief(fault.kind, worker.tensors[fault.tensor]);
  }
  return true;
}

// Mostly. A rank that is stopped for a moment hears of the loss of a server later than the others
// do.
void aim_at_servers(Random& random, const Scenario& scenario, Fault& fault) {
  if (random.chance(0.15)) {
    fault.kind = FaultKind::kStopped;
    fault.process = random.below(scenario.num_workers);
  } else {
    const size_t server = random.below(scenario.num_servers + scenario.num_newcomers);
    const bool is_newcomer = server >= scenario.num_servers;
    fault.process =
        is_newcomer ? scenario.num_at_start() + server - scenario.num_servers : scenario.num_workers + server;
  }
  // What the first rank that ends holds may be needed by the others.
  fault.at_end = random.chance(0.15);
  if (fault.at_end) fault.at_us = random.between(0, 4 * scenario.network.max_delay_us);
}

Fault make_timed_fault(Random& random, const Scenario& scenario) {
  Fault fault{.kind = pick_timed_fault(random),
              .process = random.below(scenario.num_processes()),
              .other = random.below(scenario.num_processes()),
              .at_us = pick_fault_time(random, scenario)};
  if (scenario.loses_servers) aim_at_servers(random, scenario, fault);
  if (is_cut(fault.kind) && scenario.machines[fault.process] == scenario.machines[fault.other])
    fault.kind = FaultKind::kStopped;
  const std::vector<TimeUs> durations = {scenario.timeout_us / 6, 3 * scenario.timeout_us, kNever};
  fault.duration_us = random.pick(durations);
  if (scenario.loses_servers && fault.process < scenario.num_workers) fault.duration_us = durations.front();
  return fault;
}

// A moment after the fault before: some ranks hear of the one first, and some of the other.
void strike_together(Random& random, const Scenario& scenario, Fault& fault) {
  const Fault& before = scenario.faults.back();
  if (!is_timed(before.kind)) return;
  fault.at_end = before.at_end;
  fault.at_us = before.at_us + random.between(0, 2 * scenario.network.max_delay_us);
}

}  // namespace

void make_faults(Random& random, Scenario& scenario) {
  if (scenario.grows_late || random.chance(scenario.loses_servers ? 0.1 : 0.35)) {
    Fault fault{.kind = pick_program_fault(random), .tensor = random.below(scenario.tensors.size())};
    if (scenario.grows_late) fault.kind = FaultKind::kLeavesEarly;
    if (plant(random, scenario, fault)) scenario.faults.push_back(fault);
  }
  if (scenario.grows_late) return;
  // A rank that leaves, or a server that is lost: both together say little about each.
  const double calm = !scenario.loses_servers ? 0.5 : scenario.faults.empty() ? 0.1 : 0.6;
  if (random.chance(calm)) return;
  const uint64_t count = random.chance(scenario.loses_servers ? 0.4 : 0.6) ? 1 : random.between(2, 4);
  for (uint64_t i = 0; i < count; ++i) {
    Fault fault = make_timed_fault(random, scenario);
    if (scenario.loses_servers && i > 0 && random.chance(0.5)) strike_together(random, scenario, fault);
    scenario.faults.push_back(fault);
  }
}

void aim_at_answers(Random random, Scenario& scenario) {
  for (Fault& fault : scenario.faults) {
    const bool is_loss = fault.kind == FaultKind::kKilled || fault.kind == FaultKind::kStopped;
    if (is_loss && scenario.is_server(fault.process) && random.chance(0.7))
      fault.after_send_us = random.between(0, scenario.network.max_delay_us);
  }
}

void add_loss_of_scheduler(Random random, Scenario& scenario) {
  if (!scenario.has_standby() || !random.chance(0.3)) return;
  Fault fault{.kind = random.chance(0.7) ? FaultKind::kKilled : FaultKind::kStopped,
              .process = scenario.scheduler_process(),
              .at_us = pick_fault_time(random, scenario),
              .duration_us = random.chance(0.5) ? 3 * scenario.timeout_us : kNever};
  if (!scenario.faults.empty() && random.chance(0.5)) strike_together(random, scenario, fault);
  scenario.faults.push_back(fault);
}

const char* text_of(FaultKind kind) {
  switch (kind) {
    case FaultKind::kKilled: return "killed";
    case FaultKind::kStopped: return "stopped";
    case FaultKind::kCut: return "network cut";
    case FaultKind::kCutOneWay: return "network cut one way";
    case FaultKind::kReset: return "a connection reset";
    case FaultKind::kNeverStarts: return "never starts";
    case FaultKind::kLeavesEarly: return "leaves early";
    case FaultKind::kRaises: return "ends by an exception";
    case FaultKind::kHangs: return "its program hangs";
    case FaultKind::kSkips: return "skips a push_pull";
    case FaultKind::kOtherDType: return "another dtype";
    case FaultKind::kOtherSize: return "another size";
    case FaultKind::kOtherOp: return "another reduction";
    case FaultKind::kOtherSizeOnce: return "another size in one round";
    case FaultKind::kRefusedOnce: return "a refused push_pull";
    case FaultKind::kLeavesOut: return "leaves a push_pull out of a step";
  }
  return "?";
}

}  // namespace byteps::sim
