#include "kernels/parallel.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>
#include <vector>

namespace byteps::kernels {
namespace {

constexpr size_t kCount = (200 << 10) + 3;  // two inputs of float64: large enough to be shared

std::vector<double> random_numbers(uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<double> values(kCount);
  for (double& value : values) value = static_cast<double>(random()) * 0x1p-20 / 3;
  return values;
}

class TeamTest : public testing::Test {
 protected:
  std::vector<double> sum_by(Team& team) const {
    std::vector<double> dst(kCount);
    team.reduce_n(kSum, dst.data(), srcs_, kCount);
    return dst;
  }

  static constexpr Reduction kSum{.dtype = DType::kFloat64, .op = ReduceOp::kSum};
  const std::vector<double> a_ = random_numbers(1);
  const std::vector<double> b_ = random_numbers(2);
  const std::vector<const void*> srcs_ = {a_.data(), b_.data()};
};

TEST_F(TeamTest, any_number_of_threads_gives_the_same_bits) {
  std::vector<double> expected(kCount);
  reduce_n(kSum, expected.data(), srcs_, kCount);
  ASSERT_EQ(expected[kCount - 1], a_[kCount - 1] + b_[kCount - 1]);
  for (int threads : {1, 2, 3, 5}) {
    Team team(threads);
    EXPECT_EQ(team.threads(), threads);
    EXPECT_TRUE(sum_by(team) == expected) << threads;
  }
}

TEST_F(TeamTest, arrays_too_small_to_share_are_summed_too) {
  Team team(3);
  std::vector<double> dst(7);
  team.reduce_n(kSum, dst.data(), srcs_, dst.size());
  for (size_t i = 0; i < dst.size(); ++i) EXPECT_EQ(dst[i], a_[i] + b_[i]);
}

TEST_F(TeamTest, works_in_place) {
  Team team(2);
  std::vector<double> dst = a_;
  const std::vector<const void*> srcs = {dst.data(), b_.data()};
  team.reduce_n(kSum, dst.data(), srcs, kCount);
  EXPECT_TRUE(dst == sum_by(team));
}

TEST_F(TeamTest, serves_one_job_after_the_other) {
  Team team(3);
  const std::vector<double> expected = sum_by(team);
  std::vector<double> dst(kCount);
  for (int round = 0; round < 30; ++round) {
    std::fill(dst.begin(), dst.end(), 0.0);
    team.reduce_n(kSum, dst.data(), srcs_, kCount);
    ASSERT_TRUE(dst == expected) << round;
  }
}

TEST_F(TeamTest, serves_several_callers_at_once) {
  Team team(2);
  const std::vector<double> expected = sum_by(team);
  std::vector<std::thread> callers;
  std::vector<int> wrong(3);
  for (int& count : wrong) {
    callers.emplace_back([&] {
      for (int round = 0; round < 5; ++round) count += sum_by(team) == expected ? 0 : 1;
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, std::vector<int>(3, 0));
}

TEST(Team, can_go_without_having_worked) { Team team(4); }

}  // namespace
}  // namespace byteps::kernels
