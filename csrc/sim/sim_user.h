// The training program of one rank: carries out its steps, and checks what it gets back.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "protocol/push_pull_table.h"
#include "sim/kept_values.h"
#include "sim/world.h"

namespace byteps::sim {

// What a program calls.
class Session {
 public:
  virtual ~Session() = default;
  virtual uint32_t rank() const = 0;
  virtual Status declare(const std::string& name, DType dtype, uint64_t bytes) = 0;
  virtual Status push_pull(protocol::Handle handle, const protocol::PushPull& request, const View& input,
                           const View& output) = 0;
  // An error: at once; else on_barrier_done follows.
  virtual Status barrier(uint32_t sequence) = 0;
  virtual void shutdown() = 0;
  // The program ends by an exception.
  virtual void fail_job(const std::string& cause) = 0;
};

// The right result of each push_pull, computed once for all ranks.
class Expectations {
 public:
  explicit Expectations(const Scenario& scenario)
      : kept(scenario), scenario_(scenario), machines_(scenario.num_workers) {}
  // Where a rank runs: to know before the first result.
  void place(uint32_t rank, uint32_t machine) { machines_.at(rank) = machine; }
  // Of what is not kept.
  Bytes result(size_t tensor, uint32_t round);

  KeptValues kept;

 private:
  // A mean of the machines' means, `inputs` by rank.
  void average(const std::vector<std::vector<std::byte>>& inputs, MutableBytes out) const;

  const Scenario& scenario_;
  std::vector<uint32_t> machines_;  // by rank
  std::map<std::pair<size_t, uint32_t>, std::vector<std::byte>> results_;
};

// Something that a program has waited for or still does.
struct Outcome {
  std::string what;
  bool is_barrier = false;
  size_t tensor = 0;
  uint32_t round = 0;  // of a push_pull
  int times_done = 0;
  TimeUs done_us = 0;
  Status status = {};
};

class SimUser {
 public:
  // `index`: of its process.
  SimUser(World& world, VirtualProcess& process, uint32_t index, Expectations& expectations);

  // The job has started, or could not be.
  void begin(Session& session);
  void on_start_failed(const Status& why);
  void on_handle_done(protocol::Handle handle, const Status& status);
  void on_barrier_done(uint32_t sequence, const Status& status);

  bool at_end() const { return at_end_; }
  const Status& start_failure() const { return start_failure_; }
  const std::vector<Outcome>& outcomes() const { return outcomes_; }

 private:
  struct InFlight {
    size_t tensor = 0;
    uint32_t round = 0;
    bool is_pull = false;
    View input;
    View output;
  };

  void advance_soon();
  void advance();
  bool blocked_by(const Step& step) const;
  void perform(const Step& step);
  void push_pull(size_t tensor, bool is_pull);
  void fill_input(const TensorPlan& tensor, const InFlight& op, ReduceOp reduction);
  void barrier();
  void finish(Outcome& outcome, const Status& status);
  void check_result(const InFlight& op);
  View make_buffer(uint64_t bytes, const std::string& what);

  World& world_;
  VirtualProcess& process_;
  const WorkerPlan& plan_;
  const uint32_t machine_;
  Expectations& expectations_;
  Session* session_ = nullptr;
  Status start_failure_;
  size_t next_step_ = 0;
  bool pausing_ = false;
  bool in_barrier_ = false;
  bool advancing_ = false;
  bool had_error_ = false;
  bool at_end_ = false;
  std::vector<uint32_t> rounds_;                // by tensor
  std::vector<protocol::Handle> in_flight_of_;  // by tensor; 0: none
  std::map<protocol::Handle, InFlight> in_flight_;
  std::vector<Outcome> outcomes_;  // handle h is outcome h - 1, so barriers take a number, too
  std::map<uint32_t, size_t> barriers_;
};

}  // namespace byteps::sim
