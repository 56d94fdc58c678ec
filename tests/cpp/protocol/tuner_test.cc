#include "protocol/tuner.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

namespace byteps::protocol {
namespace {

constexpr uint64_t kUnscaledBytes = 1 << 20;
constexpr uint64_t kCreditBytes = 4 << 20;
constexpr int kSearchSteps = 50;
constexpr int kLongAfter = 120;

struct Setting {
  double partition_bytes;
  double credit_bytes;
};
using Cost = std::function<double(const Setting&)>;  // µs

Setting setting_of(const Plan& plan) {
  return {static_cast<double>(scaled_partition_bytes(plan.partition_scale, kUnscaledBytes)),
          static_cast<double>(credit_bytes(plan.credit, kCreditBytes))};
}

// A training whose steps take `cost`, times noise. A requested plan takes effect in the next step.
class Training {
 public:
  Training(Cost cost, double noise, uint64_t seed) : cost_(std::move(cost)), noise_(noise), random_(seed) {}

  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      const double us = cost_(setting_of(runs_)) * std::exp(noise_ * std::normal_distribution<>()(random_)) *
                        (std::bernoulli_distribution(hiccups_)(random_) ? 5 : 1);
      std::string decision = tuner_.on_step(static_cast<TimeUs>(us));
      if (!decision.empty()) decisions_.push_back(std::move(decision));
      worst_us_ = std::max(worst_us_, cost_(setting_of(runs_)));
      changes_ += next_ == runs_ ? 0 : 1;
      runs_ = next_;
      next_ = tuner_.desired_plan();
    }
  }
  double final_cost() const { return cost_(setting_of(tuner_.desired_plan())); }
  double configured_cost() const { return cost_(setting_of({})); }

  Cost cost_;
  double noise_;
  double hiccups_ = 0;
  std::mt19937_64 random_;
  Tuner tuner_{kCreditBytes};
  Plan runs_;
  Plan next_;
  int changes_ = 0;
  double worst_us_ = 0;
  std::vector<std::string> decisions_;
};

// Overhead per partition, and the last partition, which cannot overlap with anything.
double network(const Setting& s, double overhead_us, double bytes_per_us) {
  constexpr double kBytes = 100e6;
  return 5'000 + kBytes / s.partition_bytes * overhead_us + (kBytes + 8 * s.partition_bytes) / bytes_per_us;
}

const std::vector<std::pair<const char*, Cost>>& cost_models() {
  static const std::vector<std::pair<const char*, Cost>> models = {
      {"nothing matters", [](const Setting&) { return 20'000.0; }},
      {"small is good", [](const Setting& s) { return network(s, 1, 2'000); }},
      {"large is good", [](const Setting& s) { return network(s, 400, 10'000); }},
      {"the configured one is best",
       [](const Setting& s) { return 10'000 + 3'000 * std::abs(std::log2(s.partition_bytes / (1 << 20))); }},
      {"others are far worse",
       [](const Setting& s) {
         return s.partition_bytes == 1 << 20 && s.credit_bytes == 4 << 20 ? 1e4 : 1e6;
       }},
      {"credit is good", [](const Setting& s) { return 30'000 / (1 + s.credit_bytes / 8e6) + 10'000; }},
      {"credit is bad", [](const Setting& s) { return 10'000 + s.credit_bytes / 1e3; }},
      {"all others a little worse",
       [](const Setting& s) {
         return s.partition_bytes == 1 << 20 && s.credit_bytes == 4 << 20 ? 10'000 : 10'400;
       }},
  };
  return models;
}

TEST(Tuner, IsDoneWithinFiftyStepsAndDoesNotEndMuchWorseThanConfigured) {
  constexpr int kSeeds = 1'000;
  for (const auto& [name, cost] : cost_models()) {
    for (const double noise : {0.0, 0.01, 0.03, 0.05, 0.1, 0.3}) {
      int worse = 0;
      for (uint64_t seed = 0; seed < kSeeds; ++seed) {
        Training training(cost, noise, seed);
        training.hiccups_ = seed % 3 == 0 ? 0.05 : 0;
        training.run(kSearchSteps);
        ASSERT_FALSE(training.tuner_.is_searching()) << name << ", noise " << noise << ", seed " << seed;
        training.run(kLongAfter - kSearchSteps);
        worse += training.final_cost() > 1.03 * training.configured_cost() ? 1 : 0;
      }
      // If steps vary far more than plans differ, so few steps cannot tell plans apart.
      EXPECT_LE(worse, noise > 0.05 ? kSeeds / 100 : 0) << name << ", noise " << noise;
    }
  }
}

TEST(Tuner, FindsAPlanThatIsClearlyBetter) {
  for (const auto& [name, cost] : cost_models()) {
    double best = cost(setting_of({}));
    for (uint8_t partition_scale = 0; partition_scale <= kMaxPartitionScale; ++partition_scale)
      best = std::min(best, cost(setting_of({.partition_scale = partition_scale, .credit = 0})));
    if (best > 0.8 * cost(setting_of({}))) continue;
    int found = 0;
    constexpr int kSeeds = 200;
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      Training training(cost, 0.03, seed);
      training.run(kSearchSteps);
      found += training.final_cost() < 1.05 * best ? 1 : 0;
    }
    EXPECT_GE(found, kSeeds * 95 / 100) << name;
  }
}

TEST(Tuner, FindsAnotherCreditWherePartitionsDoNotMatter) {
  Training training([](const Setting& s) { return 30'000 / (1 + s.credit_bytes / 8e6) + 10'000; }, 0.01, 1);
  training.run(kSearchSteps);
  EXPECT_LT(training.final_cost(), 0.9 * training.configured_cost());
}

TEST(Tuner, WithoutNoiseTheSearchTakesTheStepsThatTheHeaderSays) {
  Training training(cost_models()[2].second, 0, 0);
  int steps = 0;
  for (; training.tuner_.is_searching(); ++steps) training.run(1);
  EXPECT_LE(steps, kSearchSteps);
  EXPECT_LE(training.changes_, 10);
  EXPECT_TRUE(training.decisions_.back().starts_with("takes partitions 4 times as large and credit of "))
      << training.decisions_.back();
}

TEST(Tuner, LeavesAPlanThatIsFarWorseAtOnce) {
  Training training(cost_models()[4].second, 0, 0);
  int bad_steps = 0;
  for (int i = 0; i < kSearchSteps; ++i) {
    bad_steps += training.cost_(setting_of(training.runs_)) > 1e5 ? 1 : 0;
    training.run(1);
  }
  EXPECT_LE(bad_steps, 6 * 3)
      << "six others, three steps each: one ignored, one measured, and one until the change takes effect";
  EXPECT_EQ(training.tuner_.desired_plan(), Plan{});
}

TEST(Tuner, TakesAChoiceBackThatDoesNotHold) {
  bool was_better = true;
  Training training(
      [&](const Setting& s) { return s.partition_bytes < (1 << 20) && was_better ? 8'000.0 : 10'000.0; },
      0.001, 3);
  training.run(kSearchSteps - 1);
  ASSERT_NE(training.tuner_.desired_plan(), Plan{});
  was_better = false;
  training.run(25);
  EXPECT_EQ(training.tuner_.desired_plan(), Plan{}) << training.decisions_.back();
}

TEST(Tuner, SearchesAgainOnceStepsHaveChangedForLongButNotSoon) {
  double scale = 1;
  Training training([&](const Setting& s) { return scale * network(s, 1, 2'000); }, 0.01, 5);
  training.run(100);
  scale = 2;
  training.run(100);
  EXPECT_FALSE(training.tuner_.is_searching()) << "the last search was recent";
  int searched = 0;
  for (int i = 0; i < 1'000; ++i) {
    training.run(1);
    searched += training.tuner_.is_searching() ? 1 : 0;
  }
  EXPECT_GT(searched, 10);
  EXPECT_LE(searched, 2 * kSearchSteps);
}

TEST(Tuner, AFewSlowStepsAreNoReasonToSearchAgain) {
  Training training(cost_models()[0].second, 0.05, 7);
  training.hiccups_ = 0.1;
  training.run(2'000);
  const auto again = std::count_if(training.decisions_.begin(), training.decisions_.end(),
                                   [](const std::string& d) { return d.starts_with("searches again"); });
  EXPECT_EQ(again, 0);
}

TEST(Tuner, AnyConfiguredCreditIsKeptWhereNothingIsBetter) {
  for (const uint64_t credit_bytes : {1ull, 100'000ull, 4ull << 20, 1ull << 40}) {
    Tuner tuner(credit_bytes);
    for (int i = 0; i < kSearchSteps; ++i) {
      tuner.on_step(10'000);
      ASSERT_LE(tuner.desired_plan().partition_scale, kMaxPartitionScale);
      ASSERT_LE(tuner.desired_plan().credit, kMaxCredit);
    }
    EXPECT_FALSE(tuner.is_searching());
    EXPECT_EQ(tuner.desired_plan(), Plan{});
  }
}

TEST(StepMeter, TheFirstTensorThatComesAgainBeginsTheSteps) {
  StepMeter meter;
  EXPECT_FALSE(meter.on_start("once", 0));
  EXPECT_FALSE(meter.on_start("a", 1));
  EXPECT_FALSE(meter.on_start("b", 2));
  EXPECT_FALSE(meter.on_start("a", 100)) << "nothing is known of the step before";
  EXPECT_FALSE(meter.on_start("b", 150));
  EXPECT_FALSE(meter.on_start("b", 160));
  EXPECT_EQ(meter.on_start("a", 300), 200);
  EXPECT_EQ(meter.on_start("a", 350), 50);
}

TEST(StepMeter, AnAnchorThatIsNotUsedAnyMoreIsReplaced) {
  StepMeter meter;
  meter.on_start("warm-up", 0);
  meter.on_start("warm-up", 1);
  std::optional<TimeUs> step;
  TimeUs now = 10;
  for (int i = 0; i < 100 && !step; ++i) {
    step = meter.on_start("a", now += 7);
    EXPECT_FALSE(meter.on_start("b", now + 1));
  }
  EXPECT_EQ(step, 7);
}

TEST(Plan, ScaledSizesStayWithinBoundsUnlessTheInitialSizeIsOutside) {
  for (const uint64_t first : {4096ull, 40'960ull, 64ull << 10, 1ull << 20, 4ull << 20, 64ull << 20}) {
    EXPECT_EQ(scaled_partition_bytes(0, first), first);
    EXPECT_EQ(scaled_partition_bytes(kUnscaled, first), first);
    for (uint8_t partition_scale = 1; partition_scale <= kMaxPartitionScale; ++partition_scale) {
      EXPECT_GE(scaled_partition_bytes(partition_scale, first), std::min(first, kMinScaledBytes));
      EXPECT_LE(scaled_partition_bytes(partition_scale, first), std::max(first, kMaxScaledBytes));
    }
  }
  EXPECT_EQ(scaled_partition_bytes(2, 1 << 20), 256u << 10);
  EXPECT_EQ(scaled_partition_bytes(5, 1 << 20), 2u << 20);
}

TEST(Plan, IsOneByteAndInvalidBytesAreRefused) {
  int plans = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const Result<Plan> plan = plan_from(static_cast<uint8_t>(byte));
    if (!plan) continue;
    EXPECT_EQ(encode(*plan), byte);
    ++plans;
  }
  EXPECT_EQ(plans, (kMaxPartitionScale + 1) * (kMaxCredit + 1));
}

}  // namespace
}  // namespace byteps::protocol
