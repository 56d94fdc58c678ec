// That runs are repeatable, that correct code passes, and that each planted bug is found.
#include <gtest/gtest.h>

#include <string>

#include "sim/cluster_under_test.h"

namespace byteps::sim {
namespace {

TEST(Simulator, JobsComeToTheirRightEndAndFaultsStrikeInTheirMiddle) {
  int struck = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const Scenario scenario = make_scenario(seed);
    const RunResult result = run(scenario, {});
    EXPECT_TRUE(result.findings.empty()) << describe(scenario) << "\n" << result.findings.front();
    if (result.succeeded_count > 0 && result.failed_count > 0) ++struck;
  }
  EXPECT_GT(struck, 20);
}

TEST(Simulator, SeedsDecideAllThatHappens) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const RunResult first = run(make_scenario(seed), {});
    const RunResult second = run(make_scenario(seed), {.keep_trace = true});
    EXPECT_EQ(first.fingerprint, second.fingerprint) << "seed " << seed;
    EXPECT_EQ(first.event_count, second.event_count) << "seed " << seed;
    EXPECT_NE(first.fingerprint, run(make_scenario(seed + 1), {}).fingerprint) << "seed " << seed;
  }
}

struct PlantedBug {
  const char* name;
  Sabotage sabotage;
  const char* finding;  // part of one that it must lead to
};

class Sabotaged : public testing::TestWithParam<PlantedBug> {};

TEST_P(Sabotaged, IsFound) {
  constexpr uint64_t kEnoughSeeds = 1500;
  for (uint64_t seed = 1; seed <= kEnoughSeeds; ++seed) {
    for (const std::string& finding : run(make_scenario(seed), {.sabotage = GetParam().sabotage}).findings) {
      if (finding.find(GetParam().finding) != std::string::npos) return;
    }
  }
  FAIL() << "no seed up to " << kEnoughSeeds << " has found it";
}

INSTANTIATE_TEST_SUITE_P(
    Simulator, Sabotaged,
    testing::Values(PlantedBug{"SumOfRepeats", Sabotage::kSumsRepeats, "wrong result"},
                    PlantedBug{"LostAnswer", Sabotage::kLosesAnswer, "answered 0 times"},
                    PlantedBug{"CreditUntilAnswer", Sabotage::kCreditUntilAnswer, "has waited"},
                    PlantedBug{"LoansKept", Sabotage::kKeepsLeases, "after its owner took it back"},
                    PlantedBug{"SuspicionsKept", Sabotage::kKeepsSuspicions, "still there"},
                    PlantedBug{"WithoutTicks", Sabotage::kWithoutTicks, "still there"},
                    PlantedBug{"SettledTwice", Sabotage::kSettlesTwice, "settled twice"},
                    PlantedBug{"LendersStarve", Sabotage::kNeverRelieves, "has waited"},
                    PlantedBug{"FailuresKept", Sabotage::kKeepsFailures, "has waited"},
                    PlantedBug{"PartialAverageDivided", Sabotage::kDividesTwice, "wrong result"},
                    PlantedBug{"StepsForgotten", Sabotage::kForgetsSteps, "wrong result"},
                    PlantedBug{"WeightsForgotten", Sabotage::kForgetsWeights, "wrong result"},
                    PlantedBug{"PlansKept", Sabotage::kKeepsPlans, "has waited"},
                    PlantedBug{"PriorityIgnored", Sabotage::kIgnoresPriority, "less urgent"},
                    PlantedBug{"RepeatsKept", Sabotage::kSumsRepeats, "are in it: expected at most"},
                    PlantedBug{"AnswerTooEarly", Sabotage::kAnswersEarly, "lacks"},
                    PlantedBug{"AnswerChanged", Sabotage::kAddsWhileSending, "changed on its way"},
                    PlantedBug{"ContributionLost", Sabotage::kForgetsToAdd, "lacks a round"}),
    [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace byteps::sim
