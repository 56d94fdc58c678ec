// The link of a machine's service to the roots, with a scripted root.
#include "node/parent_link.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/epoll_loop.h"
#include "transport/inproc.h"

namespace byteps::node {
namespace {

using protocol::DataHead;
using protocol::DataType;

constexpr uint32_t kRank = 3;
constexpr uint32_t kRoot = 1;  // node number
constexpr uint32_t kNewcomer = 2;

class ParentLinkTest : public testing::Test, public transport::Receiver {
 protected:
  ParentLinkTest()
      : loop_(std::move(*transport::EpollLoop::create("parent-link-test"))),
        parent_link_(kRank, 1, [this](uint32_t service, const Status&) { lost_.push_back(service); }) {
    parent_link_.links().add_service({});
    parent_link_.links().add_service(links_to(kRoot));
  }
  std::vector<worker::ShardLink> links_to(uint32_t service) {
    worker::LinkOptions options{.rank = kRank, .epoch = 1, .service = service, .service_text = "a root"};
    auto connector = [this](transport::ConnectCallback done) {
      auto [mine, other] = transport::make_inproc_pair(*loop_);
      root_ = std::move(other);
      root_->start(this);
      done(std::move(mine));
    };
    std::vector<worker::ShardLink> links;
    links.push_back({loop_.get(), std::make_unique<worker::Link>(std::move(options), std::move(connector),
                                                                 outbox_, metrics_, parent_link_)});
    return links;
  }
  // Not in the destructor: until here the loop calls virtual functions of this object.
  void TearDown() override {
    parent_link_.links().fail(unavailable("the test is over"));
    drain();
    loop_->stop();
    root_.reset();
  }

  void drain() {
    for (int i = 0; i < 10; ++i) loop_->run_and_wait([] {});
  }
  static DataHead head(uint64_t round) {
    DataHead head;
    head.type = DataType::kPushPull;
    head.dtype = DType::kInt8;
    head.key = {7, 0};
    head.round = round;
    head.root_node = kRoot;
    head.bytes = 4;
    return head;
  }

  Result<transport::ReceiveBuffer> on_head(transport::Connection&, const transport::Arrival&) override {
    return transport::ReceiveBuffer::in_place();
  }
  Status on_frame(transport::Connection&, const transport::Arrival& arrival, Bytes payload) override {
    heads_.push_back(*protocol::decode_data(arrival.head));
    payloads_.emplace_back(as_text(payload));
    return Status::ok();
  }
  void on_closed(transport::Connection&, const Status&) override {}

  Metrics metrics_;
  protocol::Outbox outbox_{1000};
  std::unique_ptr<transport::EventLoop> loop_;
  std::unique_ptr<transport::Connection> root_;
  NodeParentLink parent_link_;
  std::vector<DataHead> heads_;  // received by the root, from the hello on
  std::vector<std::string> payloads_;
  std::vector<uint32_t> lost_;
};

TEST_F(ParentLinkTest, ReachesTheRootsThatItHasLinksTo) {
  EXPECT_FALSE(parent_link_.reaches(0));
  EXPECT_TRUE(parent_link_.reaches(kRoot));
  EXPECT_TRUE(parent_link_.reaches(2)) << "a server that this process has not heard of yet";
  parent_link_.links().add_service({});
  EXPECT_FALSE(parent_link_.reaches(2));
}

TEST_F(ParentLinkTest, ASumForANodeThatCannotBeItsRootFails) {
  std::string sum = "abcd";
  std::optional<Result<protocol::Plan>> outcome;
  DataHead wrong = head(1);
  wrong.root_node = 5;
  const auto bytes = std::as_writable_bytes(std::span(sum));
  parent_link_.push_pull(*loop_, wrong, bytes, bytes,
                         [&outcome](const Result<protocol::Plan>& of_root) { outcome = of_root; });
  drain();
  ASSERT_TRUE(outcome.has_value());
  EXPECT_EQ(outcome->status().code(), StatusCode::kDataLoss);
}

// A rank of the machine may hear of the server before this process does.
TEST_F(ParentLinkTest, AFailureForAServerThatComesIsSentWhenItsLinksAreThere) {
  DataHead early = head(1);
  early.root_node = kNewcomer;
  parent_link_.fail_round(early, invalid_argument("of another size"));
  drain();
  EXPECT_TRUE(heads_.empty());
  parent_link_.links().add_service(links_to(kNewcomer));
  parent_link_.on_service_added();
  drain();
  ASSERT_EQ(heads_.size(), 2u);
  EXPECT_EQ(heads_[1].type, DataType::kFailed);
  EXPECT_EQ(payloads_[1], "of another size");
}

TEST_F(ParentLinkTest, TheSumGoesToTheRootInTheNameOfThisRankAndTheResultComesBack) {
  std::string sum = "abcd";
  std::optional<Result<protocol::Plan>> outcome;
  const auto bytes = std::as_writable_bytes(std::span(sum));
  parent_link_.push_pull(*loop_, head(1), bytes, bytes,
                         [&outcome](const Result<protocol::Plan>& of_root) { outcome = of_root; });
  drain();
  ASSERT_EQ(heads_.size(), 2u);
  EXPECT_EQ(heads_[1].rank, kRank);
  EXPECT_EQ(payloads_[1], "abcd");
  const std::string result = "ABCD";
  loop_->run_and_wait([&] {
    DataHead answer = heads_[1];
    answer.type = DataType::kResult;
    answer.plan.credit = 3;
    root_->send(protocol::encode(answer), {as_bytes(result), {}}, nullptr);
  });
  drain();
  ASSERT_TRUE(outcome && outcome->is_ok());
  EXPECT_EQ((*outcome)->credit, 3);
  EXPECT_EQ(sum, "ABCD");
}

TEST_F(ParentLinkTest, AFailedRoundIsReportedToTheRootWithItsCause) {
  parent_link_.fail_round(head(1), invalid_argument("rank 2 asks for max"));
  drain();
  ASSERT_EQ(heads_.size(), 2u);
  EXPECT_EQ(heads_[1].type, DataType::kFailed);
  EXPECT_EQ(heads_[1].rank, kRank);
  EXPECT_EQ(heads_[1].round, 1u);
  EXPECT_EQ(heads_[1].code, StatusCode::kInvalidArgument);
  EXPECT_EQ(payloads_[1], "rank 2 asks for max");
}

TEST_F(ParentLinkTest, AFailureOfTheJobEndsWhatTheRootHasNotAnswered) {
  std::string sum = "abcd";
  std::optional<Status> outcome;
  const auto bytes = std::as_writable_bytes(std::span(sum));
  parent_link_.push_pull(*loop_, head(1), bytes, bytes,
                         [&outcome](const Result<protocol::Plan>& of_root) { outcome = of_root.status(); });
  drain();
  parent_link_.links().fail(unavailable("rank 2 is dead"));
  drain();
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->message(), "rank 2 is dead");
  EXPECT_TRUE(lost_.empty());
}

}  // namespace
}  // namespace byteps::node
