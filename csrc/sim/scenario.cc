#include "sim/scenario.h"

#include <algorithm>
#include <set>
#include <sstream>

#include "protocol/message.h"
#include "sim/scenario_faults.h"

namespace byteps::sim {
namespace {

using Kind = Step::Kind;

constexpr uint64_t kPageElements = 1024;  // of int32

// Makes it a stored tensor.
void keep_at_services(Random& random, TensorPlan& tensor) {
  static const std::vector<uint8_t> kStalenesses = {0, 0, 1, 2, 3, protocol::kUnboundedStaleness};
  tensor.op = ReduceOp::kAccumulate;
  tensor.dtype = DType::kInt64;
  tensor.staleness = random.pick(kStalenesses);
}

std::vector<TensorPlan> make_tensors(Random& random, uint32_t num_workers, bool may_be_stored) {
  static const std::vector<ReduceOp> kOps = {ReduceOp::kSum,     ReduceOp::kSum,      ReduceOp::kSum,
                                             ReduceOp::kAverage, ReduceOp::kMin,      ReduceOp::kMax,
                                             ReduceOp::kProduct, ReduceOp::kBroadcast};
  static const std::vector<DType> kDTypes = {DType::kInt32, DType::kInt64, DType::kFloat32};
  std::vector<TensorPlan> tensors(1 + random.below(12));
  const bool some_are_stored = random.chance(0.4) && may_be_stored;
  for (size_t i = 0; i < tensors.size(); ++i) {
    TensorPlan& tensor = tensors[i];
    tensor.name = std::string("t").append(std::to_string(i));
    tensor.dtype = random.pick(kDTypes);
    // Many small ones, some of several partitions, a few empty ones.
    tensor.elements = random.chance(0.7) ? random.below(200) : random.below(6 * kPageElements);
    // Has several partitions under other plans, too.
    if (random.chance(0.02)) tensor.elements = random.below(50 * kPageElements);
    tensor.op = random.pick(kOps);
    tensor.root = static_cast<uint32_t>(random.below(num_workers));
    tensor.priority = random.chance(0.5) ? -static_cast<int32_t>(i) : static_cast<int32_t>(random.below(3));
    if (some_are_stored && random.chance(0.5)) keep_at_services(random, tensor);
    if (is_stored(tensor.op) || random.chance(0.6)) continue;
    tensor.other_every = static_cast<uint32_t>(random.between(1, 3));
    tensor.other_elements = random.chance(0.1) ? 0 : 1 + random.below(2 * tensor.elements + 2);
  }
  return tensors;
}

// Which tensors are used in which phase, and where all ranks meet; the same for all ranks.
struct Plan {
  std::vector<std::vector<size_t>> phases;
  std::vector<bool> barrier_after;
};

Plan make_plan(Random& random, size_t num_tensors) {
  Plan plan;
  plan.phases.resize(1 + random.below(4));
  for (auto& phase : plan.phases) {
    for (size_t tensor = 0; tensor < num_tensors; ++tensor) {
      if (random.chance(0.8)) phase.push_back(tensor);
    }
    plan.barrier_after.push_back(random.chance(0.2));
  }
  return plan;
}

// Every rank goes through the phases in the order of the plan, and through the tensors of a phase
// in its own order. It waits only for tensors of an earlier phase, or after it has begun the whole
// phase, so ranks cannot wait for each other in a circle.
std::vector<Step> make_program(Random& random, const Plan& plan, const std::vector<TensorPlan>& tensors) {
  const size_t num_tensors = tensors.size();
  std::vector<Step> program;
  const auto add = [&program](Kind kind, size_t tensor) { program.push_back({kind, tensor, 0}); };
  const auto maybe_pause = [&](double chance) {
    if (random.chance(chance)) program.push_back({Kind::kPause, 0, random.between(0, 5'000)});
  };
  if (random.chance(0.3)) {
    std::vector<size_t> all(num_tensors);
    for (size_t i = 0; i < num_tensors; ++i) all[i] = i;
    random.shuffle(all);
    for (const size_t tensor : all) {
      if (!is_stored(tensors[tensor].op)) add(Kind::kDeclare, tensor);
    }
  }
  const bool waits_early = random.chance(0.5);
  for (size_t i = 0; i < plan.phases.size(); ++i) {
    std::vector<size_t> phase = plan.phases[i];
    random.shuffle(phase);
    for (const size_t tensor : phase) {
      maybe_pause(0.1);
      add(Kind::kPushPull, tensor);
    }
    random.shuffle(phase);
    if (waits_early) {
      for (const size_t tensor : phase) add(Kind::kWait, tensor);
    }
    if (plan.barrier_after[i]) add(Kind::kBarrier, 0);
    maybe_pause(0.3);
  }
  for (size_t tensor = 0; tensor < num_tensors; ++tensor) add(Kind::kWait, tensor);
  maybe_pause(0.5);
  return program;
}

// All ranks read the stored tensors with all contributions, and no rank leaves before all have
// read.
void append_pulls(std::vector<Step>& program, const std::vector<TensorPlan>& tensors) {
  const auto add_for_stored = [&](Kind kind) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (is_stored(tensors[i].op)) program.push_back({kind, i, 0});
    }
  };
  program.push_back({Kind::kBarrier, 0, 0});
  add_for_stored(Kind::kPull);
  add_for_stored(Kind::kWait);
  program.push_back({Kind::kBarrier, 0, 0});
}

// All ranks on one machine, each on its own, an equal number on each, or a random number.
std::vector<uint32_t> make_machines(Random& random, uint32_t num_workers, uint32_t num_servers) {
  enum { kOne, kEachItsOwn, kEqual, kMixed };
  const uint64_t shape = random.below(4);
  const auto ranks_each = static_cast<uint32_t>(random.between(2, 4));
  std::vector<uint32_t> machines;
  for (uint32_t i = 0; i < num_workers; ++i) {
    const auto any = static_cast<uint32_t>(random.below(num_workers / 2 + 1));
    machines.push_back(shape == kOne ? 0 : shape == kEachItsOwn ? i : shape == kEqual ? i / ranks_each : any);
  }
  const bool servers_are_guests = random.chance(0.3);
  for (uint32_t i = 0; i < num_servers; ++i) {
    machines.push_back(servers_are_guests ? machines[random.below(num_workers)] : num_workers + i);
  }
  return machines;
}

std::vector<uint32_t> make_shards(Random& random, size_t num_nodes) {
  const auto usual = static_cast<uint32_t>(random.between(1, 3));
  const bool mixed = random.chance(0.2);
  std::vector<uint32_t> shards(num_nodes, usual);
  for (uint32_t& count : shards) count = mixed ? static_cast<uint32_t>(random.between(1, 3)) : usual;
  return shards;
}

void make_job(Random& random, Scenario& scenario) {
  scenario.num_workers = static_cast<uint32_t>(random.between(1, 8));
  scenario.num_servers = static_cast<uint32_t>(random.below(4));
  scenario.scheduler_in_rank_0 = random.chance(0.5);
  scenario.machines = make_machines(random, scenario.num_workers, scenario.num_servers);
  if (!scenario.scheduler_in_rank_0) scenario.machines.push_back(scenario.num_workers + scenario.num_servers);
  scenario.shards = make_shards(random, scenario.machines.size());
  scenario.shm = random.chance(0.7);
  scenario.arena_bytes = 1024 << random.below(7);
  scenario.ranks_are_given = scenario.scheduler_in_rank_0 || random.chance(0.7);
  scenario.sizes_are_given = random.chance(0.7);
  static const std::vector<std::string> kPlacements = {"auto", "allreduce", "ps"};
  scenario.placement = scenario.num_servers > 0 ? random.pick(kPlacements) : kPlacements[random.below(2)];
  scenario.partition_bytes = 4096 * (1 + random.below(3));
  scenario.credit_bytes = 1024 << random.below(6);
  if (random.chance(0.5)) scenario.plan_change_chance = random.chance(0.5) ? 0.1 : 0.5;
  scenario.autotune = random.chance(0.2);
  scenario.has_stranger = random.chance(0.1);
  scenario.has_leftover = random.chance(0.1);
  if (random.chance(0.3)) scenario.stall_warning_us = scenario.op_timeout_us / 3;
  scenario.network.min_delay_us = random.between(5, 100);
  scenario.network.max_delay_us = scenario.network.min_delay_us * random.between(1, 20);
  scenario.network.bytes_per_s = random.chance(0.5) ? 0 : 16'000'000 << random.below(5);
  if (random.chance(0.3)) scenario.network.slow_handshake_chance = 0.3;
  scenario.network.max_handshake_us = random.between(1, 100'000);
  scenario.network.window_bytes = 4096 << random.below(5);
  scenario.network.chunk_bytes = 512 << random.below(6);
  const TimeUs spread_us = random.chance(0.8) ? 3'000 : 300'000;
  for (size_t i = 0; i < scenario.num_processes(); ++i) {
    scenario.starts_us.push_back(random.between(0, spread_us));
  }
}

size_t num_machines(const Scenario& scenario) {
  const auto first = scenario.machines.begin();
  return std::set<uint32_t>(first, first + scenario.num_workers).size();
}

// One connection cannot use the network, because little can be under way.
void make_long_paths(Scenario& scenario) {
  scenario.network.min_delay_us = 300;
  scenario.network.max_delay_us = 600;
  scenario.network.window_bytes = 4'096;
  scenario.network.bytes_per_s = 16'000'000;
  scenario.long_path_us = scenario.network.min_delay_us;
  // A measurement may take half of the timeout.
  scenario.start_timeout_us *= 4;
  scenario.timeout_us *= 4;
  scenario.op_timeout_us *= 4;
  scenario.stall_warning_us *= 4;
}

// Cards become slower, and perhaps as fast as before.
void make_rate_changes(Random& random, Scenario& scenario) {
  scenario.placement = "auto";
  scenario.traffic_report_us = random.between(1'000, 3'000);
  NetworkOptions& network = scenario.network;
  network = {.min_delay_us = 5, .max_delay_us = random.between(10, 50), .bytes_per_s = 64'000'000};
  for (uint64_t i = random.between(1, 5); i > 0; --i) {
    const size_t process = random.below(scenario.num_nodes());
    const TimeUs slower_us = scenario.last_start_us() + random.between(1'000, 10'000);
    const TimeUs faster_us = slower_us + random.between(20'000, 80'000);
    scenario.rate_changes.push_back({process, slower_us, network.bytes_per_s / (3 + random.below(4))});
    if (random.chance(0.7)) scenario.rate_changes.push_back({process, faster_us, network.bytes_per_s});
  }
}

// Most come while the job runs: to machines of their own, or in place of servers.
void add_newcomers(Random random, Scenario& scenario) {
  if (!random.chance(scenario.grows_late ? 1 : scenario.loses_servers ? 0.6 : 0.1)) return;
  const TimeUs started_us = scenario.last_start_us() + 2'000;
  for (uint64_t i = random.between(1, 3); i > 0; --i) {
    const bool replaces = scenario.num_servers > 0 && random.chance(0.5);
    const auto largest = *std::ranges::max_element(scenario.machines);
    const size_t server = replaces ? scenario.num_workers + random.below(scenario.num_servers) : 0;
    scenario.machines.push_back(replaces ? scenario.machines[server] : largest + 1);
    scenario.shards.push_back(static_cast<uint32_t>(random.between(1, 3)));
    const bool at_once = scenario.grows_late || (scenario.loses_servers && replaces && random.chance(0.6));
    scenario.starts_us.push_back(
        at_once ? kNever : started_us + random.between(0, 200 * scenario.network.max_delay_us));
    ++scenario.num_newcomers;
  }
  scenario.replacement_us = random.between(0, 4 * scenario.network.max_delay_us);
}

void repeat(Plan& plan, size_t phases) {
  const std::vector<std::vector<size_t>> once = plan.phases;
  while (plan.phases.size() < phases) {
    plan.phases.insert(plan.phases.end(), once.begin(), once.end());
    plan.barrier_after.resize(plan.phases.size());
  }
}

// Enough traffic for speeds to be learned from.
void make_traffic(Random& random, std::vector<TensorPlan>& tensors, Plan& plan) {
  for (TensorPlan& tensor : tensors) tensor.elements += random.between(kPageElements, 5 * kPageElements);
  repeat(plan, 40);
}

void make_programs(Random& random, Scenario& scenario) {
  const bool may_store = !scenario.loses_servers || Random(mix(scenario.seed ^ 0x57012E)).chance(0.4);
  scenario.tensors = make_tensors(random, scenario.num_workers, may_store);
  Plan plan = make_plan(random, scenario.tensors.size());
  if (!scenario.rate_changes.empty()) make_traffic(random, scenario.tensors, plan);
  if (scenario.loses_servers || scenario.grows_late) repeat(plan, 12);
  const bool some_are_stored =
      std::ranges::any_of(scenario.tensors, [](const TensorPlan& tensor) { return is_stored(tensor.op); });
  scenario.rounds = plan.phases.size() + (some_are_stored ? 1 : 0);
  const bool some_give_up = random.chance(0.3);
  for (uint32_t i = 0; i < scenario.num_workers; ++i) {
    scenario.workers.push_back({.tensors = scenario.tensors,
                                .program = make_program(random, plan, scenario.tensors),
                                .gives_up = some_give_up && random.chance(0.5)});
    if (some_are_stored) append_pulls(scenario.workers.back().program, scenario.tensors);
  }
}

// Ranks forget names, most of them at other times than the others, and tensors get new names.
void make_names(Random random, Scenario& scenario) {
  scenario.names.resize(scenario.num_processes());
  // A refused call is also tried with a name that all ranks have forgotten since its last round.
  const Fault* const own = scenario.program_fault();
  const bool is_refused = own != nullptr && own->kind == FaultKind::kRefusedOnce;
  if (!scenario.grows_late && random.chance(is_refused ? 0.3 : 0.6)) return;
  const bool forgets_all = is_refused && random.chance(0.5);
  static const std::vector<uint64_t> kLimits = {1, 10, 20, 20, 40, 80, 1 << 17};
  const bool all_alike = random.chance(0.4) || forgets_all;
  const uint64_t usual = forgets_all ? 1 : random.pick(kLimits);
  for (protocol::NameLimits& limits : scenario.names) {
    limits.least = all_alike ? usual : random.pick(kLimits);
    limits.most = random.chance(0.5) ? limits.least : 2 * limits.least;
  }
  for (size_t i = 0; i < scenario.tensors.size(); ++i) {
    if (is_stored(scenario.tensors[i].op) || random.chance(0.5)) continue;
    if (forgets_all && i == own->tensor) continue;
    const auto rounds = static_cast<uint32_t>(random.between(1, 2));
    scenario.tensors[i].renamed_every = rounds;
    for (WorkerPlan& worker : scenario.workers) worker.tensors[i].renamed_every = rounds;
  }
}

// Their results have no payload, and are held all the same.
void make_empty_tensors(Random random, std::vector<TensorPlan>& tensors) {
  for (TensorPlan& tensor : tensors) {
    if (random.chance(0.1)) tensor.elements = 0;
  }
}

}  // namespace

bool Scenario::may_lose(size_t process) const { return failover && is_server(process); }

// A cut between machines costs the job the servers at one of its ends.
bool Scenario::survives(const Fault& fault) const {
  if (fault.kind == FaultKind::kKilled || fault.kind == FaultKind::kStopped)
    return may_lose(fault.process) || (has_standby() && fault.process == scheduler_process());
  if (!is_cut(fault.kind)) return false;
  const auto has_servers_only = [this](uint32_t machine) {
    for (size_t process = 0; process < num_processes(); ++process) {
      if (machines[process] == machine && !may_lose(process)) return false;
    }
    return true;
  };
  return has_servers_only(machines[fault.process]) || has_servers_only(machines[fault.other]);
}

TimeUs Scenario::last_start_us() const {
  TimeUs last_us = 0;
  for (size_t process = 0; process < num_at_start(); ++process)
    last_us = starts_us[process] == kNever ? last_us : std::max(last_us, starts_us[process]);
  return last_us;
}

Scenario make_scenario(uint64_t seed) {
  Random random(seed);
  Scenario scenario;
  scenario.seed = seed;
  make_job(random, scenario);
  Random links(mix(seed ^ 0x11CC5));
  if (links.chance(0.1) && num_machines(scenario) > 2) make_rate_changes(links, scenario);
  if (links.chance(0.01) && scenario.rate_changes.empty()) make_long_paths(scenario);
  Random losses(mix(seed ^ 0xFA11));
  scenario.failover = losses.chance(0.6);
  scenario.loses_servers = scenario.failover && scenario.num_servers > 0 && scenario.rate_changes.empty() &&
                           scenario.long_path_us == kNever && losses.chance(0.4);
  if (scenario.loses_servers) scenario.placement = losses.chance(0.5) ? "ps" : "auto";
  scenario.grows_late = !scenario.loses_servers && scenario.num_workers > 1 && losses.chance(0.02);
  if (scenario.grows_late) scenario.placement = "ps";
  add_newcomers(Random(mix(seed ^ 0xC03E)), scenario);
  if (scenario.loses_servers) make_empty_tensors(Random(mix(seed ^ 0xE397)), scenario.tensors);
  make_programs(random, scenario);
  scenario.counts_steps = random.chance(0.5);
  make_faults(random, scenario);
  if (scenario.loses_servers) aim_at_answers(Random(mix(seed ^ 0xA5E4D)), scenario);
  add_loss_of_scheduler(Random(mix(seed ^ 0x5C4ED)), scenario);
  make_names(Random(mix(seed)), scenario);
  // A measurement sends as much as the network carries, so it takes long to simulate.
  scenario.probes_nics =
      scenario.network.bytes_per_s > 0 && random.chance(0.1) && scenario.rate_changes.empty();
  if (scenario.long_path_us != kNever) scenario.probes_nics = true;
  // Where so much is lost, the workers of two machines take turns.
  if (num_machines(scenario) == 2 && scenario.num_servers == 0 && scenario.rate_changes.empty() &&
      Random(mix(seed ^ 0x7012)).chance(0.5)) {
    scenario.probes_nics = true;
    scenario.network.bytes_of_loss = 200;
  }
  if (scenario.probes_nics) scenario.network.bytes_per_s = 16'000'000;
  Random threads(mix(seed ^ 0x7EAD));
  const bool is_reset = std::ranges::any_of(
      scenario.faults, [](const Fault& fault) { return fault.kind == FaultKind::kReset; });
  // Measurements, and the time in which a connection is made anew, leave no room for it.
  if (!scenario.probes_nics && scenario.rate_changes.empty() && !is_reset && threads.chance(0.4))
    scenario.preemption_us = threads.between(100, 3'000);
  scenario.has_second_job = !scenario.has_timed_faults() && random.chance(0.1);
  // A server that comes when the job is over waits for the next one, which may have other sizes.
  scenario.resumes = scenario.faults.empty() && !scenario.has_second_job && scenario.num_newcomers == 0 &&
                     random.chance(0.3);
  return scenario;
}

Scenario make_other_scenario(uint64_t seed) {
  Scenario scenario = make_scenario(seed);
  std::erase_if(scenario.faults, [](const Fault& fault) { return is_timed(fault.kind); });
  std::ranges::fill(scenario.starts_us, kNever);
  scenario.rate_changes.clear();
  scenario.probes_nics = scenario.has_stranger = scenario.has_leftover = false;
  scenario.has_second_job = scenario.resumes = false;
  return scenario;
}

std::string describe(const Scenario& scenario) {
  std::ostringstream text;
  text << "seed " << scenario.seed << ": " << scenario.num_workers << " workers on " << num_machines(scenario)
       << " machines, " << scenario.num_servers << " servers, " << scenario.num_newcomers << " more later, "
       << scenario.tensors.size() << " tensors, " << scenario.rounds << " phases, scheduler "
       << (scenario.scheduler_in_rank_0 ? "in rank 0" : "separate") << (scenario.failover ? "; failover" : "")
       << (scenario.faults.empty() ? "; no fault" : "") << (scenario.has_second_job ? "; a second job" : "")
       << (scenario.resumes ? "; resumes" : "") << (scenario.preemption_us > 0 ? "; busy cores" : "")
       << (scenario.rate_changes.empty() ? "" : "; links change");
  for (const Fault& fault : scenario.faults) {
    text << "; " << text_of(fault.kind);
    if (fault.kind != FaultKind::kReset) text << ": process " << fault.process;
    if (is_cut(fault.kind)) text << " and " << fault.other;
    if (concerns_one_tensor(fault.kind)) text << ", " << scenario.tensors[fault.tensor].name;
    if (has_a_round(fault.kind)) text << " round " << fault.round;
    if (is_timed(fault.kind))
      text << " at " << fault.at_us / 1000 << " ms" << (fault.at_end ? " after the first rank's end" : "");
    if (fault.kind != FaultKind::kStopped && !is_cut(fault.kind)) continue;
    fault.duration_us == kNever ? text << " for ever" : text << " for " << fault.duration_us / 1000 << " ms";
  }
  return text.str();
}

}  // namespace byteps::sim
