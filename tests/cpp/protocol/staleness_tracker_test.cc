#include "protocol/staleness_tracker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace byteps::protocol {
namespace {

using Verdict = StalenessTracker::Verdict;

constexpr TimeUs kStallUs = 10;
constexpr TimeUs kUpdateLimitUs = 100;
constexpr uint32_t kSenders = 3;

// A tracker of three ranks, with the actions of the last call.
class StalenessTrackerTest : public testing::Test {
 protected:
  DataHead head_of(uint32_t rank, uint32_t round, ReduceOp op = ReduceOp::kAccumulate) const {
    DataHead head;
    head.type = DataType::kPushPull;
    head.key = {key_tensor(1, 0), 0};
    head.op = op;
    head.staleness = staleness_;
    head.round = round;
    head.rank = rank;
    head.bytes = 16;
    return head;
  }
  // Admission and payload at once. The verdict must not be an error.
  Verdict contribute(const DataHead& head, TimeUs now = 0) {
    const auto verdict = tracker_.admit(head, has_values(head) ? head.bytes : 0);
    EXPECT_TRUE(verdict.is_ok()) << verdict.status();
    collect([&](StalenessActions& actions) {
      if (*verdict != Verdict::kRepeat) tracker_.on_contribution(head, now, actions);
    });
    return *verdict;
  }
  Verdict seed(uint32_t rank, TimeUs now = 0) { return contribute(head_of(rank, 1, ReduceOp::kSeed), now); }
  Verdict add(uint32_t rank, uint32_t round, TimeUs now = 0) { return contribute(head_of(rank, round), now); }
  void all_seed() {
    for (uint32_t rank = 0; rank < kSenders; ++rank) seed(rank);
  }
  void tick(TimeUs now) {
    collect([&](StalenessActions& actions) { tracker_.on_tick(now, actions); });
  }
  void gone(uint32_t rank) {
    collect(
        [&](StalenessActions& actions) { tracker_.on_child_gone(rank, unavailable("rank left"), actions); });
  }
  std::string refusal_of(const DataHead& head, uint64_t payload_bytes) {
    const auto verdict = tracker_.admit(head, payload_bytes);
    return verdict ? "" : verdict.status().message();
  }

  template <typename Body>
  void collect(Body body) {
    StalenessActions actions;
    body(actions);
    first_values_.clear();
    answered_.clear();
    answers_ = 0;
    were_again_ = false;
    failed_.clear();
    stalled_.clear();
    for (const StalenessAction& action : actions) {
      if (const auto* first = std::get_if<StoreFirstValue>(&action))
        first_values_.push_back(first->head.rank);
      if (const auto* answer = std::get_if<Answer>(&action)) {
        ++answers_;
        were_again_ = answer->is_again;
        for (const DataHead& head : answer->heads) answered_.emplace_back(head.rank, head.round);
      }
      if (const auto* fail = std::get_if<Fail>(&action))
        failed_[fail->children.at(0)] = fail->status.message();
      if (const auto* stalled = std::get_if<Stalled>(&action)) stalled_.push_back(stalled->describe());
    }
  }

  using Answered = std::vector<std::pair<uint32_t, uint32_t>>;  // rank, round

  uint8_t staleness_ = 0;
  StalenessTracker tracker_{each_rank({"rank 0 (a)", "rank 1 (b)", "rank 2 (c)"}),
                            {kStallUs, kUpdateLimitUs}};
  std::vector<uint32_t> first_values_;
  Answered answered_;
  int answers_ = 0;
  bool were_again_ = false;                 // Answer::is_again of the last one
  std::map<uint32_t, std::string> failed_;  // key: rank
  std::vector<std::string> stalled_;
};

TEST_F(StalenessTrackerTest, WithoutStalenessARoundIsAddedInTheOrderOfRanksOnceAllAreIn) {
  all_seed();
  std::vector<uint32_t> order{0, 1, 2};
  uint32_t round = 1;
  do {
    ++round;
    add(order[0], round);
    EXPECT_EQ(answers_, 0);
    add(order[1], round);
    EXPECT_EQ(answers_, 0);
    EXPECT_EQ(tracker_.waiting(), 2u);
    add(order[2], round);
    EXPECT_EQ(answers_, 1);
    EXPECT_EQ(answered_, (Answered{{0, round}, {1, round}, {2, round}}));
    EXPECT_EQ(tracker_.waiting(), 0u);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_F(StalenessTrackerTest, TheRootsSeedIsTheValueWheneverItComes) {
  seed(2);
  EXPECT_EQ(answers_, 0);
  seed(0);
  EXPECT_EQ(first_values_, std::vector<uint32_t>{0});
  EXPECT_EQ(answers_, 0) << "with staleness 0 all are waited for";
  seed(1);
  EXPECT_TRUE(first_values_.empty());
  EXPECT_EQ(answered_, (Answered{{0, 1}, {1, 1}, {2, 1}}));
}

TEST_F(StalenessTrackerTest, NobodyIsAnsweredBeforeTheSeedWhateverTheStaleness) {
  staleness_ = kUnboundedStaleness;
  seed(1);
  seed(2);
  EXPECT_EQ(answers_, 0);
  seed(0);
  EXPECT_EQ(first_values_, std::vector<uint32_t>{0});
  EXPECT_EQ(answered_, (Answered{{0, 1}, {1, 1}, {2, 1}}));
}

TEST_F(StalenessTrackerTest, OnlyTheFirstSeedOfTheRootCounts) {
  all_seed();
  contribute(head_of(0, 2, ReduceOp::kSeed));
  EXPECT_TRUE(first_values_.empty());
}

TEST_F(StalenessTrackerTest, ARankIsAsFarAheadAsTheStalenessSays) {
  staleness_ = 2;
  all_seed();
  for (uint32_t round = 2; round <= 3; ++round) {
    add(0, round);
    EXPECT_EQ(answered_, (Answered{{0, round}}));
  }
  add(0, 4);
  EXPECT_EQ(answers_, 0) << "rank 1 and rank 2 have had round 1 only";
  add(1, 2);
  EXPECT_EQ(answered_, (Answered{{1, 2}}));
  add(2, 2);
  EXPECT_EQ(answered_, (Answered{{0, 4}, {2, 2}}));
}

TEST_F(StalenessTrackerTest, WithoutABoundNobodyWaits) {
  staleness_ = kUnboundedStaleness;
  seed(0);
  EXPECT_EQ(answered_, (Answered{{0, 1}}));
  for (uint32_t round = 2; round < 1000; ++round) {
    add(0, round);
    EXPECT_EQ(answered_, (Answered{{0, round}}));
  }
  seed(2);
  EXPECT_EQ(answered_, (Answered{{2, 1}})) << "a late rank gets the current value";
}

TEST_F(StalenessTrackerTest, ARankThatHasNotStartedHoldsTheOthersLikeASlowOne) {
  staleness_ = 1;
  seed(0);
  EXPECT_EQ(answered_, (Answered{{0, 1}}));
  add(0, 2);
  EXPECT_EQ(answers_, 0);
  seed(1);
  seed(2);
  EXPECT_EQ(answered_, (Answered{{0, 2}, {2, 1}}));
}

// The guarantee itself: in any order of events, the answer to round r contains all rounds up to r -
// s, and each contribution is answered once.
TEST_F(StalenessTrackerTest, AnswersLackNoRoundThatTheBoundPromises) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    std::mt19937 random(seed);
    const uint8_t stalenesses[] = {0, 1, 2, 5};
    staleness_ = stalenesses[seed % 4];
    StalenessTracker tracker(each_rank({"a", "b", "c", "d"}), {kNever, kNever});
    uint32_t sent[4] = {};
    uint32_t answered[4] = {};
    for (int step = 0; step < 400; ++step) {
      const uint32_t rank = random() % 4;
      if (sent[rank] > answered[rank]) continue;
      const uint32_t round = ++sent[rank];
      const DataHead head = head_of(rank, round, round == 1 ? ReduceOp::kSeed : ReduceOp::kAccumulate);
      StalenessActions actions;
      tracker.on_contribution(head, 0, actions);
      for (const StalenessAction& action : actions) {
        const auto* answer = std::get_if<Answer>(&action);
        if (answer == nullptr) continue;
        for (const DataHead& each : answer->heads) {
          ASSERT_EQ(each.round, ++answered[each.rank]);
          for (const uint32_t other : sent) ASSERT_GE(other + staleness_, each.round) << "seed " << seed;
        }
      }
      const uint32_t slowest = *std::min_element(std::begin(sent), std::end(sent));
      for (uint32_t each = 0; each < 4; ++each) {
        if (sent[each] == 0) continue;
        const bool may = sent[0] > 0 && sent[each] <= slowest + staleness_;
        ASSERT_EQ(answered[each], may ? sent[each] : sent[each] - 1)
            << "seed " << seed << ": nobody waits in vain";
      }
    }
  }
}

TEST_F(StalenessTrackerTest, RepeatsAreRecognised) {
  all_seed();
  EXPECT_EQ(add(0, 2), Verdict::kAccept);
  EXPECT_EQ(add(0, 2), Verdict::kRepeat);
  EXPECT_EQ(seed(0), Verdict::kRepeat);
}

TEST_F(StalenessTrackerTest, ViolationsOfTheProtocolAreErrors) {
  all_seed();
  add(0, 2);
  EXPECT_NE(refusal_of(head_of(0, 3), 16).find("before the answer to round 2"), std::string::npos);
  EXPECT_NE(refusal_of(head_of(1, 3), 16).find("expected round 2, got 3"), std::string::npos);
  EXPECT_NE(refusal_of(head_of(1, 0), 16).find("round"), std::string::npos);
  EXPECT_NE(refusal_of(head_of(1, 2), 8).find("payload bytes"), std::string::npos);
  EXPECT_NE(refusal_of(head_of(1, 2, ReduceOp::kSeed), 16).find("payload bytes"), std::string::npos);
  EXPECT_NE(refusal_of(head_of(1, 2, ReduceOp::kSum), 16).find("reduction"), std::string::npos);
  DataHead head = head_of(1, 2);
  head.type = DataType::kFailed;
  EXPECT_NE(refusal_of(head, 16).find("type"), std::string::npos);
  head = head_of(1, 2);
  head.root = kSenders;
  EXPECT_NE(refusal_of(head, 16).find("root"), std::string::npos);
}

TEST_F(StalenessTrackerTest, DisagreementFailsTheKeyForAllAndNamesBoth) {
  seed(0);
  DataHead other = head_of(1, 1, ReduceOp::kSeed);
  other.staleness = 3;
  contribute(other);
  ASSERT_EQ(failed_.size(), 2u);
  EXPECT_NE(
      failed_[0].find("rank 0 (a) asks for 4 elements of float32 from rank 0 with staleness 0, rank 1 (b)"),
      std::string::npos)
      << failed_[0];
  EXPECT_EQ(failed_[0], failed_[1]);
  EXPECT_EQ(seed(2), Verdict::kRefuse);
  EXPECT_EQ(failed_.count(2), 1u);
  EXPECT_EQ(tracker_.waiting(), 0u);
}

TEST_F(StalenessTrackerTest, LongWaitsCauseAWarningThenAFailureAndNameTheMissing) {
  all_seed();
  add(0, 2, 5);
  add(1, 2, 7);
  EXPECT_EQ(tracker_.next_tick_us(), 5 + kStallUs);
  tick(5 + kStallUs);
  ASSERT_EQ(stalled_.size(), 1u);
  EXPECT_NE(stalled_[0].find("tensor number 1: partition 0: round 2 of rank 0 (a) has waited"),
            std::string::npos)
      << stalled_[0];
  EXPECT_NE(stalled_[0].find("for rank 2 (c)"), std::string::npos) << stalled_[0];
  tick(7 + kStallUs);
  EXPECT_EQ(stalled_.size(), 1u) << "rank 1's wait";
  EXPECT_EQ(tracker_.next_tick_us(), 5 + kUpdateLimitUs);
  tick(5 + kUpdateLimitUs);
  EXPECT_EQ(failed_.size(), 1u);
  EXPECT_NE(failed_[0].find("for rank 2 (c)"), std::string::npos) << failed_[0];
  add(2, 2, 5 + kUpdateLimitUs);
  EXPECT_EQ(answered_, (Answered{{1, 2}, {2, 2}})) << "what has failed is not added";
  add(0, 3, 5 + kUpdateLimitUs);
  EXPECT_EQ(tracker_.waiting(), 1u) << "the tensor goes on";
}

// A contribution waits for one round of the slowest rank at most, however often others waited
// before.
TEST_F(StalenessTrackerTest, ARankFarAheadOfALivingOneNeverTimesOut) {
  staleness_ = 4;
  all_seed();
  TimeUs now = 0;
  for (uint32_t round = 2; round < 6; ++round) add(0, round, now);
  for (uint32_t slow_round = 2; slow_round < 50; ++slow_round) {
    add(0, slow_round + 4, now);
    EXPECT_EQ(tracker_.waiting(), 1u);
    now += kUpdateLimitUs - 1;
    tick(now);
    ASSERT_TRUE(failed_.empty()) << failed_[0];
    add(1, slow_round, now);
    add(2, slow_round, now);
    EXPECT_EQ(tracker_.waiting(), 0u);
  }
}

TEST_F(StalenessTrackerTest, ARankThatIsGoneFailsContributionsThatNeedIt) {
  staleness_ = 1;
  all_seed();
  add(0, 2);
  add(1, 2);
  add(0, 3);
  EXPECT_EQ(tracker_.waiting(), 1u);
  gone(2);
  EXPECT_EQ(failed_.size(), 1u) << "round 3 needs round 2 of rank 2";
  EXPECT_EQ(failed_[0], "rank left");
  EXPECT_EQ(add(1, 3), Verdict::kRefuse);
  EXPECT_EQ(failed_[1], "rank left");
}

TEST_F(StalenessTrackerTest, WithoutABoundNobodyNeedsAGoneRank) {
  staleness_ = kUnboundedStaleness;
  all_seed();
  gone(0);
  add(1, 2);
  EXPECT_EQ(answered_, (Answered{{1, 2}}));
}

TEST_F(StalenessTrackerTest, WithoutASeedAllNeedTheRoot) {
  staleness_ = kUnboundedStaleness;
  seed(1);
  gone(0);
  EXPECT_EQ(failed_[1], "rank left");
  EXPECT_EQ(seed(2), Verdict::kRefuse);
}

// A refused contribution must not be accepted later, because its payload was discarded.
TEST_F(StalenessTrackerTest, ContributionsOfAGoneRankChangeNothing) {
  all_seed();
  gone(2);
  EXPECT_EQ(tracker_.admit(head_of(0, 2), 16).value(), Verdict::kRefuse);
  EXPECT_EQ(add(2, 2), Verdict::kRefuse);
  EXPECT_EQ(tracker_.admit(head_of(0, 2), 16).value(), Verdict::kRefuse);
  add(0, 2);
  EXPECT_EQ(failed_[0], "rank left");
}

TEST_F(StalenessTrackerTest, AFailedTensorAndAFailedJobFailWaitingAndLaterContributions) {
  all_seed();
  add(0, 2);
  collect(
      [&](StalenessActions& actions) { tracker_.fail_tensor(2, kEveryRound, aborted("another"), actions); });
  EXPECT_TRUE(failed_.empty());
  collect([&](StalenessActions& actions) { tracker_.fail_tensor(1, 9, aborted("a round"), actions); });
  EXPECT_TRUE(failed_.empty()) << "ranks have no common rounds";
  collect(
      [&](StalenessActions& actions) { tracker_.fail_tensor(1, kEveryRound, aborted("refused"), actions); });
  EXPECT_EQ(failed_[0], "refused");
  EXPECT_EQ(add(1, 2), Verdict::kRefuse);
  EXPECT_EQ(failed_[1], "refused");
  collect([&](StalenessActions& actions) { tracker_.fail_all(aborted("the job"), actions); });
  EXPECT_EQ(add(2, 2), Verdict::kRefuse);
  EXPECT_EQ(failed_[2], "the job");
}

// ---- after the loss of the root ----

class RestoredTest : public StalenessTrackerTest {
 protected:
  RestoredTest() { staleness_ = kUnboundedStaleness; }
  Verdict move(uint32_t rank, uint32_t round, ReduceOp op = ReduceOp::kAccumulate) {
    DataHead head = head_of(rank, round, op);
    head.type = DataType::kMoved;
    return contribute(head);
  }
  void restore(const std::vector<uint64_t>& rounds) { tracker_.restore(head_of(0, 1), rounds); }
  std::vector<uint64_t> included() const { return tracker_.included({key_tensor(1, 0), 0}); }
};

TEST_F(RestoredTest, AnswersSayWhatTheyContain) {
  seed(1);
  seed(0);
  EXPECT_EQ(included(), (std::vector<uint64_t>{2, 2, 0}));
  add(0, 2);
  EXPECT_EQ(included(), (std::vector<uint64_t>{4, 2, 0}));
}

TEST_F(RestoredTest, WhatWaitsIsNotIncludedYet) {
  staleness_ = 0;
  all_seed();
  add(1, 2);
  EXPECT_EQ(included(), (std::vector<uint64_t>{2, 2, 2}));
  add(0, 2);
  add(2, 2);
  EXPECT_EQ(included(), (std::vector<uint64_t>{4, 4, 4}));
}

TEST_F(RestoredTest, AnIncludedContributionIsAnsweredAgainAndNotAdded) {
  restore({10, 6, 0});
  EXPECT_EQ(move(1, 3), Verdict::kAccept);
  EXPECT_EQ(answered_, (Answered{{1, 3}}));
  EXPECT_TRUE(were_again_);
  EXPECT_EQ(move(0, 6), Verdict::kAccept);
  EXPECT_EQ(answered_, (Answered{{0, 6}}));
  EXPECT_FALSE(were_again_);
  EXPECT_EQ(included(), (std::vector<uint64_t>{12, 6, 0}));
  EXPECT_EQ(move(2, 1, ReduceOp::kSeed), Verdict::kAccept) << "a rank that starts late";
  EXPECT_EQ(answered_, (Answered{{2, 1}}));
}

TEST_F(RestoredTest, OlderOnesAreRepeatsAndLaterOnesAreWrong) {
  restore({10, 6, 0});
  EXPECT_EQ(move(0, 4), Verdict::kRepeat);
  EXPECT_NE(refusal_of(head_of(0, 7), 16).find("expected round 6, got 7"), std::string::npos);
}

TEST_F(RestoredTest, TheBoundCountsFromTheRestoredRounds) {
  staleness_ = 1;
  restore({10, 8, 8});
  move(0, 6);
  EXPECT_TRUE(answered_.empty()) << "two rounds ahead";
  move(1, 5);
  EXPECT_EQ(answered_, (Answered{{1, 5}}));
  move(2, 5);
  EXPECT_EQ(answered_, (Answered{{0, 6}, {2, 5}}));
}

TEST_F(RestoredTest, AFailedRoundFailsAgain) {
  staleness_ = 0;
  all_seed();
  add(0, 2);
  tick(kUpdateLimitUs);
  ASSERT_TRUE(failed_.contains(0));
  EXPECT_EQ(included(), (std::vector<uint64_t>{5, 2, 2}));
  StalenessTracker successor(each_rank({"rank 0 (a)", "rank 1 (b)", "rank 2 (c)"}),
                             {kStallUs, kUpdateLimitUs});
  successor.restore(head_of(0, 1), included());
  DataHead again = head_of(0, 2);
  again.type = DataType::kMoved;
  collect([&](StalenessActions& actions) { successor.on_contribution(again, 0, actions); });
  EXPECT_TRUE(answered_.empty());
  EXPECT_NE(failed_[0].find("round 2 of rank 0 (a) has failed on a server that was lost"), std::string::npos);
}

}  // namespace
}  // namespace byteps::protocol
