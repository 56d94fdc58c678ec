// One run: a whole job in virtual time, and the verdict on it.
//
// After a run: nothing waits any more, every operation and barrier was answered once and in time, every result is
// exact, memory was used only while it was lent, failures name the guilty process.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sim/scenario.h"
#include "sim/sim_node.h"
#include "sim/sim_scheduler.h"
#include "sim/sim_user.h"
#include "sim/world.h"

namespace byteps::sim {

struct RunOptions {
  Sabotage sabotage = Sabotage::kNone;
  bool keep_trace = false;
};

struct RunResult {
  Findings findings;         // empty: passed
  uint64_t fingerprint = 0;  // of all that happened
  std::vector<std::string> trace;
  uint64_t event_count = 0;
  uint64_t succeeded_count = 0;  // operations and barriers
  uint64_t failed_count = 0;
};

// Deterministic. Any thread.
RunResult run(const Scenario& scenario, const RunOptions& options);

class ClusterUnderTest {
 public:
  ClusterUnderTest(const Scenario& scenario, const RunOptions& options);

  // Until every process that can end has ended, at most until the time by which it must.
  void run_to_end();
  RunResult take_result();

 private:
  void start_processes();
  void plan_fault();
  void apply_fault();
  bool all_ended() const;
  bool can_end(size_t process) const;
  // When the last operation must be answered.
  TimeUs answer_limit_us() const;
  TimeUs end_limit_us() const;
  TimeUs last_start_us() const;

  void judge();
  void check_ended();
  void check_outcomes(uint32_t worker);
  void check_one_round();
  void check_names();
  bool must_succeed() const;
  bool names_guilty(const std::string& text) const;
  bool is_left_alone(size_t process, const Status& status) const;
  void check_named(size_t process, const std::string& what, const Status& status);

  const Scenario& scenario_;
  World world_;
  Expectations expectations_;
  std::vector<std::unique_ptr<VirtualProcess>> processes_;
  std::vector<std::unique_ptr<SimUser>> users_;  // of workers
  std::vector<std::unique_ptr<SimNode>> nodes_;  // of workers and servers
  std::unique_ptr<SimScheduler> scheduler_;      // in a process of its own
  uint64_t event_count_ = 0;
  bool fault_had_effect_ = false;
  uint64_t succeeded_count_ = 0;
  uint64_t failed_count_ = 0;
  bool all_had_started_ = false;  // when the fault came
  std::vector<const VirtualProcess*> guilty_;
};

}  // namespace byteps::sim
