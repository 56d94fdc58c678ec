// Runs of elastic jobs pass, members are lost and come in their middle, and a seed replays exactly.
#include <gtest/gtest.h>

#include "base/log.h"
#include "sim/elastic_run.h"
#include "sim/seeds.h"

namespace byteps::sim {
namespace {

TEST(ElasticSimulator, MembersAreLostAndComeAndNoStepIsLost) {
  log::set_level(log::Level::kError);  // each loss is a warning
  int changed = 0;
  uint64_t sums = 0;
  uint64_t partial = 0;
  for (uint64_t seed = 1; seed <= seeds(300); ++seed) {
    const ElasticScenario scenario = make_elastic_scenario(seed);
    const RunResult result = run(scenario);
    EXPECT_TRUE(result.findings.empty()) << describe(scenario) << "\n" << result.findings.front();
    if (result.num_moves > 0) ++changed;
    sums += result.num_succeeded;
    partial += result.num_partial;
  }
  if (kPartOfSeeds > 1) return;
  EXPECT_GT(changed, 100) << "epochs";
  EXPECT_GT(sums, 10'000u);
  EXPECT_GT(partial, 10u) << "results of several generations";
}

TEST(ElasticSimulator, ASeedReplaysExactly) {
  for (const uint64_t seed : {7, 11, 17}) {
    const ElasticScenario scenario = make_elastic_scenario(seed);
    EXPECT_EQ(run(scenario).fingerprint, run(scenario).fingerprint) << "seed " << seed;
  }
  EXPECT_NE(run(make_elastic_scenario(7)).fingerprint, run(make_elastic_scenario(8)).fingerprint);
}

}  // namespace
}  // namespace byteps::sim
