// Which plan makes the steps of a training shortest: an online search by rank 0. Pure.
//
// The search looks at nothing but how long steps take, so it counts everything that a plan changes, and it takes at
// most 50 steps:
//   configured  the plan that the job was started with, as a measure
//   explore     three pairs of others: partitions of a quarter and of four times the size; of half and twice the best
//               one's; the best one with a quarter and with four times the credit
//   verify      the best one, the configured one, and the best one again
// Of each stretch under another plan the first step is ignored (its placements are asked for, buffers grow) and the
// median of the others counts. A plan that takes half as long again as the configured one is left at once.
//
// The configured plan stays unless the best one is better by more than the noise, which is estimated from how far
// steps are from their medians. Afterwards the tuner watches: a choice that does not hold over the next steps is taken
// back, and once steps have changed a lot for long it searches again, but never sooner than after ten times as many
// steps as a search takes.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "protocol/plan.h"

namespace byteps::protocol {

// Tells steps apart: one begins whenever the anchor starts, the first tensor that was started a second time. If the
// anchor is not used any more while others are, another one takes its place.
class StepMeter {
 public:
  // A push_pull of `name` starts. If it begins a step: how long the one before has taken.
  std::optional<TimeUs> on_start(const std::string& name, TimeUs now);

 private:
  std::string anchor_;
  TimeUs began_us_ = 0;
  std::unordered_map<std::string, uint32_t> starts_;  // of others since the anchor's last
};

class Tuner {
 public:
  // `credit_bytes`: as configured.
  explicit Tuner(uint64_t credit_bytes);

  // A step begins; the one before has taken so long. Returns what was decided, for the log; empty: nothing was.
  std::string on_step(TimeUs duration_us);
  // What to ask for from now on. The step that begins still follows what was asked for at the last one.
  const Plan& desired_plan() const { return trials_[next_].plan; }
  bool is_searching() const { return phase_ != Phase::kDone; }

 private:
  enum class Phase : uint8_t { kConfigured, kSizes, kNearSizes, kCredits, kVerify, kDone };
  // A stretch of steps under one plan.
  struct Trial {
    Plan plan;
    size_t wanted;
    std::vector<double> steps_us;
  };

  bool is_complete() const;
  bool is_hopeless(const Trial& trial) const;
  std::string advance();
  void fill_queue();
  void try_cut(int partition_scale);
  void try_plan(const Plan& plan);
  const Trial& best() const;
  std::string verdict();
  std::string choose(size_t trial, const std::string& why);
  std::string watch(double duration_us);
  std::string describe(const Plan& plan) const;

  uint64_t credit_bytes_;
  Phase phase_ = Phase::kConfigured;
  std::vector<Trial> trials_;  // the first: the configured plan
  std::deque<Plan> queue_;     // to be tried next, in this phase
  size_t running_ = 0;         // trial of the step that runs
  size_t next_ = 0;            // of the one after
  int ignore_;                 // so many steps from the one that runs on

  // Once it is done:
  double configured_us_ = 0;
  bool on_probation_ = false;
  double usual_us_ = 0;  // 0: not known yet
  int changed_windows_ = 0;
  uint64_t watched_ = 0;
  std::vector<double> window_us_;
};

}  // namespace byteps::protocol
