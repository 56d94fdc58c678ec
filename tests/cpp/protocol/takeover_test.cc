// Rounds that begin again at the successor of a lost root: Aggregator and Takeover together, as a
// reduction level uses them.
#include "protocol/takeover.h"

#include <map>
#include <optional>

#include "protocol/aggregation_harness.h"

namespace byteps::protocol {
namespace {

class TakeoverTest : public testing::Test {
 protected:
  void contribute(uint32_t rank, uint64_t round, DataType type = DataType::kMoved, TimeUs now = 0) {
    DataHead head = head_of(rank, round);
    head.type = type;
    const auto verdict = aggregator_.admit(head, rank, head.bytes);
    ASSERT_TRUE(verdict.is_ok()) << verdict.status();
    ASSERT_EQ(*verdict, Aggregator::Verdict::kAccept);
    collect([&](AggregationActions& actions) { aggregator_.on_contribution(head, rank, now, actions); }, now);
  }
  void holds(uint32_t rank, uint64_t round) {
    collect([&](AggregationActions& actions) {
      aggregator_.on_holds(key_of(1), round, rank, actions);
      takeover_.on_holds(head_of(rank, round), actions);
    });
  }
  void lingers(uint32_t rank) {
    collect([&](AggregationActions& actions) {
      aggregator_.on_child_lingers(rank, unavailable("rank " + std::to_string(rank) + " has left"), actions);
    });
  }
  void gone(uint32_t rank) {
    collect([&](AggregationActions& actions) {
      aggregator_.on_child_gone(rank, unavailable("rank " + std::to_string(rank) + " is gone"), actions);
    });
  }
  void expect_failed(const std::vector<uint32_t>& children, uint64_t round, const std::string& why) {
    ASSERT_EQ(failed_.size(), 1u);
    EXPECT_EQ(failed_[0].children, children);
    EXPECT_EQ(failed_[0].head.round, round);
    EXPECT_EQ(failed_[0].status.message(), why);
  }
  template <typename Body>
  void collect(Body body, TimeUs now = 0) {
    AggregationActions actions;
    body(actions);
    for (size_t i = 0; i < actions.size(); ++i) {
      if (!std::holds_alternative<Park>(actions[i])) continue;
      const Park park = std::get<Park>(actions[i]);
      takeover_.park(park.head, park.children, now, actions);
    }
    completed_.reset();
    fetched_.reset();
    failed_.clear();
    for (const AggregationAction& action : actions) {
      if (const auto* complete = std::get_if<Complete>(&action)) {
        completed_ = complete->head.round;
        takeover_.on_complete(complete->head.key, complete->head.round);
      }
      if (const auto* fetch = std::get_if<Fetch>(&action)) fetched_ = *fetch;
      if (const auto* fail = std::get_if<Fail>(&action)) failed_.push_back(*fail);
    }
  }
  void expect_fetched(uint32_t rank, uint64_t round) {
    ASSERT_TRUE(fetched_);
    EXPECT_EQ(fetched_->rank, rank);
    EXPECT_EQ(fetched_->head.round, round);
    EXPECT_EQ(fetched_->head.type, DataType::kFetch);
    EXPECT_TRUE(takeover_.expects(head_of(rank, round)));
  }

  const Children children_ = ranks({"rank 0 (a)", "rank 1 (b)", "rank 2 (c)"});
  Aggregator aggregator_{children_, {kStallUs, kRoundLimitUs}};
  Takeover takeover_{children_, {kStallUs, kRoundLimitUs}};
  std::optional<uint64_t> completed_;
  std::optional<Fetch> fetched_;
  std::vector<Fail> failed_;
};

TEST_F(TakeoverTest, ARoundThatNobodyHasAnOutcomeOfIsSummed) {
  for (const uint32_t rank : {0u, 1u, 2u}) holds(rank, 4);
  contribute(0, 5);
  contribute(1, 5);
  contribute(2, 5);
  EXPECT_EQ(completed_, 5u);
}

TEST_F(TakeoverTest, ContributionsThatComeBeforeTheRankThatHoldsTheResultGetIt) {
  contribute(1, 5);
  contribute(2, 5);
  EXPECT_FALSE(fetched_);
  holds(0, 5);
  expect_fetched(0, 5);
  EXPECT_EQ(takeover_.take(head_of(0, 5)), (std::vector<uint32_t>{1, 2}));
}

TEST_F(TakeoverTest, ContributionsThatComeLaterGetItToo) {
  holds(0, 5);
  contribute(1, 5);
  expect_fetched(0, 5);
  contribute(2, 5);
  EXPECT_FALSE(fetched_) << "once is enough";
  EXPECT_EQ(takeover_.take(head_of(0, 5)), (std::vector<uint32_t>{1, 2}));
  EXPECT_FALSE(takeover_.expects(head_of(0, 5)));
}

TEST_F(TakeoverTest, AContributionAfterTheResultHasComeFetchesItAgain) {
  holds(0, 5);
  contribute(1, 5);
  EXPECT_EQ(takeover_.take(head_of(0, 5)), (std::vector<uint32_t>{1}));
  contribute(2, 5);
  expect_fetched(0, 5);
}

TEST_F(TakeoverTest, TheNextRoundGathersMeanwhile) {
  contribute(1, 5);
  contribute(0, 6, DataType::kPushPull);  // with another placement, so before its kHolds
  EXPECT_TRUE(failed_.empty()) << "it has not skipped round 5";
  contribute(2, 5);
  holds(0, 5);
  expect_fetched(0, 5);
  EXPECT_EQ(takeover_.take(head_of(0, 5)), (std::vector<uint32_t>{1, 2}));
  contribute(1, 6, DataType::kPushPull);
  contribute(2, 6, DataType::kPushPull);
  EXPECT_EQ(completed_, 6u);
}

TEST_F(TakeoverTest, WithoutALossARankThatGoesOnHasSkippedTheRound) {
  contribute(1, 5, DataType::kPushPull);
  contribute(0, 6, DataType::kPushPull);
  ASSERT_EQ(failed_.size(), 1u);
  EXPECT_EQ(failed_[0].status.code(), StatusCode::kAborted);
}

TEST_F(TakeoverTest, NothingIsKeptOnceAllHaveGoneOn) {
  holds(0, 5);
  for (const uint32_t rank : {1u, 2u}) contribute(rank, 5);
  takeover_.take(head_of(0, 5));
  for (const uint32_t rank : {0u, 1u, 2u}) contribute(rank, 6, DataType::kPushPull);
  ASSERT_EQ(completed_, 6u);
  EXPECT_EQ(takeover_.size(), 0u);
}

// A rank ends with a result of a root that is lost a moment later; the others hear of its end before
// it tells their new root what it has.
TEST_F(TakeoverTest, ARankThatLingersIsWaitedForAsItMayHaveTheResult) {
  lingers(0);
  contribute(1, 5);
  EXPECT_TRUE(failed_.empty());
  holds(0, 5);
  expect_fetched(0, 5);
}

TEST_F(TakeoverTest, ARoundThatBeganAfterALossWaitsForARankThatLingersLater) {
  contribute(1, 5);
  lingers(0);
  EXPECT_TRUE(failed_.empty());
  holds(0, 5);
  expect_fetched(0, 5);
}

TEST_F(TakeoverTest, ARankThatLingeredWithoutTheResultFailsTheRoundWhenItIsGone) {
  lingers(0);
  contribute(1, 5);
  contribute(2, 5);
  EXPECT_TRUE(failed_.empty());
  gone(0);
  expect_failed({1, 2}, 5, "rank 0 is gone");
  gone(0);
  EXPECT_TRUE(failed_.empty());
}

// Nobody can have the result of a round that this rank has not contributed to before.
TEST_F(TakeoverTest, AFirstContributionThatLacksARankThatLingersFailsTheRound) {
  lingers(0);
  contribute(1, 5);
  DataHead head = head_of(2, 5);
  collect([&](AggregationActions& actions) { aggregator_.on_contribution(head, 2, 0, actions); });
  expect_failed({1, 2}, 5, "rank 0 has left");
}

TEST_F(TakeoverTest, WithoutALossARankThatLingersFailsRoundsAsOneThatIsGone) {
  contribute(1, 5, DataType::kPushPull);
  lingers(0);
  expect_failed({1}, 5, "rank 0 has left");
}

TEST_F(TakeoverTest, AnotherRankIsAskedIfTheFirstOneGoes) {
  holds(0, 5);
  holds(1, 5);
  contribute(2, 5);
  expect_fetched(0, 5);
  collect([&](AggregationActions& actions) { takeover_.on_rank_gone(0, actions); });
  expect_fetched(1, 5);
  collect([&](AggregationActions& actions) { takeover_.on_rank_gone(1, actions); });
  ASSERT_EQ(failed_.size(), 1u);
  EXPECT_EQ(failed_[0].children, (std::vector<uint32_t>{2}));
  EXPECT_EQ(failed_[0].status.message(), "rank 1 (b), which has the result, has left the job");
}

TEST_F(TakeoverTest, AChildThatWaitsIsRemembered) {
  holds(0, 5);
  EXPECT_FALSE(takeover_.waits(key_of(1), 2));
  contribute(2, 5);
  EXPECT_TRUE(takeover_.waits(key_of(1), 2));
  EXPECT_FALSE(takeover_.waits(key_of(1), 1));
  takeover_.forget(key_of(1));
  EXPECT_TRUE(takeover_.waits(key_of(1), 2)) << "no child in order forgets a key that it waits for";
  takeover_.take(head_of(0, 5));
  EXPECT_FALSE(takeover_.waits(key_of(1), 2));
  takeover_.forget(key_of(1));
  EXPECT_EQ(takeover_.size(), 0u);
}

TEST_F(TakeoverTest, AFailedTensorFailsTheRoundsThatWait) {
  holds(0, 5);
  contribute(2, 5);
  collect([&](AggregationActions& actions) { takeover_.fail_tensor(2, 9, aborted("x"), actions); });
  EXPECT_TRUE(failed_.empty()) << "another name";
  collect([&](AggregationActions& actions) { takeover_.fail_tensor(1, 4, aborted("x"), actions); });
  EXPECT_TRUE(failed_.empty()) << "an earlier round";
  collect([&](AggregationActions& actions) { takeover_.fail_tensor(1, 5, aborted("refused"), actions); });
  ASSERT_EQ(failed_.size(), 1u);
  EXPECT_FALSE(takeover_.expects(head_of(0, 5)));
}

TEST_F(TakeoverTest, AResultThatDoesNotComeIsWaitedForUntilTheTimeout) {
  holds(0, 5);
  contribute(2, 5, DataType::kMoved, 7);
  EXPECT_EQ(takeover_.next_tick_us(), 7 + kStallUs);
  collect([&](AggregationActions& actions) { takeover_.on_tick(7 + kStallUs, actions); });
  EXPECT_TRUE(failed_.empty());
  collect([&](AggregationActions& actions) { takeover_.on_tick(7 + kRoundLimitUs, actions); });
  ASSERT_EQ(failed_.size(), 1u);
  EXPECT_EQ(failed_[0].status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(failed_[0].status.message().find("rank 0 (a)"), std::string::npos) << failed_[0].status;
}

TEST_F(TakeoverTest, WhenAnotherServerIsLostItIsWaitedForAnew) {
  holds(0, 5);
  contribute(2, 5, DataType::kMoved, 7);
  takeover_.restart_waits(100);
  EXPECT_EQ(takeover_.next_tick_us(), 100 + kStallUs);
  collect([&](AggregationActions& actions) { takeover_.on_tick(7 + kRoundLimitUs, actions); });
  EXPECT_TRUE(failed_.empty());
  collect([&](AggregationActions& actions) { takeover_.on_tick(100 + kRoundLimitUs, actions); });
  EXPECT_EQ(failed_.size(), 1u);
}

}  // namespace
}  // namespace byteps::protocol
