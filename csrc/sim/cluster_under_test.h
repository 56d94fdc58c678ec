// The real nodes of a whole cluster in virtual time (cluster_under_test.cc), and the verdict on
// them (verdict.cc): at the end no process is left, every push_pull and barrier was answered once
// and in time, every result is right bit for bit, no memory was used after it was given back, and
// failures name a guilty process. Services keep nothing of names that all ranks have forgotten.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sim/program.h"
#include "sim/scenario.h"
#include "sim/sim_process.h"
#include "sim/world.h"

namespace byteps::sim {

class ClusterUnderTest {
 public:
  // `job`: number of the job, which decides its secret. `scenario` is copied.
  ClusterUnderTest(const Scenario& scenario, int job, World& world);
  ~ClusterUnderTest();

  size_t num_processes() const { return processes_.size(); }
  // Starts all processes at the times of the scenario.
  void start_all();
  // Starts a process now, if it has not been started and the scenario lets it start.
  void start_now(size_t process);
  // Sets a function that is called with each process that has ended.
  void on_ended(std::function<void(size_t)> callback) { on_ended_ = std::move(callback); }

  // Whether every process that can end has ended. Ends processes that have left.
  bool all_ended();
  // Time by which the last process must have ended.
  TimeUs end_limit_us() const;
  void judge();
  // Numbers of push_pulls and barriers.
  uint64_t num_succeeded() const { return num_succeeded_; }
  uint64_t num_failed() const { return num_failed_; }
  // Number of times that roots have moved.
  uint64_t num_moves() const;
  // As RunResult.
  uint64_t num_servers_lost() const;
  // Whose place rank 0 has taken: 0 or 1.
  uint64_t num_schedulers_lost() const;
  uint64_t num_held_sent() const;
  uint64_t num_newcomers_used() const;

 private:
  class Leftover;

  NodeConfig config_of(size_t process) const;
  HostFacts facts_of(size_t process) const;
  const std::string& scheduler_ip() const { return processes_[scenario_.scheduler_process()]->facts().ip; }
  void start(size_t process);
  // Whether a newcomer has to wait: the job has not started.
  bool comes_later(size_t process);
  void start_stranger();
  void start_leftover();
  void change_rate(const RateChange& change);
  void on_program_end();
  // The time of the fault has come: strikes, at once or when its process sends something.
  void aim(const Fault& fault);
  void strike(const Fault& fault);
  void start_waiting_newcomer();
  void cut(const Fault& fault);
  // `survives`: the job goes on if all have joined it.
  void note_guilt(const Fault& fault, const char* what, bool survives);
  void blame_hosts(const std::set<std::string>& addresses);
  bool is_short(const Fault& fault) const;
  bool may_delay(const Fault& reset) const;
  void call_at(TimeUs at_us, UniqueFunction<void()> task) {
    world_.network.loop().schedule(at_us, std::move(task));
  }
  bool can_end(size_t process) const;
  TimeUs operation_limit_us() const;
  // Time by which the last push_pull must be answered.
  TimeUs answer_limit_us() const;

  void check_ended();
  void check_outcomes(uint32_t worker);
  void check_one_round();
  void check_names();
  void check_forgotten();
  void check_servers();
  void check_ended_last(size_t process);
  bool names_guilty(const std::string& text) const;
  std::string known_name(size_t process) const;
  void check_named(size_t process, const std::string& what, const Status& status);
  void check_no_other_named(size_t process, const Fault& fault, const Outcome& outcome);

  Scenario scenario_;
  const int job_;
  World& world_;
  Expectations expectations_;
  std::vector<std::unique_ptr<SimProcess>> processes_;
  std::vector<std::unique_ptr<Program>> programs_;  // of workers
  std::unique_ptr<SimProcess> stranger_;
  std::unique_ptr<Leftover> leftover_;
  std::function<void(size_t)> on_ended_;
  bool a_fault_matters_ = false;  // one has struck that is longer than the job tolerates
  bool a_program_has_ended_ = false;
  bool all_had_started_ = true;        // when the faults struck
  std::vector<bool> guilty_;           // by process
  std::set<std::string> reset_hosts_;  // addresses; their connections were resumed, or will be
  uint64_t num_succeeded_ = 0;
  uint64_t num_failed_ = 0;
};

}  // namespace byteps::sim
