// One run of an elastic job in virtual time: its coordinator, its members with real nodes
// (elastic/async_elastic_node.h), faults, and the verdict: no process hangs; all members that use a
// sum have used the same one, with the contributions of all that go on; a step is lost by nobody;
// members that nothing has happened to end in order.
#pragma once

#include "sim/elastic_scenario.h"
#include "sim/run.h"

namespace byteps::sim {

// Deterministic. Any thread. Of the result, num_succeeded counts sums, num_failed members that have
// ended with an error, num_moves epochs that were entered.
RunResult run(const ElasticScenario& scenario, bool keep_trace = false);

}  // namespace byteps::sim
