// A job of the largest size that is promised: what its start takes on the scheduler.
#include <gtest/gtest.h>
#include <malloc.h>

#include "protocol/scheduler_harness.h"

namespace byteps::protocol {
namespace {

constexpr uint32_t kNodes = 4096;
constexpr size_t kMostBytes = 200'000'000;

// As of a machine with three transports and four shards.
Join large_join(uint32_t rank) {
  Join join =
      join_of(Role::kWorker, static_cast<int32_t>(rank), "host" + std::to_string(rank) + ".example.org");
  join.num_workers = kNodes;
  join.self.nic_mbps = 100'000;
  for (const char* transport : {"shm", "rdma", "tcp"}) {
    const std::string address = "@byteps-0123456789abcdef-" + std::to_string(rank) + "-";
    join.self.endpoints.push_back({transport, {address + "0", address + "1", address + "2", address + "3"}});
  }
  return join;
}

class LargeJobTest : public testing::Test {
 protected:
  LargeJobTest() {
    for (uint32_t rank = 0; rank < kNodes; ++rank) state_.on_message(rank, large_join(rank), 0, actions_);
  }

  const size_t before_ = mallinfo2().uordblks;  // 0 under the sanitizers
  SchedulerActions actions_;
  SchedulerState state_{{.num_workers = kNodes, .timeout_us = kTimeoutUs, .op_timeout_us = kOpUs}, 0};
};

TEST_F(LargeJobTest, HasTheRosterOnceForAllNodes) {
  ASSERT_EQ(state_.phase(), Phase::kRunning);
  EXPECT_LE(mallinfo2().uordblks - before_, kMostBytes);
  const auto is_roster = [](const auto& action) { return std::holds_alternative<SendRoster>(action); };
  ASSERT_EQ(std::ranges::count_if(actions_, is_roster), 1);
  const auto& send = std::get<SendRoster>(*std::ranges::find_if(actions_, is_roster));
  ASSERT_EQ(send.peers.size(), kNodes);
  EXPECT_EQ(send.peers[kNodes - 1], kNodes - 1);
  EXPECT_LE(encode(send.roster).payload.size(), kMaxRosterBytes);
}

// Each rank forgets all that it has declared, the last one in the end.
TEST_F(LargeJobTest, TakesLittleMemoryForNamesThatSomeRanksHaveForgotten) {
  for (int i = 0; i < 1000; ++i) {
    const std::string name = "layer" + std::to_string(i) + ".weight";
    for (uint32_t rank = 0; rank < kNodes; ++rank) {
      actions_.clear();
      state_.on_message(rank, Declare{name, DType::kFloat32, 4096}, 0, actions_);
      if (rank > 0) state_.on_message(rank, Forget{{{name, 1, 0, {}}}}, 0, actions_);
    }
  }
  EXPECT_LE(mallinfo2().uordblks - before_, kMostBytes);
  Forget all;
  for (int i = 0; i < 1000; ++i) all.names.push_back({"layer" + std::to_string(i) + ".weight", 1, 0, {}});
  actions_.clear();
  state_.on_message(0, all, 0, actions_);
  ASSERT_EQ(actions_.size(), kNodes) << "all nodes are told";
  EXPECT_EQ(std::get<Forgotten>(std::get<SendTo>(actions_[7]).message).keys.size(), 2000u);
}

}  // namespace
}  // namespace byteps::protocol
