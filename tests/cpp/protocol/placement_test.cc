#include "protocol/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>

namespace byteps::protocol {
namespace {

using Shares = std::vector<double>;
using ReducerHosts = std::vector<ReducerHost>;
using PolicyKind = PlacementPolicy::Kind;
using Random = std::mt19937_64;

constexpr uint64_t kBytes = 1 << 20;
constexpr double kMbps = 1000;

ReducerHosts reducer_hosts_of(const std::vector<double>& machines_mbps,
                              const std::vector<double>& servers_mbps) {
  ReducerHosts reducer_hosts;
  for (const double mbps : machines_mbps) reducer_hosts.push_back({.nic_mbps = mbps});
  for (const double mbps : servers_mbps) reducer_hosts.push_back({.is_server = true, .nic_mbps = mbps});
  return reducer_hosts;
}

ReducerHosts equal_reducer_hosts(size_t n, size_t k, double mbps = kMbps) {
  return reducer_hosts_of(std::vector<double>(n, mbps), std::vector<double>(k, mbps));
}

PlacementPolicy policy_of(PolicyKind kind) { return {.kind = kind}; }

Shares shares_of(const ReducerHosts& reducer_hosts, PolicyKind kind = PolicyKind::kAuto) {
  return reducer_host_shares(reducer_hosts, policy_of(kind)).value();
}

double seconds_of(const ReducerHosts& reducer_hosts, PolicyKind kind = PolicyKind::kAuto) {
  return predicted_seconds(reducer_hosts, shares_of(reducer_hosts, kind), kBytes);
}

void expect_shares(const Shares& got, const Shares& expected, const std::string& what = "") {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(got[i], expected[i], 1e-12) << "reducer host " << i << what;
}

double between(Random& random, double low, double high) {
  return std::uniform_real_distribution<double>(low, high)(random);
}

size_t count_between(Random& random, size_t low, size_t high) {
  return std::uniform_int_distribution<size_t>(low, high)(random);
}

ReducerHosts random_reducer_hosts(Random& random) {
  const size_t num_machines = count_between(random, 1, 12);
  ReducerHosts reducer_hosts(num_machines);
  reducer_hosts.resize(num_machines + count_between(random, 0, 12), {.is_server = true});
  const double unknown = random() % 4 == 0 ? 0.2 : 0;
  const double sharing = random() % 4 == 0 ? 0.3 : 0;
  for (ReducerHost& reducer_host : reducer_hosts) {
    reducer_host.nic_mbps = between(random, 0, 1) < unknown ? 0 : std::exp(between(random, 0, 5));
    const bool is_guest = reducer_host.is_server && between(random, 0, 1) < sharing;
    if (is_guest) reducer_host.host = static_cast<uint32_t>(random() % num_machines);
  }
  return reducer_hosts;
}

Shares random_shares(Random& random, size_t count) {
  Shares shares(count);
  for (double& share : shares) share = random() % 3 == 0 ? 0 : between(random, 0, 1);
  shares[random() % count] += 0.1;
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share /= sum;
  return shares;
}

TEST(ReducerHostShares, OfEqualCardsFollowThePapersFormula) {
  expect_shares(shares_of(equal_reducer_hosts(4, 2)), {.1, .1, .1, .1, .3, .3});  // D = 20
  for (size_t n = 3; n <= 40; ++n) {
    for (size_t k = 0; k <= n; ++k) {
      const auto nn = static_cast<double>(n);
      const auto kk = static_cast<double>(k);
      const double d = nn * nn + kk * nn - 2 * kk;
      Shares expected(n, (nn - kk) / d);
      expected.resize(n + k, 2 * (nn - 1) / d);
      const ReducerHosts reducer_hosts = equal_reducer_hosts(n, k);
      const std::string what = " of (" + std::to_string(n) + ", " + std::to_string(k) + ")";
      expect_shares(shares_of(reducer_hosts), expected, what);
      EXPECT_NEAR(seconds_of(reducer_hosts), 2 * nn * (nn - 1) / d * kBytes * 8 / (kMbps * 1e6), 1e-12)
          << what;
    }
  }
}

TEST(ReducerHostShares, WithoutServersAreThoseOfAllReduce) {
  for (size_t n = 1; n <= 9; ++n)
    expect_shares(shares_of(equal_reducer_hosts(n, 0)),
                  shares_of(equal_reducer_hosts(n, 0), PolicyKind::kAllReduce));
}

TEST(ReducerHostShares, WithAsManyServersAsMachinesAreThoseOfAParameterServer) {
  for (size_t n = 3; n <= 9; ++n) {
    for (size_t k = n; k <= n + 3; ++k)
      expect_shares(shares_of(equal_reducer_hosts(n, k)),
                    shares_of(equal_reducer_hosts(n, k), PolicyKind::kPs));
  }
}

TEST(ReducerHostShares, OfOneMachineKeepAllThere) {
  expect_shares(shares_of(equal_reducer_hosts(1, 0)), {1});
  expect_shares(shares_of(equal_reducer_hosts(1, 3)), {1, 0, 0, 0});
  EXPECT_EQ(seconds_of(equal_reducer_hosts(1, 3)), 0);
}

TEST(ReducerHostShares, OfForcedPlacementsAreEqual) {
  expect_shares(shares_of(equal_reducer_hosts(2, 2), PolicyKind::kAllReduce), {0.5, 0.5, 0, 0});
  expect_shares(shares_of(reducer_hosts_of({1, 5}, {2, 4}), PolicyKind::kPs), {0, 0, 0.5, 0.5});
  expect_shares(shares_of(equal_reducer_hosts(1, 1), PolicyKind::kPs), {0, 1});
  expect_shares(shares_of(equal_reducer_hosts(2, 0), PolicyKind::kPs), {0.5, 0.5});
}

// Computed by hand: T = (1 + c/(n-2)) M / (sum of c machines / (n-2) + sum of servers / n), where c
// machines can send more than M within T.
TEST(ReducerHostShares, OfUnequalCardsFillEachAsFarAsTheTimeAllows) {
  // A fast machine among equals: T = (1 + 1) / 6 = 1/3 = 1 / slowest, so only the fast one has
  // capacity.
  expect_shares(shares_of(reducer_hosts_of({3, 3, 6}, {})), {0, 0, 1});
  // T = (1 + 2) / (48 / 2 + 48 / 4) = 1/12; machines (T B - 1) / 2, servers T B / 4.
  expect_shares(shares_of(reducer_hosts_of({12, 12, 12, 12}, {24, 24}), PolicyKind::kAuto),
                {0, 0, 0, 0, .5, .5});
  // T = (1 + 2) / (66 / 2 + 12 / 4) = 1/12.
  expect_shares(shares_of(reducer_hosts_of({12, 12, 18, 24}, {12})), {0, 0, .25, .5, .25});
}

// The slow machine determines the time, but the load of the others is as low as possible, too.
TEST(ReducerHostShares, OfAJobThatOneSlowMachineHoldsUpSpareTheOthers) {
  // T = (1 + 3/2) / (30 / 2 + 10 / 4) = 1/7: machines (T B - 1) / 2, servers T B / 4.
  expect_shares(shares_of(reducer_hosts_of({1, 10, 10, 10}, {6, 4})),
                {0, 3 / 14., 3 / 14., 3 / 14., 3 / 14., 2 / 14.});
  // T = (1 + 2/2) / (20 / 2 + 1 / 4) = 8/41 < 1/5: the second machine cannot send M within it either.
  expect_shares(shares_of(reducer_hosts_of({1, 5, 10, 10}, {1})), {0, 0, 39 / 82., 39 / 82., 2 / 41.});
}

// Both must send everything, whoever sums; so servers would only add traffic.
TEST(ReducerHostShares, OfTwoMachinesGiveNothingToServers) {
  expect_shares(shares_of(equal_reducer_hosts(2, 2)), {.5, .5, 0, 0});
  expect_shares(shares_of(reducer_hosts_of({10, 40}, {50, 3})), {.5, .5, 0, 0});
}

TEST(ReducerHostShares, CountUnknownCardsAsTheMeanOfTheOthers) {
  expect_shares(shares_of(reducer_hosts_of({12, 0, 24}, {0})),
                shares_of(reducer_hosts_of({12, 18, 24}, {18})));
  expect_shares(shares_of(equal_reducer_hosts(4, 2, 0)), shares_of(equal_reducer_hosts(4, 2)));
  for (const double nonsense : {-1.0, 1e300, 1e-300, std::nan("")})
    expect_shares(shares_of(reducer_hosts_of({12, nonsense, 24}, {})),
                  shares_of(reducer_hosts_of({12, 18, 24}, {})));
  EXPECT_EQ(seconds_of(equal_reducer_hosts(4, 2, 0)), std::numeric_limits<double>::infinity());
}

TEST(ReducerHostShares, GiveNothingToServersWithoutACardOfTheirOwn) {
  ReducerHosts reducer_hosts = equal_reducer_hosts(4, 2);
  reducer_hosts[4].host = 2;
  expect_shares(shares_of(reducer_hosts),
                {3 / 18., 3 / 18., 3 / 18., 3 / 18., 0, 6 / 18.});  // those of (4, 1)
  expect_shares(shares_of(reducer_hosts, PolicyKind::kPs), {0, 0, 0, 0, .5, .5});
}

TEST(ReducerHostShares, OfAnyCardsSumToOneAndAreNeverWorseThanOthers) {
  Random random(1);
  for (int i = 0; i < 3000; ++i) {
    const ReducerHosts reducer_hosts = random_reducer_hosts(random);
    const Shares best = shares_of(reducer_hosts);
    EXPECT_NEAR(std::accumulate(best.begin(), best.end(), 0.0), 1, 1e-9);
    EXPECT_GE(*std::min_element(best.begin(), best.end()), 0);
    const double bound = predicted_seconds(reducer_hosts, best, kBytes) * (1 - 1e-9);
    EXPECT_LE(bound, seconds_of(reducer_hosts, PolicyKind::kAllReduce)) << i;
    EXPECT_LE(bound, seconds_of(reducer_hosts, PolicyKind::kPs)) << i;
    for (int other = 0; other < 10; ++other)
      EXPECT_LE(bound, predicted_seconds(reducer_hosts, random_shares(random, reducer_hosts.size()), kBytes))
          << i;
  }
}

TEST(ReducerHostShares, OfFasterCardsAreNeverSlower) {
  Random random(2);
  for (int i = 0; i < 3000; ++i) {
    ReducerHosts reducer_hosts = random_reducer_hosts(random);
    for (ReducerHost& reducer_host : reducer_hosts)
      reducer_host.nic_mbps = std::max(reducer_host.nic_mbps, 1.0);
    const double before = seconds_of(reducer_hosts);
    reducer_hosts[random() % reducer_hosts.size()].nic_mbps *= between(random, 1, 3);
    EXPECT_LE(seconds_of(reducer_hosts), before * (1 + 1e-9)) << i;
  }
}

TEST(ReducerHostShares, OfMoreServersAreNeverSlower) {
  Random random(3);
  for (int i = 0; i < 1000; ++i) {
    ReducerHosts reducer_hosts = random_reducer_hosts(random);
    for (ReducerHost& reducer_host : reducer_hosts)
      reducer_host.nic_mbps = std::max(reducer_host.nic_mbps, 1.0);
    const double before = seconds_of(reducer_hosts);
    reducer_hosts.push_back({.is_server = true, .nic_mbps = between(random, 1, 100)});
    EXPECT_LE(seconds_of(reducer_hosts), before * (1 + 1e-9)) << i;
  }
}

TEST(ReducerHostShares, FollowGivenWeights) {
  const auto policy = placement_policy_from("weights:1,1,0.5,2.5");
  ASSERT_TRUE(policy) << policy.status();
  EXPECT_EQ(policy->kind, PolicyKind::kWeights);
  expect_shares(reducer_host_shares(equal_reducer_hosts(3, 1), *policy).value(), {.2, .2, .1, .5});
  const Status misfit = reducer_host_shares(equal_reducer_hosts(2, 1), *policy).status();
  EXPECT_EQ(misfit.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(misfit.message(), "placement: expected 3 weights, for 2 worker machines and 1 servers, got 4");
}

TEST(PlacementPolicy, HasNames) {
  EXPECT_EQ(placement_policy_from("auto")->kind, PolicyKind::kAuto);
  EXPECT_EQ(placement_policy_from("allreduce")->kind, PolicyKind::kAllReduce);
  EXPECT_EQ(placement_policy_from("ps")->kind, PolicyKind::kPs);
}

TEST(PlacementPolicy, SaysWhatIsWrongWithAText) {
  const std::pair<const char*, const char*> cases[] = {
      {"PS", "expected auto, allreduce, ps or weights:..., got 'PS'"},
      {"weights", "expected auto, allreduce, ps or weights:..., got 'weights'"},
      {"weights:", "weight 1 of '': expected a number of 0 or more, got ''"},
      {"weights:1,,2", "weight 2 of '1,,2': expected a number of 0 or more, got ''"},
      {"weights:1,2,", "weight 3 of '1,2,': expected a number of 0 or more, got ''"},
      {"weights:1,-2", "weight 2 of '1,-2': expected a number of 0 or more, got '-2'"},
      {"weights:1 ,2", "weight 1 of '1 ,2': expected a number of 0 or more, got '1 '"},
      {"weights:nan", "weight 1 of 'nan': expected a number of 0 or more, got 'nan'"},
      {"weights:0,0", "the weights '0,0': expected a positive, finite sum, got 0.000000"},
      {"weights:1e308,1e308", "the weights '1e308,1e308': expected a positive, finite sum, got inf"},
  };
  for (const auto& [text, message] : cases) {
    const Status status = placement_policy_from(text).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(status.message(), std::string("placement: ") + message) << text;
  }
}

TEST(PredictedSeconds, AreThoseOfTheBusiestCard) {
  const ReducerHosts reducer_hosts = reducer_hosts_of({8, 8, 4}, {2});  // 1, 1, 0.5 and 0.25 MB/s
  EXPECT_DOUBLE_EQ(predicted_seconds(reducer_hosts, {0, 0, 0, 1}, 1'000'000), 12);
  EXPECT_DOUBLE_EQ(predicted_seconds(reducer_hosts, {.5, .5, 0, 0}, 1'000'000), 2);
  EXPECT_DOUBLE_EQ(predicted_seconds(reducer_hosts, {0, 0, 1, 0}, 1'000'000), 4);
  EXPECT_EQ(predicted_seconds(reducer_hosts, {0, 0, 1, 0}, 0), 0);
}

// Machines of 1 MB/s, and a server on the second one.
TEST(PredictedSeconds, CountWhatAGuestSumsAsItsMachines) {
  ReducerHosts reducer_hosts = reducer_hosts_of({8, 8, 8}, {8});
  reducer_hosts[3].host = 1;
  EXPECT_DOUBLE_EQ(predicted_seconds(reducer_hosts, {0, 0, 0, 1}, 1'000'000), 2);
  EXPECT_DOUBLE_EQ(predicted_seconds(reducer_hosts, {0, .25, .25, .5}, 1'000'000), 1.75);
  EXPECT_DOUBLE_EQ(predicted_seconds(reducer_hosts, {0, .75, .25, 0}, 1'000'000), 1.75);
}

// The largest distances of a reducer host's bytes from its share, in partitions.
struct Distance {
  double of_prefixes = 0;
  double of_intervals = 0;
};

Distance worst_distance(const Shares& shares, const std::vector<uint64_t>& sizes) {
  Placer placer(shares);
  const auto largest = static_cast<double>(*std::max_element(sizes.begin(), sizes.end()));
  uint64_t total = 0;
  // Extremes over all prefixes, the empty one included: two prefixes differ by an interval.
  std::vector<double> most(shares.size(), 0);
  std::vector<double> least(shares.size(), 0);
  Distance worst;
  for (const uint64_t size : sizes) {
    const uint16_t reducer_host = placer.place(size);
    EXPECT_GT(shares[reducer_host], 0) << "reducer host " << reducer_host;
    total += size;
    for (size_t i = 0; i < shares.size(); ++i) {
      const double due = shares[i] * static_cast<double>(total);
      const double ahead = (static_cast<double>(placer.placed_bytes()[i]) - due) / largest;
      most[i] = std::max(most[i], ahead);
      least[i] = std::min(least[i], ahead);
      worst.of_prefixes = std::max(worst.of_prefixes, std::abs(ahead));
      worst.of_intervals = std::max({worst.of_intervals, most[i] - ahead, ahead - least[i]});
    }
  }
  EXPECT_EQ(std::accumulate(placer.placed_bytes().begin(), placer.placed_bytes().end(), uint64_t{0}), total);
  return worst;
}

void expect_even(const Shares& shares, Random& random, const std::string& what) {
  std::vector<uint64_t> sizes(400, 4096);
  for (const char* which : {", equal sizes", ", mixed sizes"}) {
    const Distance distance = worst_distance(shares, sizes);
    EXPECT_LT(distance.of_prefixes, 1 + 1e-9) << what << which;
    EXPECT_LT(distance.of_intervals, 2 + 1e-9) << what << which;
    for (uint64_t& size : sizes) size = random() % 3 == 0 ? 1 + random() % 4096 : 4096;
  }
}

TEST(Placer, StaysCloseToTheSharesInEveryRunOfPartitions) {
  Random random(4);
  for (size_t n = 1; n <= 16; ++n) {
    for (size_t k = 0; k <= n + 1; ++k)
      expect_even(shares_of(equal_reducer_hosts(n, k)), random, std::to_string(n) + ", " + std::to_string(k));
  }
  expect_even(shares_of(reducer_hosts_of({200, 200, 100, 200}, {200, 200})), random, "one slow machine");
  expect_even(shares_of(reducer_hosts_of({100, 100, 100, 100}, {400, 100})), random, "one fast server");
  for (int i = 0; i < 300; ++i)
    expect_even(random_shares(random, count_between(random, 1, 24)), random, "random " + std::to_string(i));
}

TEST(Placer, IsDeterministic) {
  Placer one(shares_of(equal_reducer_hosts(5, 2)));
  Placer other(shares_of(equal_reducer_hosts(5, 2)));
  for (uint64_t i = 0; i < 1000; ++i) ASSERT_EQ(one.place(i * 37 % 4096), other.place(i * 37 % 4096));
}

TEST(Placer, EmptyPartitionsTakeTurns) {
  Placer placer(shares_of(equal_reducer_hosts(2, 0)));
  const uint16_t first = placer.place(0);
  EXPECT_NE(placer.place(0), first);
}

}  // namespace
}  // namespace byteps::protocol
