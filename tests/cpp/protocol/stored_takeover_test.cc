#include "protocol/stored_takeover.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

namespace byteps::protocol {
namespace {

using Ranks = std::vector<uint32_t>;

class StoredTakeoverTest : public testing::Test {
 protected:
  static DataHead head_of(uint32_t rank, uint64_t round, uint32_t partition = 0) {
    DataHead head;
    head.type = DataType::kMoved;
    head.op = ReduceOp::kAccumulate;
    head.key = {key_tensor(1, 0), partition};
    head.round = round;
    head.rank = rank;
    head.bytes = 16;
    return head;
  }
  void move(uint32_t rank, uint64_t round, uint32_t partition = 0, TimeUs now = 0) {
    const DataHead head = head_of(rank, round, partition);
    ASSERT_TRUE(takeover_.is_pending(head));
    collect([&](auto& actions) { takeover_.on_contribution(head, now, actions); });
  }
  void tick(TimeUs now) {
    collect([&](auto& actions) { takeover_.on_tick(now, actions); });
  }
  void holds(uint32_t rank, uint64_t round, StoredTakeover::Rounds rounds) {
    takeover_.on_holds(head_of(rank, round), std::move(rounds));
  }
  void stated(uint32_t rank, uint64_t losses) {
    collect([&](auto& actions) { takeover_.on_stated(rank, losses, actions); });
  }
  void all_state(uint64_t losses) {
    for (uint32_t rank = 0; rank < kRanks; ++rank) stated(rank, losses);
  }
  void gone(uint32_t rank) {
    collect([&](auto& actions) { takeover_.on_rank_gone(rank, actions); });
  }
  template <typename Body>
  void collect(Body body) {
    StoredTakeover::Actions actions;
    body(actions);
    fetched_.reset();
    began_.clear();
    why_ = "";
    stalled_ = "";
    for (const StoredTakeover::Action& action : actions) {
      if (const auto* fetch = std::get_if<Fetch>(&action)) fetched_ = fetch->rank;
      if (const auto* begin = std::get_if<StoredTakeover::BeginAnew>(&action)) began_ = ranks(begin->waiting);
      if (const auto* lose = std::get_if<StoredTakeover::Lose>(&action)) {
        lost_ = ranks(lose->waiting);
        why_ = lose->why.message();
      }
      if (const auto* stalled = std::get_if<Stalled>(&action)) stalled_ = stalled->describe();
    }
  }
  static Ranks ranks(const std::vector<DataHead>& heads) {
    Ranks of;
    for (const DataHead& head : heads) of.push_back(head.rank);
    return of;
  }

  static constexpr uint32_t kRanks = 3;
  static constexpr TimeUs kStallUs = 2'000'000;
  static constexpr TimeUs kOpUs = 5'000'000;
  StoredTakeover takeover_{kRanks, {kStallUs, kOpUs}};
  std::optional<uint32_t> fetched_;
  Ranks began_;
  Ranks lost_;
  std::string why_;
  std::string stalled_;
};

TEST_F(StoredTakeoverTest, OnlyWhatHasMovedIsPending) {
  DataHead head = head_of(0, 5);
  EXPECT_TRUE(takeover_.is_pending(head));
  head.type = DataType::kPushPull;
  EXPECT_FALSE(takeover_.is_pending(head));
}

TEST_F(StoredTakeoverTest, TheNewestValueIsFetchedOnceAllHaveStated) {
  holds(0, 5, {10, 8, 8});
  stated(0, 1);
  holds(1, 4, {10, 8, 10});
  stated(1, 1);
  move(0, 6);
  EXPECT_FALSE(fetched_) << "rank 2 may hold a newer one";
  stated(2, 1);
  EXPECT_EQ(fetched_, 1u);
  EXPECT_TRUE(takeover_.expects(head_of(1, 4)));
  EXPECT_FALSE(takeover_.expects(head_of(1, 3)));
  EXPECT_FALSE(takeover_.expects(head_of(0, 4)));
  move(2, 5);
  EXPECT_FALSE(fetched_) << "it is on its way";
  const auto restored = takeover_.take(head_of(0, 0).key);
  EXPECT_EQ(restored.rounds, (StoredTakeover::Rounds{10, 8, 10}));
  EXPECT_EQ(ranks(restored.waiting), (Ranks{0, 2}));
  EXPECT_FALSE(takeover_.is_pending(head_of(1, 5)));
}

TEST_F(StoredTakeoverTest, NothingIsFetchedBeforeSomebodyNeedsIt) {
  holds(0, 5, {10, 8, 8});
  all_state(1);
  EXPECT_FALSE(fetched_);
  move(1, 5);
  EXPECT_EQ(fetched_, 0u);
}

TEST_F(StoredTakeoverTest, WhereNobodyHoldsAValueItBeginsAnew) {
  move(2, 1);
  EXPECT_EQ(began_, (Ranks{2})) << "no rank has stated a loss that others have not";
  EXPECT_FALSE(takeover_.is_pending(head_of(0, 1)));
}

TEST_F(StoredTakeoverTest, RanksThatHaveNotStatedAsManyLossesAreWaitedFor) {
  all_state(1);
  stated(0, 2);
  move(0, 1);
  EXPECT_TRUE(began_.empty());
  stated(1, 2);
  EXPECT_TRUE(began_.empty());
  stated(2, 2);
  EXPECT_EQ(began_, (Ranks{0}));
}

TEST_F(StoredTakeoverTest, ARankThatHasLeftIsNotWaitedFor) {
  stated(0, 1);
  stated(1, 1);
  move(0, 1);
  EXPECT_TRUE(began_.empty());
  gone(2);
  EXPECT_EQ(began_, (Ranks{0}));
}

TEST_F(StoredTakeoverTest, AValueThatLeavesWithItsHolderIsLost) {
  holds(2, 3, {6, 6, 6});
  all_state(1);
  move(0, 4);
  ASSERT_EQ(fetched_, 2u);
  gone(2);
  EXPECT_EQ(lost_, (Ranks{0}));
  EXPECT_NE(why_.find("rank 2, which had the value"), std::string::npos) << why_;
  move(1, 4);
  EXPECT_EQ(lost_, (Ranks{1})) << "later ones fail as well";
}

TEST_F(StoredTakeoverTest, WhatWaitsCanBeTaken) {
  all_state(1);
  stated(0, 2);
  move(0, 1);
  move(1, 1, 7);
  EXPECT_TRUE(takeover_.waits(head_of(1, 1, 7).key, 1));
  EXPECT_FALSE(takeover_.waits(head_of(1, 1, 7).key, 0));
  EXPECT_TRUE(takeover_.take_waiting(2).empty());
  EXPECT_EQ(takeover_.take_waiting(1).size(), 2u);
  EXPECT_TRUE(takeover_.take_waiting().empty());
}

TEST_F(StoredTakeoverTest, ARankOfAnotherJobsSizeHoldsNothing) {
  holds(0, 1, {2, 2});
  all_state(1);
  move(0, 1);
  EXPECT_EQ(began_, (Ranks{0}));
}

TEST_F(StoredTakeoverTest, ARankThatDoesNotSayWhatItHoldsIsNamed) {
  stated(0, 1);
  stated(1, 1);
  move(0, 4, 0, 1'000'000);
  EXPECT_EQ(takeover_.next_tick_us(), 1'000'000 + kStallUs);
  tick(1'000'000 + kStallUs);
  EXPECT_NE(stalled_.find("for rank 2 to say what it holds"), std::string::npos) << stalled_;
  EXPECT_TRUE(why_.empty());
  tick(1'000'000 + kOpUs);
  EXPECT_EQ(lost_, (Ranks{0}));
  EXPECT_NE(why_.find("for rank 2 to say what it holds"), std::string::npos) << why_;
  EXPECT_EQ(takeover_.next_tick_us(), kNever);
  move(1, 4);
  EXPECT_EQ(lost_, (Ranks{1})) << "the value is lost for all";
}

TEST_F(StoredTakeoverTest, ARankThatDoesNotSendTheValueIsNamed) {
  holds(1, 3, {6, 6, 6});
  all_state(1);
  move(0, 4);
  ASSERT_EQ(fetched_, 1u);
  tick(kOpUs);
  EXPECT_EQ(lost_, (Ranks{0}));
  EXPECT_NE(why_.find("for rank 1 to send the value"), std::string::npos) << why_;
  EXPECT_FALSE(takeover_.expects(head_of(1, 3))) << "it comes too late";
}

TEST_F(StoredTakeoverTest, AfterAnotherLossWaitsBeginAnew) {
  stated(0, 1);
  move(0, 4);
  takeover_.restart_waits(3'000'000);
  tick(kOpUs);
  EXPECT_TRUE(why_.empty());
  tick(3'000'000 + kOpUs);
  EXPECT_FALSE(why_.empty());
}

}  // namespace
}  // namespace byteps::protocol
