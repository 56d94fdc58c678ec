// Shared by the tests of PushPullTable.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "protocol/push_pull_table.h"

namespace byteps::protocol {

inline constexpr uint32_t kRank = 1;
inline constexpr uint16_t kReducerHosts = 3;

// Two workers on machines of their own, and a server; each with two shards.
inline Tree two_workers_and_a_server() {
  std::vector<NodeInfo> nodes(3);
  for (size_t i = 0; i < nodes.size(); ++i) {
    nodes[i].machine = std::to_string(i);
    nodes[i].endpoints = {{"tcp", {"a", "b"}}};
  }
  return {nodes, 2};
}

// A table, and the actions of the last call by type.
class PushPullTableTest : public testing::Test {
 protected:
  Status start(Handle handle, const std::string& name, uint64_t bytes = 8, ReduceOp op = ReduceOp::kSum,
               uint32_t root = 0) {
    TableActions actions;
    Status status = table_.start(handle, {name, DType::kFloat32, bytes, op, root, 7}, actions);
    sort(actions);
    return status;
  }
  Status declare(const std::string& name, uint64_t bytes) {
    TableActions actions;
    Status status = table_.declare(name, DType::kFloat32, bytes, actions);
    sort(actions);
    return status;
  }
  Status place(const std::string& name, uint32_t number, const std::vector<uint16_t>& reducer_hosts) {
    std::vector<RootLocation> locations;
    for (const uint16_t reducer_host : reducer_hosts) locations.push_back({reducer_host, 1});
    TableActions actions;
    Status status = table_.on_placed({name, number, std::move(locations)}, actions);
    sort(actions);
    return status;
  }
  void refuse(const std::string& name, const std::string& why) {
    TableActions actions;
    table_.on_refused({name, 9, StatusCode::kInvalidArgument, why}, actions);
    sort(actions);
  }
  void complete(Handle handle, const Result<Plan>& outcome = Plan{}) {
    TableActions actions;
    table_.complete(handle, outcome, actions);
    sort(actions);
  }
  void fail(const Status& why) {
    TableActions actions;
    table_.fail(why, actions);
    sort(actions);
  }
  void sort(const TableActions& actions) {
    declared_.clear();
    told_.clear();
    started_.clear();
    failed_.clear();
    finished_.clear();
    forgotten_.clear();
    for (const TableAction& action : actions) {
      if (const auto* send = std::get_if<SendDeclare>(&action)) declared_.push_back(send->declare);
      if (const auto* send = std::get_if<SendRoundFailed>(&action)) told_.push_back(send->failed);
      if (const auto* send = std::get_if<SendForget>(&action))
        forgotten_.insert(forgotten_.end(), send->forget.names.begin(), send->forget.names.end());
      if (const auto* start = std::get_if<StartPartition>(&action)) started_.push_back(*start);
      if (const auto* fail = std::get_if<FailPartition>(&action)) failed_.push_back(*fail);
      if (const auto* finish = std::get_if<FinishHandle>(&action)) finished_.push_back(*finish);
    }
  }

  PushPullTable table_{kRank, two_workers_and_a_server(), PartitionRule({}, 4096)};
  std::vector<RoundFailed> told_;  // actions of the last call, like those below
  std::vector<Declare> declared_;
  std::vector<StartPartition> started_;
  std::vector<FailPartition> failed_;
  std::vector<FinishHandle> finished_;
  std::vector<ForgottenName> forgotten_;
};

}  // namespace byteps::protocol
