// What one run does: a job, its programs, and the faults in it. The seed decides all of it. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/dtype.h"
#include "protocol/placement.h"
#include "protocol/push_pull_table.h"
#include "sim/sim_network.h"

namespace byteps::sim {

struct TensorPlan {
  std::string name;
  DType dtype = DType::kInt32;
  uint64_t elements = 0;
  ReduceOp op = ReduceOp::kSum;
  uint32_t root = 0;
  int32_t priority = 0;
  uint8_t staleness = 0;       // kAccumulate, which begins with a kSeed
  uint32_t renamed_every = 0;  // number of rounds after which it gets another name; 0: never
  // Number of elements in rounds that are a multiple of `other_every` (0: in none), on all ranks.
  uint64_t other_elements = 0;
  uint32_t other_every = 0;
  // What this rank alone does in one round; 0: nothing.
  uint32_t odd_round = 0;
  enum class Odd : uint8_t { kOtherSize, kRefused, kLeftOut } odd = Odd::kOtherSize;

  std::string name_in(uint32_t round) const {
    return renamed_every == 0 ? name : name + "." + std::to_string((round - 1) / renamed_every);
  }
  uint64_t elements_in(uint32_t round) const {
    const uint64_t usual = other_every > 0 && round % other_every == 0 ? other_elements : elements;
    return usual + (round == odd_round && odd == Odd::kOtherSize ? 1 + elements : 0);
  }
  uint64_t bytes() const { return elements * size_of(dtype); }
  uint64_t bytes_in(uint32_t round) const { return elements_in(round) * size_of(dtype); }
};

// One line of a rank's program. A push_pull begins when the previous one of its tensor has ended.
struct Step {
  enum class Kind : uint8_t {
    kDeclare,
    kPushPull,
    kPull,  // reads a stored tensor at the end, when it has all contributions
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
  bool raises = false;              // ends by an exception instead of leaving in order
};

enum class FaultKind : uint8_t {
  // Of the cluster, at some time; several in one run.
  kKilled,   // with SIGKILL
  kStopped,  // with SIGSTOP, for some time or for ever
  kCut,      // the network between two machines, likewise
  kCutOneWay,
  kReset,  // one connection: one that carries data is made anew
  // Of one process. At most one in a run.
  kNeverStarts,
  kLeavesEarly,
  kRaises,  // ends early by an exception
  kHangs,   // its program, for longer than the operation timeout; its heartbeats go on
  // Of one tensor on one rank; only that tensor fails, on all ranks. At most one in a run.
  kSkips,  // a push_pull that all others do
  kOtherDType,
  kOtherSize,
  kOtherOp,
  kLeavesOut,      // as kSkips in a job that counts steps: later ones are right again
  kOtherSizeOnce,  // in one round
  kRefusedOnce,    // a push_pull with invalid arguments
};
constexpr bool is_timed(FaultKind kind) { return kind <= FaultKind::kReset; }
constexpr bool is_cut(FaultKind kind) { return kind == FaultKind::kCut || kind == FaultKind::kCutOneWay; }
constexpr bool concerns_one_tensor(FaultKind kind) { return kind >= FaultKind::kSkips; }
constexpr bool has_a_round(FaultKind kind) { return kind >= FaultKind::kLeavesOut; }
// Fails one round, on all ranks, at once.
constexpr bool concerns_one_round(FaultKind kind) { return kind >= FaultKind::kOtherSizeOnce; }

// Processes in this order: workers, servers, the scheduler if it has its own process, and
// newcomers.
struct Fault {
  FaultKind kind = FaultKind::kKilled;
  size_t process = 0;
  size_t other = 0;     // is_cut: process on the other machine
  size_t tensor = 0;    // concerns_one_tensor
  uint32_t round = 0;   // has_a_round
  TimeUs at_us = 0;     // is_timed
  bool at_end = false;  // is_timed: `at_us` counts from the end of the first program that ends
  // kKilled, kStopped: it strikes so long after the first message that the process sends from then on.
  // kNever: at once.
  TimeUs after_send_us = kNever;
  TimeUs duration_us = 0;  // kStopped, is_cut; kNever
};

// The network card of a process's machine has another rate from now on. Nothing fails by it.
struct RateChange {
  size_t process = 0;
  TimeUs at_us = 0;
  uint64_t bytes_per_s = 0;
};

struct Scenario {
  uint64_t seed = 0;
  uint32_t num_workers = 1;
  uint32_t num_servers = 0;
  uint32_t num_newcomers = 0;               // servers that come to the running job
  std::vector<uint32_t> machines;           // by process, the scheduler's included
  std::vector<uint32_t> shards;             // likewise: number of data loops
  std::vector<protocol::NameLimits> names;  // likewise
  bool shm = true;                          // between processes of one machine
  size_t arena_bytes = 0;                   // of a shared-memory connection
  bool scheduler_in_rank_0 = true;
  bool ranks_are_given = true;  // otherwise the scheduler numbers the workers
  bool sizes_are_given = true;  // otherwise the scheduler learns them from the first worker
  std::string placement;        // NodeConfig::placement
  bool probes_nics = false;     // before the job starts; nodes choose their shards then
  // Such paths get several connections if they are faster (protocol/nic_survey.h).
  TimeUs long_path_us = kNever;
  // Not empty: the kernel knows the speeds of the cards at the start, and roots move to where they
  // are faster (protocol/link_speeds.h).
  std::vector<RateChange> rate_changes;
  TimeUs traffic_report_us = 0;
  bool failover = false;       // NodeConfig::failover
  bool loses_servers = false;  // its timed faults are of servers only, while the job runs
  bool grows_late = false;     // a rank leaves early, then a server comes, then the others use new names
  bool counts_steps = false;   // push_pulls carry their round as the step
  bool autotune = false;
  bool has_stranger = false;    // a process with another secret tries to join
  bool has_leftover = false;    // a process of an earlier job with the same secret connects to services
  bool has_second_job = false;  // another cluster uses the same machines and ports at the same time
  bool resumes = false;         // each process joins the next job as soon as it has left this one
  uint64_t partition_bytes = 4096;
  uint64_t credit_bytes = 4096;
  double plan_change_chance = 0;  // at each push_pull of rank 0
  TimeUs start_timeout_us = 2'000'000;
  TimeUs timeout_us = 500'000;
  TimeUs op_timeout_us = 1'500'000;
  TimeUs stall_warning_us = 60'000'000;
  NetworkOptions network;
  TimeUs preemption_us = 0;         // threads stand still for so long at times; 0: never
  std::vector<TensorPlan> tensors;  // as all ranks but a faulty one believe
  std::vector<WorkerPlan> workers;
  // By process; kNever. Newcomers wait until the job has started.
  std::vector<TimeUs> starts_us;
  // A newcomer without a time starts that long after a server was killed, as with bpslaunch, or the
  // first program ended.
  TimeUs replacement_us = 0;
  size_t rounds = 1;          // largest number of push_pulls of one tensor
  std::vector<Fault> faults;  // the one that is not timed, if any, is the first

  TimeUs hang_us() const { return 4 * op_timeout_us; }  // kHangs
  // Without newcomers.
  size_t num_nodes() const { return num_workers + num_servers; }
  size_t num_at_start() const { return num_nodes() + (scheduler_in_rank_0 ? 0 : 1); }
  size_t num_processes() const { return num_at_start() + num_newcomers; }
  size_t scheduler_process() const { return scheduler_in_rank_0 ? 0 : num_nodes(); }
  bool is_newcomer(size_t process) const { return process >= num_at_start(); }
  bool is_server(size_t process) const {
    return is_newcomer(process) || (process >= num_workers && process < num_nodes());
  }
  // The fault that is not timed; null: none.
  const Fault* program_fault() const {
    return faults.empty() || is_timed(faults.front().kind) ? nullptr : &faults.front();
  }
  bool never_starts() const { return program_fault() && program_fault()->kind == FaultKind::kNeverStarts; }
  // Of the processes that start, without newcomers.
  TimeUs last_start_us() const;
  // Whether the job goes on without the process, once all have joined: a server, in a job that
  // stores no tensor.
  bool may_lose(size_t process) const;
  // Likewise: the scheduler, which rank 0 stands by for.
  bool has_standby() const { return failover && !scheduler_in_rank_0; }
  // Whether the job goes on after the fault, in the same case.
  bool survives(const Fault& fault) const;
  bool has_timed_faults() const { return !faults.empty() && is_timed(faults.back().kind); }
};

Scenario make_scenario(uint64_t seed);
// For has_second_job and resumes: without timed faults, and with starts_us kNever.
Scenario make_other_scenario(uint64_t seed);

// One line for people.
std::string describe(const Scenario& scenario);

}  // namespace byteps::sim
