// Runs of whole jobs pass, faults strike in their middle, and a seed replays exactly.
#include <gtest/gtest.h>

#include <string>

#include "sim/run.h"

namespace byteps::sim {
namespace {

TEST(Simulator, JobsComeToTheirRightEndAndFaultsStrikeInTheirMiddle) {
  int struck = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    const Scenario scenario = make_scenario(seed);
    const RunResult result = run(scenario);
    EXPECT_TRUE(result.findings.empty()) << describe(scenario) << "\n" << result.findings.front();
    if (result.num_succeeded > 0 && result.num_failed > 0) ++struck;
  }
  EXPECT_GT(struck, 30);
}

TEST(Simulator, RootsMoveWhereLinksChange) {
  int changing = 0;
  int moved = 0;
  for (uint64_t seed = 1; changing < 40; ++seed) {
    const Scenario scenario = make_scenario(seed);
    if (scenario.rate_changes.empty()) continue;
    ++changing;
    const RunResult result = run(scenario);
    EXPECT_TRUE(result.findings.empty()) << describe(scenario) << "\n" << result.findings.front();
    if (result.num_moves > 0) ++moved;
  }
  EXPECT_GT(moved, 6);
}

TEST(Simulator, ASeedDecidesAllEvents) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const RunResult first = run(make_scenario(seed));
    const RunResult second = run(make_scenario(seed), true);
    EXPECT_EQ(first.fingerprint, second.fingerprint) << "seed " << seed;
    EXPECT_EQ(first.num_passes, second.num_passes) << "seed " << seed;
    EXPECT_NE(first.fingerprint, run(make_scenario(seed + 1)).fingerprint) << "seed " << seed;
  }
}

}  // namespace
}  // namespace byteps::sim
