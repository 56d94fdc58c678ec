// The training program of a member of an elastic job: sums tensors in steps, and commits after each.
//
// Member k contributes 2^k to every element, so a sum tells who has contributed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sim/elastic_scenario.h"
#include "sim/sim_process.h"
#include "sim/world.h"

namespace byteps::sim {

// Runs on the program's loop of its process.
class ElasticProgram {
 public:
  ElasticProgram(World& world, SimProcess& process, const ElasticScenario& scenario, size_t number);

  // The member takes part, or the start has failed.
  void begin(const Status& started);

  // A result: the sums of its elements, from this element on. Large tensors may have several, as
  // parts of them are summed in different generations; one that a member has refused has none.
  using Runs = std::vector<std::pair<size_t, int64_t>>;
  // Results that it has used, by step and tensor.
  using Sums = std::map<std::pair<int64_t, size_t>, Runs>;
  const Sums& sums() const { return sums_; }
  bool has_begun() const { return has_begun_; }
  bool has_state() const { return has_state_; }
  bool is_founder() const { return is_founder_; }  // it was there when the job began
  bool at_end() const { return at_end_; }
  // ok: it has made all its steps.
  const Status& outcome() const { return outcome_; }
  int64_t step() const { return step_; }
  int64_t num_entered() const { return num_entered_; }
  bool is_inside_operation() const { return open_ > 0; }

 private:
  void get_state();
  void await_new_ranks();
  void make_step();
  void push(size_t tensor);
  void on_pushed(size_t tensor, const Status& status);
  void note_result(size_t tensor, bool is_refused);
  void commit();
  void on_committed(const Result<elastic::Change>& change);
  void end(const Status& outcome);
  // Runs `next` on the program's loop, perhaps later.
  void think(std::function<void()> next);

  World& world_;
  SimProcess& process_;
  const ElasticScenario& scenario_;
  const size_t number_;
  Random random_;
  std::vector<std::shared_ptr<std::vector<int64_t>>> tensors_;
  std::shared_ptr<std::vector<int64_t>> state_;
  int64_t step_ = 0;
  size_t open_ = 0;  // operations in flight
  Status failure_;   // the first one of a step
  bool has_begun_ = false;
  bool has_state_ = false;
  bool is_founder_ = false;
  bool at_end_ = false;
  Status outcome_;
  Sums sums_;
  int64_t num_entered_ = 0;
};

}  // namespace byteps::sim
