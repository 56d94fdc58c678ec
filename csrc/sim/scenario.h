// What one run does: a job, its program, and what goes wrong in it. All of it follows from the seed. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/dtype.h"
#include "protocol/placement.h"
#include "sim/virtual_network.h"

namespace byteps::sim {

struct TensorPlan {
  std::string name;
  DType dtype = DType::kInt32;  // or kInt64: sums are exact; kFloat32 only for averages
  uint64_t elements = 0;
  ReduceOp op = ReduceOp::kSum;
  uint32_t root = 0;
  int32_t priority = 0;
  uint8_t staleness = 0;  // kAccumulate, which begins with a kSeed
  // How many elements it has in rounds that are a multiple of `other_every`; 0: in none. Alike on all ranks.
  uint64_t other_elements = 0;
  uint32_t other_every = 0;
  // What only one rank does, in one round.
  uint32_t odd_round = 0;
  enum class Odd : uint8_t { kOtherSize, kRefused, kLeftOut } odd = Odd::kOtherSize;

  uint64_t elements_in(uint32_t round) const {
    const uint64_t usual = other_every > 0 && round % other_every == 0 ? other_elements : elements;
    return usual + (round == odd_round && odd == Odd::kOtherSize ? 1 + elements : 0);
  }
  uint64_t bytes() const { return elements * size_of(dtype); }
  uint64_t bytes_in(uint32_t round) const { return elements_in(round) * size_of(dtype); }
};

// One line of a rank's program. An operation begins when the tensor's one before has ended.
struct Step {
  enum class Kind : uint8_t {
    kDeclare,
    kPushPull,
    kPull,  // what is kept, when all that ranks contribute is in it
    kWait,
    kBarrier,
    kPause
  };
  Kind kind = Kind::kPause;
  size_t tensor = 0;
  TimeUs pause_us = 0;
};

struct WorkerPlan {
  std::vector<TensorPlan> tensors;  // as this rank believes
  std::vector<Step> program;        // at its end the rank leaves
  bool gives_up = false;            // leaves at the first error instead of going on
  bool raises = false;  // at the end of the program, or at the first error, it does not leave in order
};

enum class FaultKind : uint8_t {
  kNone,
  kRepeats,  // contributions come in twice
  kKilled,   // with SIGKILL
  kStopped,  // with SIGSTOP, for a while or for ever
  kConnectionCut,
  kConnectionSilenced,  // cut, and neither end is told
  kNeverStarts,
  kLeavesEarly,
  kRaises,      // likewise, but by an exception, which it tells
  kSkips,       // one push_pull that all others do
  kOtherDType,  // one rank believes something else of one tensor
  kOtherSize,
  kOtherOp,
  kLeavesOut,      // as kSkips, in a job that counts steps: the later ones are right again
  kOtherSizeOnce,  // in one round
  kRefusedOnce,    // one rank's push_pull is refused before it leaves the process
};
constexpr bool is_of_connection(FaultKind kind) {
  return kind == FaultKind::kConnectionCut || kind == FaultKind::kConnectionSilenced;
}
// With which every push_pull ends well.
constexpr bool is_harmless(FaultKind kind) { return kind <= FaultKind::kRepeats; }
// Which fails that tensor only, on all ranks.
constexpr bool concerns_one_tensor(FaultKind kind) { return kind >= FaultKind::kSkips; }
// Which fails one round of it, on all ranks, at once.
constexpr bool concerns_one_round(FaultKind kind) { return kind >= FaultKind::kOtherSizeOnce; }
constexpr bool has_a_round(FaultKind kind) { return kind >= FaultKind::kLeavesOut; }

// Processes in this order: workers, servers, and the scheduler if it has one of its own.
struct Fault {
  FaultKind kind = FaultKind::kNone;
  size_t process = 0;
  size_t tensor = 0;       // if it concerns_one_tensor
  uint32_t round = 0;      // if it has_a_round
  TimeUs at_us = 0;        // kKilled, kStopped, kConnectionCut, kConnectionSilenced
  TimeUs duration_us = 0;  // kStopped; kNever
};

struct Scenario {
  uint64_t seed = 0;
  uint32_t num_workers = 1;
  uint32_t num_servers = 0;
  std::vector<uint32_t> machines;  // by process that is no scheduler: where it runs
  std::vector<uint32_t> shards;    // likewise: of its service
  bool shares_memory = true;       // processes of one machine
  bool scheduler_in_rank_0 = true;
  bool ranks_are_given = true;  // else the scheduler numbers
  bool sizes_are_given = true;  // else the scheduler learns them from the first worker
  protocol::PlacementPolicy placement;
  bool probes_nics = false;   // before the job starts
  bool counts_steps = false;  // push_pulls of what is not kept say their step, which is their round
  uint64_t partition_bytes = 4096;
  uint64_t credit_bytes = 4096;
  double plan_change_chance = 0;  // at each push_pull of rank 0
  TimeUs start_timeout_us = 2'000'000;
  TimeUs timeout_us = 500'000;
  TimeUs op_timeout_us = 1'500'000;
  NetworkOptions network;
  std::vector<TensorPlan> tensors;  // as all ranks but a faulty one believe
  std::vector<WorkerPlan> workers;
  std::vector<TimeUs> starts_us;  // of each process; kNever
  size_t rounds = 1;              // most push_pulls of one tensor
  Fault fault;

  size_t num_processes() const { return num_workers + num_servers + (scheduler_in_rank_0 ? 0 : 1); }
  size_t scheduler_process() const { return scheduler_in_rank_0 ? 0 : num_workers + num_servers; }
};

Scenario make_scenario(uint64_t seed);

// One line, for people.
std::string describe(const Scenario& scenario);

}  // namespace byteps::sim
