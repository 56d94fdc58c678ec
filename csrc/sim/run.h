// One run of a scenario.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/scenario.h"

namespace byteps::sim {

struct RunResult {
  std::vector<std::string> findings;  // empty: passed
  uint64_t fingerprint = 0;           // of all events
  std::vector<std::string> trace;
  uint64_t num_passes = 0;     // of event loops
  uint64_t num_succeeded = 0;  // push_pulls and barriers
  uint64_t num_failed = 0;
  uint64_t num_moves = 0;            // of roots
  uint64_t num_servers_lost = 0;     // without which a job has gone on
  uint64_t num_schedulers_lost = 0;  // whose place rank 0 has taken
  uint64_t num_held_sent = 0;        // results that one rank has got from another one
  uint64_t num_newcomers_used = 0;   // servers that have come to a running job and summed
  uint64_t num_partial = 0;          // results whose parts were summed by several generations
};

// Deterministic. Any thread. `keep_trace`: see RunResult::trace.
RunResult run(const Scenario& scenario, bool keep_trace = false);

}  // namespace byteps::sim
