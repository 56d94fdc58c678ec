// ShardLinks on two loops, to scripted services at the other ends of in-process connections, on a third.
#include "worker/shard_links.h"

#include <gtest/gtest.h>

#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/countdown.h"
#include "transport/harness.h"

namespace byteps::worker {
namespace {

using protocol::DataHead;
using protocol::DataType;
using transport::EventLoop;
using transport::run_on;
using transport::Watched;

// One shard of a service, as far as a link can tell.
class Shard final : public transport::Receiver {
 public:
  std::unique_ptr<transport::Connection> connection;

  Result<transport::ReceiveBuffer> on_head(transport::Connection&, const transport::Arrival&) override {
    return transport::ReceiveBuffer::in_place();
  }
  Status on_frame(transport::Connection& from, const transport::Arrival& arrival, Bytes) override {
    if (protocol::decode_data(arrival.head)->type == DataType::kGoodbye) from.close();
    return Status::ok();
  }
  void on_closed(transport::Connection&, const Status&) override {}
};

struct Settled {
  std::map<uint64_t, Status> status;           // by handle
  std::map<uint64_t, bool> on_its_links_loop;  // by handle
};

class LanesTest : public testing::Test {
 protected:
  LanesTest() {
    for (int i = 0; i < 2; ++i) loops_.push_back(transport::make_loop());
  }
  void leave(GracePeriod grace_period) {
    run_until_done(kNever, [&](UniqueFunction<void()> done) {
      ShardLinks::leave({&links_}, failed_precondition("shut down"), grace_period, std::move(done));
    });
  }
  // Loops end first, then everything that lived on them.
  ~LanesTest() override {
    for (const auto& loop : loops_) loop->stop();
    services_loop_->stop();
  }

  // The next service has so many shards, on the loops in turn.
  void add_service(size_t num_shards) {
    const auto service = static_cast<uint32_t>(shards_.size());
    shards_.emplace_back(num_shards);
    std::vector<ShardLink> links;
    for (size_t shard = 0; shard < num_shards; ++shard) links.push_back(make_link(service, shard));
    links_.add_service(std::move(links));
  }
  Shard& shard(uint32_t service, size_t number) { return shards_.at(service).at(number); }

  // A partition with this handle goes to the lane; returns when it has been handed to the link.
  void enqueue(ShardLink& link, uint64_t handle) {
    OutgoingPartition outgoing;
    outgoing.handle = handle;
    outgoing.head.type = DataType::kPushPull;
    outgoing.head.dtype = DType::kInt8;
    outgoing.head.key = {static_cast<uint32_t>(handle), 0};
    outgoing.head.round = 1;
    outgoing.head.bytes = memory_.size();
    outgoing.input = memory_;
    outgoing.output = memory_;
    run_on(*link.loop, [&] {
      std::vector<OutgoingPartition> one;
      one.push_back(std::move(outgoing));
      link.link->enqueue(std::move(one));
    });
  }

  bool wait_for(size_t count) {
    return settled_.wait([count](const Settled& s) { return s.status.size() >= count; });
  }

 private:
  // Says on which loop its link's partitions were settled.
  class Events final : public LinkEvents {
   public:
    Events(LanesTest& test, EventLoop& loop) : test_(test), loop_(loop) {}
    void on_completed(uint64_t handle, const Result<protocol::Plan>& outcome) override {
      test_.settled_.update([&](Settled& s) {
        EXPECT_FALSE(s.status.contains(handle)) << "settled twice: " << handle;
        s.status[handle] = outcome.status();
        s.on_its_links_loop[handle] = loop_.in_loop();
      });
    }
    void on_link_lost(uint32_t service, const Status& why) override {
      ADD_FAILURE() << "service " << service << ": " << why;
    }

   private:
    LanesTest& test_;
    EventLoop& loop_;
  };

  ShardLink make_link(uint32_t service, size_t number) {
    EventLoop& loop = *loops_[number % loops_.size()];
    auto connector = [this, &loop, service, number](transport::ConnectCallback done) {
      auto [mine, other] = transport::make_inproc_pair(loop, *services_loop_);
      Shard& peer = shard(service, number);
      peer.connection = std::move(other);
      services_loop_->post([&peer] { peer.connection->start(&peer); });
      done(std::move(mine));
    };
    outboxes_.emplace_back(1000);
    events_.emplace_back(*this, loop);
    LinkOptions options{.rank = 3, .epoch = 1, .service = service, .service_text = "service"};
    options.service_text += " " + std::to_string(service);
    return {&loop, std::make_unique<Link>(options, std::move(connector), outboxes_.back(), metrics_,
                                          events_.back())};
  }

  Metrics metrics_;
  std::list<protocol::Outbox> outboxes_;
  std::list<Events> events_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(8);

 protected:
  Watched<Settled> settled_;
  std::vector<std::unique_ptr<EventLoop>> loops_;  // outlive the connections
  std::unique_ptr<EventLoop> services_loop_ = transport::make_loop();
  std::vector<std::vector<Shard>> shards_;  // by service
  ShardLinks links_;
};

TEST_F(LanesTest, AChildsPartitionsOfOneLaneGoThroughOneShardOfEachService) {
  add_service(3);
  add_service(1);
  EXPECT_EQ(&links_.at(0, 4), &links_.at(0, 1));
  EXPECT_NE(&links_.at(0, 1), &links_.at(0, 2));
  EXPECT_EQ(&links_.at(1, 1), &links_.at(1, 2));
}

TEST_F(LanesTest, ServicesThatNothingIsSentToHaveNoLanes) {
  add_service(1);
  add_service(0);
  EXPECT_TRUE(links_.leads_to(0));
  EXPECT_FALSE(links_.leads_to(1));
  EXPECT_FALSE(links_.leads_to(2));
}

TEST_F(LanesTest, AFailureSettlesEverythingOnTheLoopsOfTheLinks) {
  add_service(2);
  add_service(1);
  enqueue(links_.at(0, 0), 1);
  enqueue(links_.at(0, 1), 2);
  enqueue(links_.at(1, 0), 3);
  links_.fail(unavailable("rank 7 is lost"));
  ASSERT_TRUE(wait_for(3));
  const Settled settled = settled_.get();
  for (const uint64_t handle : {1, 2, 3}) {
    EXPECT_EQ(settled.status.at(handle).message(), "rank 7 is lost");
    EXPECT_TRUE(settled.on_its_links_loop.at(handle));
  }
  enqueue(links_.at(1, 0), 4);
  ASSERT_TRUE(wait_for(4));
  EXPECT_EQ(settled_.get().status.at(4).message(), "rank 7 is lost") << "whatever comes later, too";
}

TEST_F(LanesTest, OnlyTheServiceThatHasLeftIsAskedNoMore) {
  add_service(2);
  add_service(2);
  links_.peer_left(0);
  enqueue(links_.at(1, 0), 1);
  enqueue(links_.at(1, 1), 2);
  enqueue(links_.at(0, 0), 3);
  enqueue(links_.at(0, 1), 4);
  ASSERT_TRUE(wait_for(2));
  const Settled settled = settled_.get();
  EXPECT_EQ(settled.status.size(), 2u);
  EXPECT_EQ(settled.status.at(3).message(), "service 0 has left the job");
  EXPECT_EQ(settled.status.at(4).message(), "service 0 has left the job");
}

TEST_F(LanesTest, LeavingReturnsWhenAllServicesHaveAnswered) {
  add_service(2);
  add_service(1);
  add_service(1);  // never connected to
  enqueue(links_.at(0, 0), 1);
  enqueue(links_.at(0, 1), 2);
  enqueue(links_.at(1, 0), 3);
  leave(kNever);
  const Settled settled = settled_.get();
  ASSERT_EQ(settled.status.size(), 3u);
  for (const uint64_t handle : {1, 2, 3}) EXPECT_EQ(settled.status.at(handle).message(), "shut down");
}

TEST_F(LanesTest, LeavingNobodyReturnsAtOnce) {
  leave(kNever);
  add_service(0);
  leave(kNever);
}

TEST_F(LanesTest, StoppedServicesAreWaitedForUntilTheDeadlineOnly) {
  add_service(2);
  enqueue(links_.at(0, 0), 1);
  enqueue(links_.at(0, 1), 2);
  const transport::StoppedLoop stopped(*services_loop_);
  const TimeUs deadline_us = now_us() + 100'000;
  leave(deadline_us);
  EXPECT_GE(now_us(), deadline_us);
  ASSERT_TRUE(wait_for(2)) << "their links close then, and report to nobody";
  EXPECT_EQ(settled_.get().status.at(2).message(), "shut down");
}

}  // namespace
}  // namespace byteps::worker
