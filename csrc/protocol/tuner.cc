#include "protocol/tuner.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

namespace byteps::protocol {
namespace {

// The anchor is considered unused when another tensor has started this often without it: more often
// than any tensor starts in one step.
constexpr uint32_t kAnchorLost = 64;
constexpr size_t kMaxNames = 1 << 16;

constexpr int kFirstIgnored = 2;
constexpr size_t kConfiguredSteps = 4;
constexpr size_t kTrialSteps = 3;
constexpr double kHopeless = 1.5;

// The relative gain that is worth a change.
constexpr double kWorthwhile = 0.01;
// The gain must also exceed this many standard errors of the difference between two medians,
// because the best of several looks better than it is.
constexpr double kStandardErrors = 4;

constexpr size_t kWindowSteps = 20;
constexpr double kChanged = 1.25;
constexpr int kChangedWindows = 2;
constexpr uint64_t kRestSteps = 500;

double median(std::vector<double> values) {
  const size_t middle = values.size() / 2;
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(middle), values.end());
  const double upper = values[middle];
  if (values.size() % 2 == 1) return upper;
  return (upper + *std::max_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(middle))) / 2;
}

void append_deviations(const std::vector<double>& values, double from, std::vector<double>& deviations) {
  for (const double value : values) deviations.push_back(std::abs(value - from));
}

// The code of the credit closest to `bytes`.
int nearest_code(double bytes) {
  const double code = std::log2(bytes / static_cast<double>(credit_of_code(0)));
  return std::clamp(static_cast<int>(std::lround(code)), 1, int{kMaxCredit});
}

std::string size_text(uint64_t bytes) {
  constexpr uint64_t kMiB = 1 << 20;
  if (bytes % kMiB == 0) return std::to_string(bytes / kMiB) + " MiB";
  return std::to_string(bytes / 1024) + " KiB";
}

std::string ms_text(double us) {
  std::string text = std::to_string(us / 1000);
  return text.substr(0, text.find('.') + 3) + " ms";
}

}  // namespace

std::optional<TimeUs> StepMeter::on_start(const std::string& name, TimeUs now) {
  if (name == anchor_) {
    starts_.clear();
    return now - std::exchange(began_us_, now);
  }
  if (starts_.size() == kMaxNames) starts_.clear();  // names that are used once have no end
  if (++starts_[name] < (anchor_.empty() ? 2 : kAnchorLost)) return std::nullopt;
  anchor_ = name;
  began_us_ = now;
  starts_.clear();
  return std::nullopt;
}

Tuner::Tuner(uint64_t credit_bytes)
    : credit_bytes_(credit_bytes),
      trials_({{.plan = {}, .wanted = kConfiguredSteps, .steps_us = {}}}),
      ignore_(kFirstIgnored) {}

std::string Tuner::on_step(TimeUs duration_us) {
  const auto us = static_cast<double>(duration_us);
  if (phase_ == Phase::kDone) return watch(us);
  if (ignore_ > 0) {
    --ignore_;
  } else {
    trials_[running_].steps_us.push_back(us);
  }
  if (trials_[next_].plan != trials_[running_].plan) ignore_ = 1;
  running_ = next_;
  return is_complete() ? advance() : "";
}

// A request takes effect a step later, so the next trial is requested a step early if it is known.
bool Tuner::is_complete() const {
  const Trial& trial = trials_[next_];
  if (is_hopeless(trial)) return true;
  const bool one_more_comes = running_ == next_ && ignore_ == 0 && !queue_.empty();
  return trial.steps_us.size() + (one_more_comes ? 1 : 0) >= trial.wanted;
}

bool Tuner::is_hopeless(const Trial& trial) const {
  if (phase_ == Phase::kConfigured || phase_ == Phase::kVerify || trial.steps_us.empty()) return false;
  return trial.steps_us.front() > kHopeless * median(trials_.front().steps_us);
}

std::string Tuner::advance() {
  while (queue_.empty()) {
    if (phase_ == Phase::kVerify) return verdict();
    phase_ = static_cast<Phase>(static_cast<int>(phase_) + 1);
    fill_queue();
    if (phase_ == Phase::kVerify && queue_.empty()) {
      return choose(0, "nothing better was found");
    }
  }
  const Plan plan = queue_.front();
  queue_.pop_front();
  const bool is_measure = phase_ == Phase::kVerify && plan == Plan{};
  trials_.push_back({.plan = plan, .wanted = is_measure ? kConfiguredSteps : kTrialSteps, .steps_us = {}});
  next_ = trials_.size() - 1;
  return "tries " + describe(plan);
}

void Tuner::fill_queue() {
  const Plan found = best().plan;
  const int partition_scale = found.partition_scale == 0 ? kUnscaled : found.partition_scale;
  switch (phase_) {
    case Phase::kSizes:
      try_scale(partition_scale - 2);
      try_scale(partition_scale + 2);
      break;
    case Phase::kNearSizes:
      try_scale(partition_scale - 1);
      try_scale(partition_scale + 1);
      break;
    case Phase::kCredits: {
      const int credit = nearest_code(static_cast<double>(credit_bytes(found.credit, credit_bytes_)));
      for (const int other : {std::max(credit - 2, 1), std::min<int>(credit + 2, kMaxCredit)}) {
        if (other != credit)
          try_plan({.partition_scale = found.partition_scale, .credit = static_cast<uint8_t>(other)});
      }
      break;
    }
    case Phase::kVerify:
      if (median(best().steps_us) < (1 - kWorthwhile) * median(trials_.front().steps_us)) {
        queue_ = {found, {}, found};
      }
      break;
    case Phase::kConfigured:
    case Phase::kDone: break;
  }
}

// Scales the credit with the partitions where they get larger.
void Tuner::try_scale(int partition_scale) {
  if (partition_scale < 1 || partition_scale > kMaxPartitionScale || partition_scale == kUnscaled) return;
  Plan plan{.partition_scale = static_cast<uint8_t>(partition_scale), .credit = 0};
  const double factor = scale_factor(plan.partition_scale);
  if (factor > 1)
    plan.credit = static_cast<uint8_t>(nearest_code(factor * static_cast<double>(credit_bytes_)));
  try_plan(plan);
}

void Tuner::try_plan(const Plan& plan) {
  const bool tried = std::ranges::find(trials_, plan, &Trial::plan) != trials_.end();
  if (!tried && std::ranges::find(queue_, plan) == queue_.end()) queue_.push_back(plan);
}

const Tuner::Trial& Tuner::best() const {
  return *std::ranges::min_element(trials_, {}, [](const Trial& trial) { return median(trial.steps_us); });
}

// Uses the steps of the verification only, since those that selected the plan are biased in its
// favor. For the configured plan the initial steps count as well, unless that makes it look worse.
std::string Tuner::verdict() {
  const size_t first = trials_.size() - 3;
  std::vector<double> chosen = trials_[first].steps_us;
  chosen.insert(chosen.end(), trials_[first + 2].steps_us.begin(), trials_[first + 2].steps_us.end());
  std::vector<double> configured = trials_[first + 1].steps_us;
  const double configured_now_us = median(configured);
  configured.insert(configured.end(), trials_[0].steps_us.begin(), trials_[0].steps_us.end());
  configured_us_ = std::min(configured_now_us, median(configured));
  const double chosen_us = median(chosen);

  std::vector<double> deviations;
  append_deviations(chosen, chosen_us, deviations);
  append_deviations(configured, median(configured), deviations);
  // Estimate of the standard deviation from the median deviation, for a normal distribution.
  const double sigma_us = 1.4826 * median(deviations);
  const double error_us =
      1.2533 * sigma_us *  // standard error of a median, as a multiple of that of a mean
      std::sqrt(1.0 / static_cast<double>(chosen.size()) + 1.0 / static_cast<double>(configured.size()));
  const double margin_us = std::max(kWorthwhile * configured_us_, kStandardErrors * error_us);
  const std::string figures = "steps of " + ms_text(chosen_us) + " instead of " + ms_text(configured_us_) +
                              ", noise margin " + ms_text(margin_us);
  if (chosen_us < configured_us_ - margin_us) return choose(trials_.size() - 1, figures);
  return choose(0, describe(trials_[first].plan) + " is not significantly better: " + figures);
}

std::string Tuner::choose(size_t trial, const std::string& why) {
  phase_ = Phase::kDone;
  next_ = trial;
  on_probation_ = trial != 0;
  return (trial == 0 ? "keeps " : "takes ") + describe(trials_[trial].plan) + ": " + why;
}

std::string Tuner::watch(double duration_us) {
  ++watched_;
  window_us_.push_back(duration_us);
  if (window_us_.size() < kWindowSteps) return {};
  const double now_us = median(std::exchange(window_us_, {}));
  if (std::exchange(on_probation_, false) && now_us >= configured_us_) {
    return choose(0, "steps take " + ms_text(now_us) + " with " + describe(desired_plan()));
  }
  if (usual_us_ == 0) usual_us_ = now_us;
  const bool changed = now_us > kChanged * usual_us_ || usual_us_ > kChanged * now_us;
  changed_windows_ = changed ? changed_windows_ + 1 : 0;
  if (changed_windows_ < kChangedWindows || watched_ < kRestSteps) return {};
  *this = Tuner(credit_bytes_);
  return "searches again: steps have changed to " + ms_text(now_us);
}

std::string Tuner::describe(const Plan& plan) const {
  const double factor = scale_factor(plan.partition_scale);
  const std::string inverse = std::to_string(std::lround(1 / factor));
  return "partitions " +
         (factor < 1   ? "1/" + inverse + " as large"
          : factor > 1 ? std::to_string(std::lround(factor)) + " times as large"
                       : "as configured") +
         " and credit " +
         (plan.credit == 0 ? "as configured" : "of " + size_text(credit_of_code(plan.credit)));
}

}  // namespace byteps::protocol
