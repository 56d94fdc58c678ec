// What everything in one run shares, and the bugs that a run can be given on purpose.
#pragma once

#include <string>

#include "sim/memory.h"
#include "sim/random.h"
#include "sim/scenario.h"
#include "sim/trace.h"
#include "sim/virtual_clock.h"
#include "sim/virtual_network.h"

namespace byteps::sim {

// A bug planted into the processes, to prove that runs would find it.
enum class Sabotage : uint8_t {
  kNone,
  kSumsRepeats,        // a service adds a contribution that came in twice
  kLosesAnswer,        // a service now and then forgets to answer
  kCreditUntilAnswer,  // credit comes back with the answer, not when the bytes are written
  kKeepsLeases,        // services go on when the job has failed
  kKeepsSuspicions,    // lost connections are not reported to the scheduler
  kWithoutTicks,       // nodes do not look at the clock
  kSettlesTwice,       // a link settles what it has sent when its connection breaks, and again at the verdict
  kNeverRelieves,      // a service keeps leases while their owner starves
  kKeepsFailures,      // neither the root nor the scheduler is told that a round has failed
  kDividesTwice,       // a machine's service divides a partial average of integers
  kForgetsSteps,       // push_pulls are counted by name alone in a job that counts steps
  kForgetsWeights,     // a root takes every machine for one rank
  kKeepsPlans,         // rank 1 does not take up other plans
  kIgnoresPriority,    // a link sends in the order of the calls
  kAnswersEarly,       // a store answers one round too early
  kAddsWhileSending,   // a store changes a value that is on its way to a rank
  kForgetsToAdd,       // a store answers, and has not added
};

struct World {
  World(const Scenario& scenario_of_run, Sabotage sabotage_of_run, bool keep_trace)
      : scenario(scenario_of_run),
        sabotage(sabotage_of_run),
        random(scenario.seed ^ 0x5EED),
        trace(keep_trace),
        network(clock, random, findings, scenario.network) {}
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  template <typename Describe>
  void note(const VirtualProcess& process, uint64_t number, Describe&& describe) {
    trace.note(clock.now(), process.name(), number, std::forward<Describe>(describe));
  }
  void report(const VirtualProcess& process, const std::string& what) {
    findings.push_back(process.name() + ": " + what);
    note(process, 0, [&] { return "FINDING " + what; });
  }

  const Scenario& scenario;
  Sabotage sabotage;
  Random random;
  Findings findings;
  Trace trace;
  VirtualClock clock;
  VirtualNetwork network;
};

}  // namespace byteps::sim
