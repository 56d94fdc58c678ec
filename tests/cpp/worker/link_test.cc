#include "worker/link.h"

#include <string>
#include <vector>

#include "base/event_flag.h"
#include "worker/link_harness.h"

namespace byteps::worker {
namespace {

TEST_F(LinkTest, ConnectsAtTheFirstPartitionAndSaysHello) {
  drain();
  EXPECT_EQ(service_, nullptr);
  enqueue({partition(1)});
  ASSERT_EQ(received_.size(), 2u);
  EXPECT_EQ(received_[0].type, DataType::kHello);
  EXPECT_EQ(received_[0].rank, 3u);
  EXPECT_EQ(received_[1].key.tensor, 1u);
  EXPECT_EQ(received_[1].epoch, 1u);
}

TEST_F(LinkTest, TheResultLandsInTheTensor) {
  enqueue({partition(1)});
  EXPECT_TRUE(completed_.empty());
  answer(received_[1], "abcdefgh");
  ASSERT_TRUE(completed_.contains(1));
  EXPECT_TRUE(completed_[1].is_ok());
  EXPECT_EQ(as_text(memory_[1]), "abcdefgh");
}

TEST_F(LinkTest, ThePlanOfTheAnswerIsHandedOn) {
  enqueue({partition(1)});
  DataHead head = received_[1];
  head.plan = {.partition_scale = 3, .credit = 9};
  answer(head, "abcdefgh");
  EXPECT_EQ(plans_[1], head.plan);
}

// Each partition exceeds half of the credit, so only one at a time is sent.
TEST_F(LinkTest, OfThePartitionsOfOneCallTheUrgentOnesGoFirst) {
  enqueue({partition(1, 0, 600), partition(2, 1, 600), partition(3, 5, 600)});
  ASSERT_EQ(received_.size(), 4u);
  EXPECT_EQ(received_[1].key.tensor, 3u);
  EXPECT_EQ(received_[2].key.tensor, 2u);
  EXPECT_EQ(received_[3].key.tensor, 1u);
}

TEST_F(LinkTest, AFailureCompletesWithItsText) {
  enqueue({partition(1)});
  DataHead head = received_[1];
  head.code = StatusCode::kDeadlineExceeded;
  answer(head, "waited for rank 2", DataType::kFailed);
  EXPECT_EQ(completed_[1].code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(completed_[1].message(), "waited for rank 2");
}

TEST_F(LinkTest, AnUnexpectedAnswerEndsTheConnectionAndCompletesNothing) {
  enqueue({partition(1)});
  DataHead head = received_[1];
  head.round = 2;
  answer(head, "abcdefgh");
  EXPECT_EQ(lost_.code(), StatusCode::kDataLoss) << lost_;
  EXPECT_TRUE(completed_.empty()) << "the owner of the link decides";
  EXPECT_TRUE(service_closed_);
}

TEST_F(LinkTest, AResultOfAnotherSizeEndsTheConnection) {
  enqueue({partition(1)});
  answer(received_[1], "abc");
  EXPECT_EQ(lost_.code(), StatusCode::kDataLoss);
  EXPECT_NE(lost_.message().find("expected 8 bytes, got 3"), std::string::npos) << lost_;
}

TEST_F(LinkTest, AFailureWithoutACodeIsNoSuccess) {
  enqueue({partition(1)});
  answer(received_[1], "", DataType::kFailed);
  EXPECT_TRUE(completed_.empty());
  EXPECT_EQ(lost_.code(), StatusCode::kDataLoss);
}

TEST_F(LinkTest, ABrokenConnectionCompletesOnlyWithTheVerdict) {
  enqueue({partition(1)});
  on_loop([this] { service_->close(); });
  drain();
  EXPECT_FALSE(lost_.is_ok());
  enqueue({partition(2)});
  EXPECT_TRUE(completed_.empty());
  on_loop([this] { link_->fail(unavailable("server 5 is dead")); });
  EXPECT_EQ(completed_[1].message(), "server 5 is dead");
  EXPECT_EQ(completed_[2].message(), "server 5 is dead");
  enqueue({partition(4)});
  EXPECT_EQ(completed_[4].message(), "server 5 is dead");
}

// The owner of the tensor may free it as soon as its partition is completed.
TEST_F(LinkTest, NothingIsSentFromATensorAfterTheJobHasFailed) {
  enqueue({partition(1)});
  on_loop([this] {
    std::vector<OutgoingPartition> one;
    one.push_back(partition(2));
    link_->enqueue(std::move(one));
    link_->fail(unavailable("rank 2 is dead"));
  });
  drain();
  EXPECT_EQ(received_.size(), 2u) << "the hello and the first partition";
  EXPECT_TRUE(service_closed_);
}

TEST_F(LinkTest, AGoodbyeFailsUnansweredPartitionsAndNamesTheService) {
  enqueue({partition(1), partition(2)});
  answer(received_[1], "abcdefgh");
  answer({}, "", DataType::kGoodbye);
  on_loop([this] { service_->close(); });
  drain();
  EXPECT_TRUE(completed_[1].is_ok());
  EXPECT_EQ(completed_[2].message(), "server 5 has left the job");
  EXPECT_TRUE(lost_.is_ok()) << "leaving is no loss";
  enqueue({partition(3)});
  EXPECT_EQ(completed_[3].message(), "server 5 has left the job");
}

// Regression, found by simulation: partitions for a service that left before the first of them were
// never answered.
TEST_F(LinkTest, NothingWaitsForAServiceThatLeftBeforeTheFirstPartition) {
  on_loop([this] { link_->peer_left(); });
  enqueue({partition(1)});
  EXPECT_EQ(completed_[1].message(), "server 5 has left the job");
  EXPECT_EQ(service_, nullptr);
  EXPECT_TRUE(lost_.is_ok());
}

TEST_F(LinkTest, PartitionsOfAServiceThatLeavesWhileTheLinkConnectsFail) {
  is_slow_ = true;
  enqueue({partition(1)});
  on_loop([this] { link_->peer_left(); });
  on_loop([this] { connect(); });
  drain();
  ASSERT_TRUE(completed_.contains(1));
  EXPECT_EQ(completed_[1].message(), "server 5 has left the job");
  EXPECT_TRUE(received_.empty());
}

TEST_F(LinkTest, PartitionsFailWithTheJobWhileTheLinkConnects) {
  is_slow_ = true;
  enqueue({partition(1)});
  on_loop([this] { link_->fail(unavailable("rank 2 is dead")); });
  ASSERT_TRUE(completed_.contains(1));
  EXPECT_EQ(completed_[1].message(), "rank 2 is dead");
  on_loop([this] { connect(); });
  drain();
  EXPECT_TRUE(received_.empty());
  EXPECT_TRUE(service_closed_);
}

TEST_F(LinkTest, AConnectionThatBreaksAfterItsPeerLeftIsNoLoss) {
  enqueue({partition(1)});
  on_loop([this] { link_->peer_left(); });
  EXPECT_TRUE(completed_.empty()) << "the answer may be in flight";
  on_loop([this] { service_->close(); });
  drain();
  EXPECT_EQ(completed_[1].message(), "server 5 has left the job");
  EXPECT_TRUE(lost_.is_ok());
}

TEST_F(LinkTest, AServiceThatCannotBeReachedIsReported) {
  refusal_ = unavailable("nobody there");
  enqueue({partition(1)});
  EXPECT_EQ(lost_.message(), "nobody there");
  EXPECT_TRUE(completed_.empty());
}

TEST_F(LinkTest, LeavingSaysGoodbyeAfterSentPartitionsAndCompletesTheRest) {
  enqueue({partition(1)});
  EventFlag left;
  on_loop([&] { link_->leave(failed_precondition("shut down"), now_us() + 1'000'000, [&] { left.set(); }); });
  drain();
  ASSERT_EQ(received_.size(), 3u);
  EXPECT_EQ(received_[2].type, DataType::kGoodbye);
  on_loop([this] { service_->close(); });
  EXPECT_EQ(left.wait(now_us() + 5'000'000), EventFlag::Wake::kSet);
  EXPECT_EQ(completed_[1].message(), "shut down");
}

// A failure has no answer, so the next round of its key may follow it directly.
TEST_F(LinkTest, AFailureGoesBeforeLaterPartitionsOfAnyPriority) {
  OutgoingPartition failure = partition(1, -5);
  failure.failure = unavailable("rank 4 has left");
  failure.input = {};
  OutgoingPartition next = partition(1, 100);
  next.head.round = 2;
  std::vector<OutgoingPartition> both;
  both.push_back(std::move(failure));
  both.push_back(std::move(next));
  enqueue(std::move(both));
  ASSERT_EQ(received_.size(), 3u);
  EXPECT_EQ(received_[1].type, DataType::kFailed);
  EXPECT_EQ(received_[1].code, StatusCode::kUnavailable);
  EXPECT_EQ(received_[1].round, 1u);
  EXPECT_EQ(received_[2].round, 2u);
}

TEST_F(LinkTest, AFailureIsNeverCompleted) {
  OutgoingPartition failure = partition(1);
  failure.failure = unavailable("rank 4 has left");
  std::vector<OutgoingPartition> one;
  one.push_back(std::move(failure));
  enqueue(std::move(one));
  on_loop([this] { link_->fail(unavailable("server 5 is dead")); });
  OutgoingPartition late = partition(2);
  late.failure = unavailable("rank 4 has left");
  one.clear();
  one.push_back(std::move(late));
  enqueue(std::move(one));
  EXPECT_TRUE(completed_.empty());
}

}  // namespace
}  // namespace byteps::worker
