// Shared by the tests of Aggregator.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "protocol/aggregation.h"

namespace byteps::protocol {

using Verdict = Aggregator::Verdict;

inline constexpr TimeUs kStallUs = 10;
inline constexpr TimeUs kRoundLimitUs = 100;

// A key of the name with this number.
inline Key key_of(uint32_t number, uint32_t partition = 0) { return {key_tensor(number, 0), partition}; }

inline DataHead head_of(uint32_t rank, uint64_t round, Key key = key_of(1)) {
  DataHead head;
  head.type = DataType::kPushPull;
  head.key = key;
  head.round = round;
  head.rank = rank;
  head.bytes = 16;
  return head;
}

// Children that each stand for one rank.
inline Children ranks(std::vector<std::string> describe) {
  Children children{std::move(describe), {}};
  for (size_t i = 0; i < children.describe.size(); ++i) children.of_rank.push_back(static_cast<int32_t>(i));
  return children;
}

// An aggregator of three ranks, with the actions of the last call.
class AggregatorTest : public testing::Test {
 protected:
  Result<Verdict> admit(const DataHead& head) {
    const bool has_payload = head.op != ReduceOp::kBroadcast || head.rank == head.root;
    return aggregator_.admit(head, head.rank, has_payload ? head.bytes : 0);
  }
  // Admission and payload at once. The verdict must not be an error.
  Verdict contribute(const DataHead& head, TimeUs now = 0) {
    const auto verdict = admit(head);
    EXPECT_TRUE(verdict.is_ok()) << verdict.status();
    collect([&](AggregationActions& actions) {
      if (*verdict != Verdict::kRepeat) aggregator_.on_contribution(head, head.rank, now, actions);
    });
    return *verdict;
  }
  Verdict contribute(uint32_t rank, uint64_t round, TimeUs now = 0) {
    return contribute(head_of(rank, round), now);
  }
  void gone(uint32_t rank, const Status& why) {
    collect([&](AggregationActions& actions) { aggregator_.on_child_gone(rank, why, actions); });
  }
  // The child reports that it cannot contribute.
  void give_up(uint32_t child, uint32_t round, const Status& why) {
    DataHead head = head_of(child, round);
    head.type = DataType::kFailed;
    head.code = why.code();
    const auto verdict = aggregator_.admit(head, child, why.message().size());
    ASSERT_TRUE(verdict.is_ok()) << verdict.status();
    collect([&](AggregationActions& actions) {
      if (*verdict != Verdict::kRepeat) aggregator_.on_failed_contribution(head, child, why, actions);
    });
  }
  void tick(TimeUs now) {
    collect([&](AggregationActions& actions) { aggregator_.on_tick(now, actions); });
  }

  template <typename Body>
  void collect(Body body) {
    AggregationActions actions;
    body(actions);
    completed_.clear();
    failed_.clear();
    stalled_.clear();
    for (const AggregationAction& action : actions) {
      if (const auto* complete = std::get_if<Complete>(&action)) completed_.push_back(complete->head);
      if (const auto* fail = std::get_if<Fail>(&action)) failed_.push_back(*fail);
      if (const auto* stalled = std::get_if<Stalled>(&action)) stalled_.push_back(stalled->describe());
    }
  }
  void expect_failed(const std::vector<uint32_t>& children, uint32_t round, const std::string& says) {
    ASSERT_EQ(failed_.size(), 1u);
    EXPECT_EQ(failed_[0].children, children);
    EXPECT_EQ(failed_[0].head.round, round);
    EXPECT_NE(failed_[0].status.message().find(says), std::string::npos) << failed_[0].status;
  }

  Aggregator aggregator_{ranks({"rank 0 (a)", "rank 1 (b)", "rank 2 (c)"}), {kStallUs, kRoundLimitUs}};
  std::vector<DataHead> completed_;
  std::vector<Fail> failed_;
  std::vector<std::string> stalled_;
};

}  // namespace byteps::protocol
