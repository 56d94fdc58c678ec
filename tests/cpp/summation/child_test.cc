// A shard's end of one connection: what it accepts from a child, and what ends the connection.
#include "summation/child.h"

#include "summation/harness.h"

namespace byteps::summation {
namespace {

class ChildTest : public RootFixture {
 protected:
  void expect_rank_0_lost() {
    EXPECT_TRUE(peers_[0]->closed_);
    EXPECT_EQ(lost_, std::vector<uint32_t>{0});
    EXPECT_FALSE(peers_[1]->closed_);
  }
};

TEST_F(ChildTest, AContributionInTheNameOfAnotherRankEndsTheConnection) {
  on_loop([this] {
    peers_[0]->values_ = {1, 1, 1, 1};
    peers_[0]->send(peers_[1]->head(1), std::as_bytes(std::span(peers_[0]->values_)));
  });
  expect_rank_0_lost();
}

TEST_F(ChildTest, ASecondHelloEndsTheConnection) {
  on_loop([this] { peers_[0]->hello(); });
  expect_rank_0_lost();
}

TEST_F(ChildTest, AHelloForALevelThatTheServiceDoesNotHaveIsRefused) {
  const auto stranger = connect(0);
  stranger->level_ = Level::kMachine;
  on_loop([&] { stranger->hello(); });
  EXPECT_TRUE(stranger->closed_);
  EXPECT_TRUE(lost_.empty()) << "the rank is unknown";
}

TEST_F(ChildTest, ARankMayContributeAtSeveralLevels) {
  peers_.push_back(connect(0));
  peers_[2]->level_ = Level::kRanks;
  on_loop([this] { peers_[2]->hello(); });
  for (const auto& peer : peers_) EXPECT_FALSE(peer->closed_);
}

TEST_F(ChildTest, AMessageThatOnlyServicesSendEndsTheConnection) {
  on_loop([this] {
    DataHead head = peers_[0]->head(1);
    head.type = DataType::kResult;
    peers_[0]->send(head, {});
  });
  expect_rank_0_lost();
}

TEST_F(ChildTest, AFailureWithATextThatIsTooLongEndsTheConnection) {
  const std::string text(protocol::kMaxTextBytes + 1, 'x');
  on_loop([&] {
    DataHead head = peers_[0]->head(1);
    head.type = DataType::kFailed;
    head.code = StatusCode::kAborted;
    peers_[0]->send(head, as_bytes(text));
  });
  expect_rank_0_lost();
}

TEST_F(ChildTest, AFailureOfARoundThatWasAnsweredIsIgnored) {
  on_loop([this] {
    peers_[0]->contribute(1, {1, 1, 1, 1});
    peers_[1]->contribute(1, {1, 1, 1, 1});
  });
  const std::string text = "too late";
  on_loop([&] {
    DataHead head = peers_[0]->head(1);
    head.type = DataType::kFailed;
    head.code = StatusCode::kAborted;
    peers_[0]->send(head, as_bytes(text));
  });
  on_loop([this] {
    peers_[0]->contribute(2, {1, 1, 1, 1});
    peers_[1]->contribute(2, {1, 1, 1, 1});
  });
  for (const auto& peer : peers_) {
    ASSERT_EQ(peer->answers_.size(), 2u);
    EXPECT_EQ(result_of(*peer, 1), (Values{2, 2, 2, 2}));
  }
}

TEST_F(ChildTest, AContributionThatArrivesAgainWhileItsRoundWaitsChangesNothing) {
  on_loop([this] { peers_[0]->contribute(1, {1, 2, 3, 4}); });
  Values other = {9, 9, 9, 9};
  on_loop([&] { peers_[0]->send(peers_[0]->head(1), std::as_bytes(std::span(other))); });
  on_loop([this] { peers_[1]->contribute(1, {10, 10, 10, 10}); });
  for (const auto& peer : peers_) {
    ASSERT_EQ(peer->answers_.size(), 1u);
    EXPECT_EQ(result_of(*peer), (Values{11, 12, 13, 14}));
  }
}

}  // namespace
}  // namespace byteps::summation
