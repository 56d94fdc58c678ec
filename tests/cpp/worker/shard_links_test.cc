// ShardLinks on two loops, connected in-process to scripted services.
#include "worker/shard_links.h"

#include <gtest/gtest.h>

#include <latch>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "support/run_until_done.h"
#include "transport/harness.h"

namespace byteps::worker {
namespace {

using protocol::DataHead;
using protocol::DataType;
using transport::EventLoop;
using transport::run_on;
using transport::Watched;

// One shard of a service, as a link sees it.
class Shard final : public transport::Receiver {
 public:
  std::unique_ptr<transport::Connection> connection;
  bool is_stopped = false;  // reads nothing; set before anything is sent to it
  Watched<std::vector<DataType>> received;

  Result<transport::ReceiveBuffer> on_head(transport::Connection&, const transport::Arrival&) override {
    return transport::ReceiveBuffer::in_place();
  }
  Status on_frame(transport::Connection& from, const transport::Arrival& arrival, Bytes) override {
    const DataType type = protocol::decode_data(arrival.head)->type;
    received.update([type](std::vector<DataType>& types) { types.push_back(type); });
    if (type == DataType::kGoodbye) from.close();
    return Status::ok();
  }
  void on_closed(transport::Connection&, const Status&) override {}
};

struct Completed {
  std::map<uint64_t, Status> status;           // key: handle
  std::map<uint64_t, bool> on_its_links_loop;  // key: handle
};

class ShardLinksTest : public testing::Test {
 protected:
  ShardLinksTest() {
    for (int i = 0; i < 2; ++i) loops_.push_back(transport::make_loop());
  }
  void leave(GracePeriod grace_period) {
    run_until_done(kNever, [&](UniqueFunction<void()> done) {
      ShardLinks::leave({&links_}, failed_precondition("shut down"), grace_period, std::move(done));
    });
  }
  // Stops the loops before destroying the objects that run on them.
  ~ShardLinksTest() override {
    for (const auto& loop : loops_) loop->stop();
  }

  // Adds a service with this number of shards, on the loops in turn.
  void add_service(size_t num_shards) {
    const auto service = static_cast<uint32_t>(shards_.size());
    std::vector<std::unique_ptr<Shard>>& shards = shards_.emplace_back();
    for (size_t i = 0; i < num_shards; ++i) shards.push_back(std::make_unique<Shard>());
    std::vector<ShardLink> links;
    for (size_t shard = 0; shard < num_shards; ++shard) links.push_back(make_link(service, shard));
    links_.add_service(std::move(links));
  }
  Shard& shard(uint32_t service, size_t number) { return *shards_.at(service).at(number); }

  // Sends a partition with this handle on the link; returns when the link has it.
  void enqueue(ShardLink& link, uint64_t handle, uint16_t root_node = 0) {
    OutgoingPartition outgoing;
    outgoing.handle = handle;
    outgoing.head.type = DataType::kPushPull;
    outgoing.head.dtype = DType::kInt8;
    outgoing.head.key = {static_cast<uint32_t>(handle), 0};
    outgoing.head.round = 1;
    outgoing.head.root_node = root_node;
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
    return completed_.wait([count](const Completed& s) { return s.status.size() >= count; });
  }

 private:
  // Records the loops on which partitions complete.
  class Events final : public LinkEvents {
   public:
    Events(ShardLinksTest& test, EventLoop& loop) : test_(test), loop_(loop) {}
    void on_completed(OutgoingPartition partition, const Result<protocol::Plan>& outcome) override {
      const uint64_t handle = partition.handle;
      test_.completed_.update([&](Completed& s) {
        EXPECT_FALSE(s.status.contains(handle)) << "completed twice: " << handle;
        s.status[handle] = outcome.status();
        s.on_its_links_loop[handle] = loop_.in_loop();
      });
    }
    void on_link_lost(uint32_t service, const Status& why) override {
      ADD_FAILURE() << "service " << service << ": " << why;
    }
    void on_outcomes_moved(std::vector<DataHead> outcomes) override { test_.links_.move(outcomes); }
    void on_partitions_moved(std::vector<OutgoingPartition> partitions) override {
      test_.links_.move(std::move(partitions));
    }

   private:
    ShardLinksTest& test_;
    EventLoop& loop_;
  };

  ShardLink make_link(uint32_t service, size_t number) {
    EventLoop& loop = *loops_[number % loops_.size()];
    auto connector = [this, &loop, service, number](transport::ConnectCallback done) {
      auto [mine, other] = transport::make_inproc_pair(loop);
      Shard& peer = shard(service, number);
      peer.connection = std::move(other);
      if (!peer.is_stopped) loop.post([&peer] { peer.connection->start(&peer); });
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
  Watched<Completed> completed_;
  std::vector<std::unique_ptr<EventLoop>> loops_;            // outlive the connections
  std::vector<std::vector<std::unique_ptr<Shard>>> shards_;  // indexed by service
  ShardLinks links_{1};
};

TEST_F(ShardLinksTest, PartitionsOfOneShardIndexGoThroughOneShardOfEachService) {
  add_service(3);
  add_service(1);
  EXPECT_EQ(&links_.at(0, 4), &links_.at(0, 1));
  EXPECT_NE(&links_.at(0, 1), &links_.at(0, 2));
  EXPECT_EQ(&links_.at(1, 1), &links_.at(1, 2));
}

TEST_F(ShardLinksTest, ServicesThatNothingIsSentToHaveNoLinks) {
  add_service(1);
  add_service(0);
  EXPECT_TRUE(links_.leads_to(0));
  EXPECT_FALSE(links_.leads_to(1));
  EXPECT_FALSE(links_.leads_to(2));
}

TEST_F(ShardLinksTest, AFailureCompletesEverythingOnTheLoopsOfTheLinks) {
  add_service(2);
  add_service(1);
  enqueue(links_.at(0, 0), 1);
  enqueue(links_.at(0, 1), 2);
  enqueue(links_.at(1, 0), 3);
  links_.fail(unavailable("rank 7 is lost"));
  ASSERT_TRUE(wait_for(3));
  const Completed completed = completed_.get();
  for (const uint64_t handle : {1, 2, 3}) {
    EXPECT_EQ(completed.status.at(handle).message(), "rank 7 is lost");
    EXPECT_TRUE(completed.on_its_links_loop.at(handle));
  }
  enqueue(links_.at(1, 0), 4);
  ASSERT_TRUE(wait_for(4));
  EXPECT_EQ(completed_.get().status.at(4).message(), "rank 7 is lost") << "whatever comes later, too";
}

// Service 0 is that of a worker machine, the others are servers with a shard on each loop.
class LosingShardLinksTest : public ShardLinksTest {
 protected:
  LosingShardLinksTest() {
    std::vector<protocol::NodeInfo> nodes;
    for (const std::string host : {"a", "b", "c"}) {
      nodes.push_back({.role = host == "a" ? protocol::Role::kWorker : protocol::Role::kServer,
                       .rank = 0,
                       .host = host,
                       .machine = host,
                       .endpoints = {{"tcp", {"x", "y"}}}});
    }
    add_service(1);
    for (int server = 1; server <= 2; ++server) add_service(2);
    links_.follow(protocol::Successors(protocol::Tree(nodes, 1)), /*states_losses=*/true);
  }
  void lose(uint32_t server, uint32_t successor) {
    protocol::Removed removed{.node = server, .text = "it is lost", .weights_ppb = {0, 0, 0}, .stores = true};
    removed.weights_ppb[successor] = 1'000'000'000;
    links_.lose(removed);
  }
  // Both servers are lost. The one that was the successor of the other, when one of its two links has
  // told of its outcomes, while the thread of the other one does not run before go_on().
  void lose_successor_slowly() {
    lose(1, 2);
    ASSERT_TRUE(has_got({DataType::kHello, DataType::kStated}));
    loops_[1]->post([go_on = go_on_] { go_on->wait(); });
    lose(2, 0);
    enqueue(links_.at(1, 0), 1, 1);
    for (int i = 0; i < 10; ++i) run_on(*loops_[0], [] {});  // what can come has come
  }
  bool has_got(const std::vector<DataType>& types) {
    return shard(0, 0).received.wait([&](const auto& received) { return received.size() >= types.size(); }) &&
           shard(0, 0).received.get() == types;
  }

  // Shared, as the fixture stops its loops when members of this class are gone.
  const std::shared_ptr<std::latch> go_on_ = std::make_shared<std::latch>(1);
};

TEST_F(LosingShardLinksTest, AfterALossItIsStatedThatAllIsSaidBeforePartitionsMove) {
  enqueue(links_.at(1, 0), 1, 1);
  enqueue(links_.at(1, 1), 2, 1);
  lose(1, 0);
  EXPECT_TRUE(has_got({DataType::kHello, DataType::kStated, DataType::kMoved, DataType::kMoved}));
}

TEST_F(LosingShardLinksTest, APartitionWhoseSuccessorIsLostMovesAfterThatIsStatedToo) {
  lose_successor_slowly();
  go_on_->count_down();
  EXPECT_TRUE(has_got({DataType::kHello, DataType::kStated, DataType::kStated, DataType::kMoved}));
}

TEST_F(LosingShardLinksTest, WhatWaitsFailsWithTheJob) {
  lose_successor_slowly();
  links_.fail(unavailable("rank 7 is lost"));
  EXPECT_TRUE(wait_for(1));
  EXPECT_EQ(completed_.get().status.at(1).message(), "rank 7 is lost");
  go_on_->count_down();
}

TEST_F(LosingShardLinksTest, WhatWaitsFailsWhenThisRankLeaves) {
  lose_successor_slowly();
  std::thread others([this] {
    EXPECT_TRUE(wait_for(1));
    go_on_->count_down();
  });
  leave(kNever);
  others.join();
  EXPECT_EQ(completed_.get().status.at(1).message(), "shut down");
  EXPECT_TRUE(has_got({DataType::kHello, DataType::kStated, DataType::kGoodbye})) << "and is not sent";
}

TEST_F(ShardLinksTest, OnlyTheServiceThatHasLeftGetsNothingMore) {
  add_service(2);
  add_service(2);
  links_.peer_left(0);
  enqueue(links_.at(1, 0), 1);
  enqueue(links_.at(1, 1), 2);
  enqueue(links_.at(0, 0), 3);
  enqueue(links_.at(0, 1), 4);
  ASSERT_TRUE(wait_for(2));
  const Completed completed = completed_.get();
  EXPECT_EQ(completed.status.size(), 2u);
  EXPECT_EQ(completed.status.at(3).message(), "service 0 has left the job");
  EXPECT_EQ(completed.status.at(4).message(), "service 0 has left the job");
}

TEST_F(ShardLinksTest, LeavingReturnsWhenAllServicesHaveAnswered) {
  add_service(2);
  add_service(1);
  add_service(1);  // never connected to
  enqueue(links_.at(0, 0), 1);
  enqueue(links_.at(0, 1), 2);
  enqueue(links_.at(1, 0), 3);
  leave(kNever);
  const Completed completed = completed_.get();
  ASSERT_EQ(completed.status.size(), 3u);
  for (const uint64_t handle : {1, 2, 3}) EXPECT_EQ(completed.status.at(handle).message(), "shut down");
}

TEST_F(ShardLinksTest, LeavingNobodyReturnsAtOnce) {
  leave(kNever);
  add_service(0);
  leave(kNever);
}

TEST_F(ShardLinksTest, StoppedServicesAreWaitedForUntilTheDeadlineOnly) {
  add_service(2);
  for (const auto& each : shards_.at(0)) each->is_stopped = true;
  enqueue(links_.at(0, 0), 1);
  enqueue(links_.at(0, 1), 2);
  const TimeUs deadline_us = now_us() + 100'000;
  leave(deadline_us);
  EXPECT_GE(now_us(), deadline_us);
  ASSERT_TRUE(wait_for(2)) << "their links close then, and report to nobody";
  EXPECT_EQ(completed_.get().status.at(2).message(), "shut down");
}

}  // namespace
}  // namespace byteps::worker
