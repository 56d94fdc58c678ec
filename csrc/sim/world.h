// What everything in one run shares.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sim/random.h"
#include "sim/sim_network.h"
#include "sim/trace.h"
#include "sim/virtual_time.h"

namespace byteps::sim {

struct World {
  World(uint64_t seed, const NetworkOptions& options, bool keep_trace)
      : random(seed ^ 0x5EED), trace(keep_trace), time(seed), network(time, options) {}
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  template <typename Describe>
  void note(const std::string& who, uint64_t number, Describe&& describe) {
    trace.note(time.now_us(), who, number, std::forward<Describe>(describe));
  }
  // The run has found something wrong.
  void report(const std::string& who, const std::string& what) {
    findings.push_back(who + ": " + what);
    note(who, 0, [&] { return "FINDING " + what; });
  }

  // Number of times that a process has left, was stopped, continued or killed.
  uint64_t num_changes = 0;
  Random random;
  std::vector<std::string> findings;
  Trace trace;
  VirtualTime time;
  SimNetwork network;
};

}  // namespace byteps::sim
