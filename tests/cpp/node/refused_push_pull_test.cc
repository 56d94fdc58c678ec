// A push_pull that one rank refuses, and the errors of the other ranks.
#include <gtest/gtest.h>

#include "support/job.h"

namespace byteps::node {
namespace {

// The next call follows at once, before the scheduler can tell the services the cause.
TEST(RefusedPushPullTest, TheOthersHearTheCauseThoughTheNextOneFollowsAtOnce) {
  for (const int servers : {0, 1}) {
    for (const int ranks_per_machine : {1, 2}) {
      Job job({.workers = 4, .servers = servers, .ranks_per_machine = ranks_per_machine, .adjust = nullptr});
      ASSERT_TRUE(job.all_started());
      job.on_all([](int rank, Node& node) {
        std::vector<int64_t> values(1000, rank);
        ASSERT_TRUE(push_pull(node, "x", values, DType::kInt64).is_ok());
        for (int round = 0; round < 50; ++round) {
          if (rank == 3) {
            node.refuse("x", 0, invalid_argument("KeyError: 'label'"));
          } else {
            const Status status = push_pull(node, "x", values, DType::kInt64);
            EXPECT_NE(status.message().find("rank 3 (host "), std::string::npos) << status;
            EXPECT_NE(status.message().find("KeyError: 'label'"), std::string::npos) << status;
          }
          values.assign(1000, 10 * round + rank);
          ASSERT_TRUE(push_pull(node, "x", values, DType::kInt64).is_ok());
          EXPECT_EQ(values.front(), 4 * 10 * round + 6);
        }
      });
    }
  }
}

TEST(RefusedPushPullTest, AStepThatARankHasLeftOutDoesNotShiftTheNext) {
  Job job({.workers = 3, .servers = 1, .adjust = nullptr});
  ASSERT_TRUE(job.all_started());
  job.on_all([](int rank, Node& node) {
    for (uint64_t step = 1; step <= 20; ++step) {
      std::vector<int64_t> values(20'000, static_cast<int64_t>(10 * step) + rank);
      const bool is_broken = step % 5 == 0;
      if (is_broken && rank == 2) continue;
      auto* data = reinterpret_cast<std::byte*>(values.data());
      const auto handle = node.push_pull(
          {.name = "x", .dtype = DType::kInt64, .bytes = values.size() * 8, .step = step}, {data, data});
      ASSERT_TRUE(handle.is_ok()) << handle.status();
      const Status status = node.wait(*handle, now_us() + 60'000'000, [] { return true; });
      // The last one fails because rank 2 leaves the job.
      EXPECT_EQ(status.is_ok(), !is_broken) << "step " << step << ": " << status;
      if (status.is_ok()) {
        EXPECT_EQ(values.back(), static_cast<int64_t>(30 * step) + 3);
      }
    }
    node.shutdown();
  });
}

}  // namespace
}  // namespace byteps::node
