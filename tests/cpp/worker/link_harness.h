// Shared by the tests of Link: a link, and a scripted service at the other end of an in-process
// connection.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transport/epoll_loop.h"
#include "transport/inproc.h"
#include "worker/link.h"

namespace byteps::worker {

using protocol::DataHead;
using protocol::DataType;

class LinkTest : public testing::Test, public LinkEvents, public transport::Receiver {
 protected:
  LinkTest() : LinkTest(LinkOptions{.rank = 3, .epoch = 1, .service = 5, .service_text = "server 5"}) {}
  explicit LinkTest(const LinkOptions& options)
      : loop_(std::move(*transport::EpollLoop::create("link-test"))) {
    link_ = std::make_unique<Link>(
        options,
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
  void on_completed(OutgoingPartition partition, const Result<protocol::Plan>& outcome) override {
    completed_[partition.handle] = outcome.status();
    if (outcome) plans_[partition.handle] = *outcome;
  }
  void on_link_lost(uint32_t service, const Status& why) override {
    EXPECT_EQ(service, 5u);
    lost_ = why;
  }
  void on_outcomes_moved(std::vector<DataHead> outcomes) override {
    EXPECT_TRUE(moved_.empty()) << "successors have to be told first";
    outcomes_moved_ = std::move(outcomes);
  }
  void on_partitions_moved(std::vector<OutgoingPartition> partitions) override {
    for (OutgoingPartition& each : partitions) moved_.push_back(std::move(each));
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

  // Outlives the links.
  HeldResults held_;
  std::vector<DataHead> outcomes_moved_;
  std::vector<OutgoingPartition> moved_;
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

}  // namespace byteps::worker
