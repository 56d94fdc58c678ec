#include "protocol/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace byteps::protocol {
namespace {

using Shares = std::vector<double>;

void expect_shares(const Shares& got, const Shares& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-12) << "service " << i;
}

TEST(ServiceShares, FollowTheOptimum) {
  using enum PlacementPolicy;
  expect_shares(service_shares(2, 0, kAuto), {0.5, 0.5});
  expect_shares(service_shares(2, 1, kAuto), {0.25, 0.25, 0.5});  // D = 4
  expect_shares(service_shares(4, 1, kAuto), {3. / 18, 3. / 18, 3. / 18, 3. / 18, 6. / 18});
  expect_shares(service_shares(4, 2, kAuto), {.1, .1, .1, .1, .3, .3});  // D = 20
  expect_shares(service_shares(2, 2, kAuto), {0, 0, 0.5, 0.5});
  expect_shares(service_shares(2, 4, kAuto), {0, 0, 0.25, 0.25, 0.25, 0.25});
  expect_shares(service_shares(1, 0, kAuto), {1});
  expect_shares(service_shares(1, 1, kAuto), {1, 0});
  expect_shares(service_shares(1, 3, kAuto), {1, 0, 0, 0});
  expect_shares(service_shares(2, 2, kAllReduce), {0.5, 0.5, 0, 0});
  expect_shares(service_shares(4, 1, kPs), {0, 0, 0, 0, 1});
  expect_shares(service_shares(1, 1, kPs), {0, 1});
  expect_shares(service_shares(2, 0, kPs), {0.5, 0.5});
}

// Traffic of a NIC, one way, for M = 1: a worker sends its own M and, for its share m, the results to n - 1 others
// but not its own share; a server sends n times its share. The optimum is where no NIC is busier than the bound.
TEST(ServiceShares, NoNicIsBusierThanTheBound) {
  for (uint32_t n = 2; n <= 16; ++n) {
    for (uint32_t k = 0; k <= n; ++k) {
      const Shares shares = service_shares(n, k, PlacementPolicy::kAuto);
      EXPECT_NEAR(std::accumulate(shares.begin(), shares.end(), 0.0), 1, 1e-12);
      const double bound = 2.0 * n * (n - 1) / (1.0 * n * n + 1.0 * k * n - 2.0 * k);
      for (uint32_t i = 0; i < n; ++i) EXPECT_LE(1 + (n - 2.0) * shares[i], bound + 1e-12) << n << ", " << k;
      for (uint32_t i = n; i < n + k; ++i) EXPECT_LE(n * shares[i], bound + 1e-12) << n << ", " << k;
    }
  }
}

TEST(ServiceShares, PoliciesHaveNames) {
  EXPECT_EQ(placement_policy_from("auto").value(), PlacementPolicy::kAuto);
  EXPECT_EQ(placement_policy_from("allreduce").value(), PlacementPolicy::kAllReduce);
  EXPECT_EQ(placement_policy_from("ps").value(), PlacementPolicy::kPs);
  EXPECT_EQ(placement_policy_from("PS").status().code(), StatusCode::kInvalidArgument);
}

// How far each service's bytes are from its share of all bytes at the worst moment, in partitions.
double worst_distance(const Shares& shares, const std::vector<uint64_t>& sizes) {
  Placer placer(shares);
  uint64_t total = 0;
  uint64_t largest = 0;
  double worst = 0;
  for (uint64_t size : sizes) {
    const uint16_t service = placer.place(size);
    EXPECT_GT(shares[service], 0) << "service " << service;
    total += size;
    largest = std::max(largest, size);
    for (size_t i = 0; i < shares.size(); ++i) {
      const double due = shares[i] * static_cast<double>(total);
      const double distance = std::abs(static_cast<double>(placer.placed_bytes()[i]) - due);
      worst = std::max(worst, distance / static_cast<double>(largest));
    }
  }
  EXPECT_EQ(std::accumulate(placer.placed_bytes().begin(), placer.placed_bytes().end(), uint64_t{0}), total);
  return worst;
}

TEST(Placer, StaysWithinOnePartitionOfTheSharesAtEveryMoment) {
  std::mt19937_64 random(1);
  for (uint32_t n = 1; n <= 16; ++n) {
    for (uint32_t k = 0; k <= n + 1; ++k) {
      const Shares shares = service_shares(n, k, PlacementPolicy::kAuto);
      EXPECT_LT(worst_distance(shares, std::vector<uint64_t>(200, 4096)), 1 + 1e-9) << n << ", " << k;
      std::vector<uint64_t> sizes(200);
      for (uint64_t& size : sizes) size = random() % 3 == 0 ? 1 + random() % 4096 : 4096;
      EXPECT_LT(worst_distance(shares, sizes), 1 + 1e-9) << n << ", " << k << ", mixed sizes";
    }
  }
}

TEST(Placer, IsDeterministic) {
  Placer one(service_shares(5, 2, PlacementPolicy::kAuto));
  Placer other(service_shares(5, 2, PlacementPolicy::kAuto));
  for (uint64_t i = 0; i < 1000; ++i) ASSERT_EQ(one.place(i * 37 % 4096), other.place(i * 37 % 4096));
}

TEST(Placer, EmptyPartitionsTakeTurns) {
  Placer placer(service_shares(2, 0, PlacementPolicy::kAuto));
  const uint16_t first = placer.place(0);
  EXPECT_NE(placer.place(0), first);
}

}  // namespace
}  // namespace byteps::protocol
