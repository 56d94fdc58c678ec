// What everything in one run shares.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "sim/random.h"
#include "sim/sim_network.h"
#include "sim/virtual_time.h"

namespace byteps::sim {

struct World {
  World(uint64_t seed, const NetworkOptions& options, bool keep_trace)
      : random(seed ^ 0x5EED), time(seed), network(time, options), keep_trace_(keep_trace) {}
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // An event of the run. `describe` gives its text; `number` stands for it in the fingerprint.
  template <typename Describe>
  void note(const std::string& who, uint64_t number, Describe&& describe) {
    const TimeUs now = time.now_us();
    fingerprint = mix(fingerprint ^ mix(static_cast<uint64_t>(now)) ^ (number << 1));
    if (!keep_trace_) return;
    char time_text[32];
    std::snprintf(time_text, sizeof time_text, "%6lld.%03d ", static_cast<long long>(now / 1000),
                  static_cast<int>(now % 1000));
    trace.push_back(time_text + who + ": " + std::forward<Describe>(describe)());
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
  uint64_t fingerprint = 0;        // of all events
  std::vector<std::string> trace;  // their texts, on request
  VirtualTime time;
  SimNetwork network;

 private:
  const bool keep_trace_;
};

}  // namespace byteps::sim
