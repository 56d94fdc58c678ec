// Finds the plan with the shortest training steps: an online search on rank 0. Pure.
//
// The search measures only the duration of steps, in at most 50 steps:
//   configured  the plan that the job was started with, as the reference
//   explore     three pairs of others: partitions of a quarter and of four times the size; of half
//               and twice the size of the best; the best one with a quarter and four times the
//               credit
//   verify      the best one, the configured one, and the best one again
// In each run of steps under one plan the first step is ignored (locations are requested, buffers
// grow) and the median of the others counts. A plan that takes 1.5 times as long as the configured
// one is abandoned at once. The configured plan stays unless the best one is better by more than
// the noise, estimated from the deviations of steps from their medians. Afterwards the tuner
// watches: it reverts a choice that does not hold over the next steps, and searches again when
// steps have changed for long, but never sooner than after ten times the steps of a search.
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

// Detects steps: a step begins whenever the anchor starts, which is the first tensor that was
// started a second time. If the anchor falls out of use, another tensor replaces it.
class StepMeter {
 public:
  // A push_pull of `name` starts. If a step begins with it: the duration of the previous step.
  std::optional<TimeUs> on_start(const std::string& name, TimeUs now);

 private:
  std::string anchor_;
  TimeUs began_us_ = 0;
  // Numbers of starts of other tensors, since the anchor's last start.
  std::unordered_map<std::string, uint32_t> starts_;
};

class Tuner {
 public:
  // `credit_bytes`: as configured.
  explicit Tuner(uint64_t credit_bytes);

  // A step begins; `duration_us` is that of the previous one. Returns a decision for the log, or
  // "".
  std::string on_step(TimeUs duration_us);
  // The plan to request from now on. The step that begins still follows the previous request.
  const Plan& desired_plan() const { return trials_[next_].plan; }
  bool is_searching() const { return phase_ != Phase::kDone; }

 private:
  enum class Phase : uint8_t { kConfigured, kSizes, kNearSizes, kCredits, kVerify, kDone };
  // A run of steps under one plan.
  struct Trial {
    Plan plan;
    size_t wanted;
    std::vector<double> steps_us;
  };

  bool is_complete() const;
  bool is_hopeless(const Trial& trial) const;
  std::string advance();
  void fill_queue();
  void try_scale(int partition_scale);
  void try_plan(const Plan& plan);
  const Trial& best() const;
  std::string verdict();
  std::string choose(size_t trial, const std::string& why);
  std::string watch(double duration_us);
  std::string describe(const Plan& plan) const;

  uint64_t credit_bytes_;
  Phase phase_ = Phase::kConfigured;
  std::vector<Trial> trials_;  // the first one: the configured plan
  std::deque<Plan> queue_;     // plans to try next in this phase
  size_t running_ = 0;         // trial of the current step
  size_t next_ = 0;            // trial of the next step
  int ignore_;                 // number of steps to ignore, the current one included

  // Valid in kDone:
  double configured_us_ = 0;
  bool on_probation_ = false;
  double usual_us_ = 0;  // 0: unknown
  int changed_windows_ = 0;
  uint64_t watched_ = 0;
  std::vector<double> window_us_;
};

}  // namespace byteps::protocol
