// Runs of whole jobs pass, faults strike in their middle, and a seed replays exactly.
#include <gtest/gtest.h>

#include <string>

#include "sim/run.h"
#include "sim/seeds.h"

namespace byteps::sim {
namespace {

TEST(Simulator, JobsComeToTheirRightEndAndFaultsStrikeInTheirMiddle) {
  int struck = 0;
  for (uint64_t seed = 1; seed <= seeds(100); ++seed) {
    const Scenario scenario = make_scenario(seed);
    const RunResult result = run(scenario);
    EXPECT_TRUE(result.findings.empty()) << describe(scenario) << "\n" << result.findings.front();
    if (result.num_succeeded > 0 && result.num_failed > 0) ++struck;
  }
  if (kPartOfSeeds > 1) return;
  EXPECT_GT(struck, 10);
}

TEST(Simulator, RootsMoveWhereLinksChange) {
  int changing = 0;
  int moved = 0;
  for (uint64_t seed = 1; changing < 12; ++seed) {
    const Scenario scenario = make_scenario(seed);
    if (scenario.rate_changes.empty()) continue;
    ++changing;
    const RunResult result = run(scenario);
    EXPECT_TRUE(result.findings.empty()) << describe(scenario) << "\n" << result.findings.front();
    if (result.num_moves > 0) ++moved;
  }
  EXPECT_GT(moved, 2);
}

// Results are checked bit for bit in every run.
TEST(Simulator, JobsGoOnWithoutTheirServersAndWithOthers) {
  int lost = 0;
  int held = 0;
  int used = 0;
  for (uint64_t seed = 1; seed <= seeds(600); ++seed) {
    const Scenario scenario = make_scenario(seed);
    if (!scenario.failover || scenario.num_servers == 0 || !scenario.has_timed_faults()) continue;
    const RunResult result = run(scenario);
    EXPECT_TRUE(result.findings.empty()) << describe(scenario) << "\n" << result.findings.front();
    if (result.num_servers_lost > 0 && result.num_failed == 0) ++lost;
    if (result.num_held_sent > 0) ++held;
    if (result.num_newcomers_used > 0) ++used;
  }
  if (kPartOfSeeds > 1) return;
  EXPECT_GT(lost, 20);
  EXPECT_GT(held, 0) << "no result came from another rank";
  EXPECT_GT(used, 10) << "servers that come are not used";
}

TEST(Simulator, JobsGoOnWithoutTheirScheduler) {
  int lost = 0;
  for (uint64_t seed = 1; seed <= seeds(600); ++seed) {
    const Scenario scenario = make_scenario(seed);
    if (!scenario.has_standby() || !scenario.has_timed_faults()) continue;
    const RunResult result = run(scenario);
    EXPECT_TRUE(result.findings.empty()) << describe(scenario) << "\n" << result.findings.front();
    if (result.num_schedulers_lost > 0 && result.num_failed == 0) ++lost;
  }
  if (kPartOfSeeds > 1) return;
  EXPECT_GT(lost, 10);
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
