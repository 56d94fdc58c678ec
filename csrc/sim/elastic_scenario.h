// What a seed means for an elastic job: its members, their programs, and faults.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "sim/sim_network.h"

namespace byteps::sim {

struct ElasticFault {
  enum class Kind : uint8_t {
    kKill,
    kPause,  // for `lasts_us`
    kCut,    // between its machine and another one, in both directions, for `lasts_us`
    kReset,  // of some connection that survives it
    kKillCoordinator,
  };
  Kind kind = Kind::kKill;
  TimeUs at_us = 0;
  size_t member = 0;
  uint32_t other_machine = 0;
  TimeUs lasts_us = 0;
};

struct ElasticScenario {
  struct Member {
    uint32_t machine = 0;
    TimeUs starts_us = 0;
    int64_t leaves_after = INT64_MAX;  // steps; the others stay
    TimeUs think_us = 0;               // longest pause before each operation
    TimeUs preemption_us = 0;
  };

  uint64_t seed = 0;
  NetworkOptions network;
  TimeUs timeout_us = 0;
  TimeUs gather_us = 0;
  uint32_t initial = 1;
  uint32_t least = 1;
  uint32_t most = 0;            // 0: no limit
  std::vector<Member> members;  // the first `initial` start at once
  int64_t steps = 0;
  std::vector<size_t> elements;  // of the tensors of a step
  uint64_t partition_bytes = 0;
  double refusals = 0;  // chance that a program refuses a push_pull instead of starting it
  bool shm = false;
  size_t arena_bytes = 0;
  std::vector<ElasticFault> faults;

  // The coordinator's machine; no member is there.
  uint32_t coordinator_machine() const { return 9; }
  bool has(ElasticFault::Kind kind) const;
  // The time by which all must have ended.
  TimeUs limit_us() const;
};

ElasticScenario make_elastic_scenario(uint64_t seed);
std::string describe(const ElasticScenario& scenario);

}  // namespace byteps::sim
