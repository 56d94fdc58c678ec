#include "sim/elastic_scenario.h"

#include <algorithm>

#include "sim/random.h"

namespace byteps::sim {
namespace {

using Kind = ElasticFault::Kind;

constexpr uint32_t kMostMachines = 3;

ElasticFault make_fault(Random& random, const ElasticScenario& scenario, TimeUs until_us) {
  static const std::vector<Kind> kKinds = {Kind::kKill,  Kind::kKill, Kind::kKill, Kind::kPause,
                                           Kind::kPause, Kind::kCut,  Kind::kReset};
  ElasticFault fault;
  fault.kind = random.pick(kKinds);
  if (random.chance(0.03)) fault.kind = Kind::kKillCoordinator;
  fault.at_us = random.between(0, until_us);
  fault.member = random.below(scenario.members.size());
  fault.other_machine = random.chance(0.3) ? scenario.coordinator_machine()
                                           : static_cast<uint32_t>(random.below(kMostMachines));
  const bool is_long = random.chance(0.5);
  fault.lasts_us = is_long ? random.between(scenario.timeout_us, 4 * scenario.timeout_us)
                           : random.between(1000, scenario.timeout_us / 2);
  return fault;
}

}  // namespace

bool ElasticScenario::has(ElasticFault::Kind kind) const {
  return std::ranges::any_of(faults, [kind](const ElasticFault& fault) { return fault.kind == kind; });
}

TimeUs ElasticScenario::limit_us() const {
  TimeUs last_us = 0;
  for (const Member& member : members) last_us = std::max(last_us, member.starts_us);
  for (const ElasticFault& fault : faults) last_us = std::max(last_us, fault.at_us + fault.lasts_us);
  // Each fault may cost some timeouts, one after the other.
  return last_us + static_cast<TimeUs>(faults.size() + 4) * 6 * timeout_us + 60'000'000;
}

ElasticScenario make_elastic_scenario(uint64_t seed) {
  Random random(seed);
  ElasticScenario scenario;
  scenario.seed = seed;
  scenario.network.max_delay_us = random.chance(0.3) ? 5000 : 200;
  scenario.timeout_us = random.between(500'000, 2'000'000);
  scenario.gather_us = random.chance(0.5) ? 0 : random.between(0, 100'000);
  scenario.initial = static_cast<uint32_t>(random.between(1, 4));
  scenario.least = random.chance(0.3) ? static_cast<uint32_t>(random.between(1, scenario.initial)) : 1;
  if (random.chance(0.2)) scenario.most = static_cast<uint32_t>(random.between(scenario.initial, 5));
  scenario.steps = random.between(3, 15);
  const auto machines = static_cast<uint64_t>(random.between(1, kMostMachines));
  const TimeUs think_us = random.chance(0.5) ? random.between(0, 20'000) : 0;
  const TimeUs span_us = scenario.steps * (think_us + 5 * scenario.network.max_delay_us + 2000);
  const auto add_member = [&](TimeUs starts_us) {
    scenario.members.push_back(
        {.machine = static_cast<uint32_t>(random.below(machines)),
         .starts_us = starts_us,
         .leaves_after = random.chance(0.1) ? random.between(1, scenario.steps) : INT64_MAX,
         .think_us = think_us,
         .preemption_us = random.chance(0.2) ? random.between(100, 3000) : 0});
  };
  for (uint32_t i = 0; i < scenario.initial; ++i) add_member(random.between(0, 3000));
  for (int64_t i = random.between(0, 3); i > 0; --i) add_member(random.between(0, 2 * span_us));
  for (int64_t i = random.between(1, 4); i > 0; --i)
    scenario.elements.push_back(
        static_cast<size_t>(random.chance(0.5) ? random.between(1, 20) : random.between(100, 20'000)));
  if (random.chance(0.3)) scenario.refusals = 0.05;
  scenario.partition_bytes = random.chance(0.5) ? 0 : 4096;
  scenario.shm = random.chance(0.5);
  scenario.arena_bytes = 64 << 10;
  for (int64_t i = random.between(0, 4); i > 0; --i)
    scenario.faults.push_back(make_fault(random, scenario, 2 * span_us));
  return scenario;
}

std::string describe(const ElasticScenario& scenario) {
  const auto ms = [](TimeUs us) {
    return std::to_string(us / 1000) + "." + std::to_string(us % 1000 / 100) + " ms";
  };
  std::string text = "elastic seed " + std::to_string(scenario.seed) + ": " +
                     std::to_string(scenario.initial) + " of " + std::to_string(scenario.members.size()) +
                     " members at the start, at least " + std::to_string(scenario.least) + ", at most " +
                     std::to_string(scenario.most) + "; " + std::to_string(scenario.steps) + " steps of " +
                     std::to_string(scenario.elements.size()) + " tensors; timeout " +
                     ms(scenario.timeout_us) + (scenario.shm ? "; shared memory" : "");
  for (size_t i = 0; i < scenario.members.size(); ++i) {
    const auto& member = scenario.members[i];
    text += "\n  member " + std::to_string(i) + " on machine " + std::to_string(member.machine) +
            " starts at " + ms(member.starts_us);
    if (member.leaves_after != INT64_MAX)
      text += ", leaves after step " + std::to_string(member.leaves_after);
  }
  constexpr const char* kNames[] = {"kill", "pause", "cut", "reset", "kill the coordinator"};
  for (const ElasticFault& fault : scenario.faults) {
    text += "\n  fault at " + ms(fault.at_us) + ": " + kNames[static_cast<size_t>(fault.kind)] +
            " of member " + std::to_string(fault.member) + " for " + ms(fault.lasts_us) + ", machine " +
            std::to_string(fault.other_machine);
  }
  return text;
}

}  // namespace byteps::sim
