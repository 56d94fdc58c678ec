// The training program of one rank: carries out its steps, and checks what it gets back.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "protocol/push_pull_table.h"
#include "sim/expectations.h"
#include "sim/sim_process.h"
#include "sim/world.h"

namespace byteps::sim {

// An operation that a program has begun.
struct Outcome {
  std::string what;
  bool is_barrier = false;
  size_t tensor = 0;
  uint32_t round = 0;  // of a push_pull
  TimeUs begun_us = 0;
  int times_done = 0;
  TimeUs done_us = 0;
  Status status = {};
};

// Runs on the program's loop of its process.
class Program {
 public:
  // `index`: of the process in the scenario.
  Program(World& world, SimProcess& process, const Scenario& scenario, uint32_t index,
          Expectations& expectations);

  // The job has started, or the start has failed.
  void begin(const Status& started);
  // The node has stopped, and all push_pulls are done: looks at those with handles.
  void on_stopped();
  // Reports buffers that were written after their push_pull was done. To be called at the end.
  void check_buffers();

  bool at_end() const { return at_end_; }
  // Called when the program has come to its end, before the rank leaves.
  void on_end(std::function<void()> on_end) { on_end_ = std::move(on_end); }
  // Number of placements that its push_pulls have moved to. Valid from on_stopped() on.
  uint64_t num_moves() const { return num_moves_; }
  uint64_t num_servers_lost() const { return num_servers_lost_; }
  uint64_t num_schedulers_lost() const { return num_schedulers_lost_; }
  uint64_t num_held_sent() const { return num_held_sent_; }
  const Status& start_failure() const { return start_failure_; }
  const std::vector<Outcome>& outcomes() const { return outcomes_; }

 private:
  using Buffer = std::shared_ptr<std::vector<std::byte>>;
  struct InFlight {
    size_t tensor = 0;
    uint32_t round = 0;
    bool is_pull = false;
    Buffer input;
    Buffer output;
    std::vector<std::byte> values;  // of the input
  };

  uint32_t rank() const { return static_cast<uint32_t>(process_.rank()); }
  void advance_soon();
  void advance();
  bool is_blocked_by(const Step& step) const;
  void perform(const Step& step);
  void push_pull(size_t tensor, bool is_pull);
  void fill_input(const TensorPlan& tensor, InFlight& op, ReduceOp reduction);
  protocol::PushPull make_request(const TensorPlan& tensor, uint32_t round, ReduceOp reduction) const;
  // Starts it with a callback, or with a handle that is polled.
  void start(size_t outcome, const protocol::PushPull& request, const InFlight& op);
  void poll(size_t outcome);
  void maybe_change_plan();
  void barrier();
  void on_push_pull_done(size_t outcome, const Status& status);
  // Returns the index of the outcome.
  size_t begin_operation(Outcome outcome);
  void finish(Outcome& outcome, const Status& status);
  void check_result(const InFlight& op);
  std::string wrong_result(const InFlight& op);
  Buffer make_buffer(uint64_t bytes);

  World& world_;
  SimProcess& process_;
  const Scenario& scenario_;
  const WorkerPlan& plan_;
  const uint32_t machine_;
  Expectations& expectations_;
  Random random_;
  Status start_failure_;
  size_t next_step_ = 0;
  bool is_pausing_ = false;
  bool is_in_barrier_ = false;
  bool is_advancing_ = false;
  bool had_error_ = false;
  bool at_end_ = false;
  std::function<void()> on_end_ = [] {};
  uint64_t num_moves_ = 0;
  uint64_t num_servers_lost_ = 0;
  uint64_t num_schedulers_lost_ = 0;
  uint64_t num_held_sent_ = 0;
  std::vector<uint32_t> rounds_;                // by tensor
  std::vector<bool> is_in_flight_;              // by tensor
  std::map<size_t, InFlight> in_flight_;        // by index of the outcome
  std::map<size_t, protocol::Handle> handles_;  // by index of the outcome
  std::vector<Outcome> outcomes_;
  std::vector<Buffer> buffers_;  // of all push_pulls, kept to the end, so that late writes are found
};

}  // namespace byteps::sim
