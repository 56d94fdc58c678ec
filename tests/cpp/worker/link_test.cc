// A link, and a scripted service at the other end of an in-process connection.
#include "worker/link.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/event_flag.h"
#include "transport/epoll_loop.h"
#include "transport/inproc.h"

namespace byteps::worker {
namespace {

using protocol::DataHead;
using protocol::DataType;

class LinkTest : public testing::Test, public LinkEvents, public transport::Receiver {
 protected:
  LinkTest() : loop_(std::move(*transport::EpollLoop::create("link-test"))) {
    link_ = std::make_unique<Link>(
        LinkOptions{.rank = 3, .epoch = 1, .service = 5, .service_text = "server 5"},
        [this](transport::ConnectCallback done) {
          if (!refusal_.is_ok()) return done(refusal_);
          connected_ = std::move(done);
          if (!is_slow_) connect();
        },
        outbox_, metrics_, *this);
  }
  ~LinkTest() override {
    on_loop([this] {
      service_.reset();
      link_.reset();
    });
  }

  // The connection that the link waits for is established.
  void connect() {
    auto [mine, other] = transport::make_inproc_pair(*loop_);
    service_ = std::move(other);
    service_->start(this);
    std::exchange(connected_, nullptr)(std::move(mine));
  }
  void on_loop(UniqueFunction<void()> task) { loop_->run_and_wait(std::move(task)); }
  // Runs all posted tasks, and those that they post.
  void drain() {
    for (int i = 0; i < 10; ++i) on_loop([] {});
  }

  OutgoingPartition partition(uint32_t tensor, int32_t priority = 0, size_t bytes = 8) {
    memory_[tensor].assign(bytes, std::byte{1});
    OutgoingPartition outgoing;
    outgoing.handle = tensor;
    outgoing.head.type = DataType::kPushPull;
    outgoing.head.dtype = DType::kInt8;
    outgoing.head.key = {tensor, 0};
    outgoing.head.round = 1;
    outgoing.head.rank = 3;
    outgoing.head.priority = priority;
    outgoing.head.bytes = bytes;
    outgoing.input = memory_[tensor];
    outgoing.output = memory_[tensor];
    return outgoing;
  }
  void enqueue(std::vector<OutgoingPartition> partitions) {
    on_loop([&] { link_->enqueue(std::move(partitions)); });
    drain();
  }
  void answer(DataHead head, std::string payload = "", DataType type = DataType::kResult) {
    head.type = type;
    on_loop([&] { service_->send(protocol::encode(head), {as_bytes(payload), {}}, nullptr); });
    drain();
  }

  // LinkEvents
  void on_completed(protocol::Handle handle, const Result<protocol::Plan>& outcome) override {
    completed_[handle] = outcome.status();
    if (outcome) plans_[handle] = *outcome;
  }
  void on_link_lost(uint32_t service, const Status& why) override {
    EXPECT_EQ(service, 5u);
    lost_ = why;
  }
  // The service's end
  Result<transport::ReceiveBuffer> on_head(transport::Connection&, const transport::Arrival&) override {
    return transport::ReceiveBuffer::in_place();
  }
  Status on_frame(transport::Connection&, const transport::Arrival& arrival, Bytes) override {
    received_.push_back(*protocol::decode_data(arrival.head));
    return Status::ok();
  }
  void on_closed(transport::Connection&, const Status&) override { service_closed_ = true; }

  Metrics metrics_;
  protocol::Outbox outbox_{1000};
  std::unique_ptr<transport::EventLoop> loop_;
  Status refusal_;        // not ok: the service is unreachable
  bool is_slow_ = false;  // the link waits for connect()
  transport::ConnectCallback connected_;
  std::unique_ptr<transport::Connection> service_;
  std::unique_ptr<Link> link_;
  std::map<uint32_t, std::vector<std::byte>> memory_;
  std::vector<DataHead> received_;
  std::map<protocol::Handle, Status> completed_;
  std::map<protocol::Handle, protocol::Plan> plans_;  // plans of the results
  Status lost_;
  bool service_closed_ = false;
};

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
