// A scheduler, and a standby that takes its place, over TCP, with scripted nodes. Decisions are tested
// in protocol/standby_test, whole jobs in the simulator.
#include "cluster/standby.h"

#include <gtest/gtest.h>

#include "cluster/harness.h"
#include "support/run_until_done.h"

namespace byteps::cluster {
namespace {

using protocol::Barrier;
using protocol::BarrierDone;
using protocol::Finished;
using protocol::Leave;
using protocol::Rejoin;
using protocol::Replicate;
using protocol::Replicated;
using protocol::Resumed;
using protocol::Role;
using protocol::Roster;

class StandbyTest : public testing::Test {
 protected:
  // A job of ranks 0 and 1, with the standby in rank 0.
  void SetUp() override {
    ASSERT_TRUE(scheduler_->listen(*tcp_, "127.0.0.1", {0}).is_ok());
    scheduler_address_ = scheduler_->address();
    standby_ = std::make_unique<Standby>(*loop_, *tcp_, *tcp_, std::vector<Address>{scheduler_address_});
    for (const int32_t rank : {0, 1}) {
      nodes_.push_back(connect(scheduler_->address()));
      if (rank == 0)
        nodes_[0]->answer = [this](auto& channel, auto& message) { return repeat(channel, message); };
      nodes_.back()->send(join_of(Role::kWorker, rank));
    }
    for (const auto& node : nodes_) ASSERT_TRUE(node->wait_for<Roster>());
    epoch_ = nodes_[0]->wait_for<Roster>()->epoch;
    run_on(*loop_, [this] {
      const auto address = standby_->listen("127.0.0.1");
      ASSERT_TRUE(address) << address.status();
      address_ = *address;
    });
    nodes_[0]->send(protocol::Standby{address_.to_string()});
    for (const auto& node : nodes_) ASSERT_TRUE(node->wait_for<protocol::Standby>());
  }
  Status repeat(ControlChannel& channel, const Control& message) {
    const auto* replicate = std::get_if<Replicate>(&message);
    if (replicate == nullptr) return Status::ok();
    Status status;
    run_on(*loop_, [&] { status = standby_->on_replicate(*replicate); });
    channel.send(Replicated{replicate->number});
    return status;
  }
  void TearDown() override {
    nodes_.clear();
    scheduler_.reset();
    loop_->stop();
  }
  std::unique_ptr<ControlPeer> connect(const Address& address) {
    peer_loops_.push_back(transport::make_loop());
    auto connection = connect_and_wait(*tcp_, *peer_loops_.back(), address, soon_us());
    BPS_CHECK(connection.is_ok()) << connection.status();
    return std::make_unique<ControlPeer>(*peer_loops_.back(), std::move(*connection));
  }
  void lose_scheduler() {
    scheduler_.reset();
    for (const auto& node : nodes_) EXPECT_FALSE(node->why_closed().is_ok());
  }
  void take_over() {
    run_on(*loop_, [this] { standby_->take_over(); });
  }
  // The node comes to the standby; it has got the roster and the standby's address so far.
  std::unique_ptr<ControlPeer> come(uint32_t node) {
    auto peer = connect(address_);
    peer->send(Rejoin{epoch_, node, 2});
    return peer;
  }

  const protocol::SchedulerOptions options_{.num_workers = 2,
                                            .start_timeout_us = kLongUs,
                                            .timeout_us = kLongUs,
                                            .op_timeout_us = kLongUs,
                                            .has_standby = true};
  std::unique_ptr<transport::Transport> tcp_ = make_tcp();
  std::unique_ptr<EventLoop> scheduler_loop_ = transport::make_loop();
  std::vector<std::unique_ptr<EventLoop>> peer_loops_;
  std::optional<Scheduler> scheduler_{std::in_place, *scheduler_loop_, *tcp_, options_};
  std::unique_ptr<EventLoop> loop_ = transport::make_loop();  // of the standby
  std::unique_ptr<Standby> standby_;
  Address scheduler_address_;
  Address address_;
  uint32_t epoch_ = 0;
  std::vector<std::unique_ptr<ControlPeer>> nodes_;
};

TEST_F(StandbyTest, NodesGoOnWhereTheyWere) {
  nodes_[1]->send(Barrier{1});
  nodes_[1]->send(protocol::Heartbeat{});
  // It counts for the standby when it is confirmed: a Join, and the Barrier.
  nodes_[1]->heard.wait([](const Heard& heard) {
    return std::ranges::any_of(heard.messages, [](const Control& message) {
      const auto* heartbeat = std::get_if<protocol::Heartbeat>(&message);
      return heartbeat != nullptr && heartbeat->received > 0;
    });
  });
  nodes_[0]->send(protocol::Waits{"a barrier", true});
  ASSERT_TRUE(nodes_[0]->wait_for<protocol::Waiting>());
  lose_scheduler();
  const auto early = come(1);
  take_over();
  EXPECT_EQ(early->wait_for<Resumed>(), Resumed{2});
  const auto late = come(0);
  EXPECT_EQ(late->wait_for<Resumed>(), Resumed{3}) << "Join, Standby, Waits";
  EXPECT_EQ(late->wait_for<protocol::Waiting>()->text.find("a barrier: "), 0u) << "it was not confirmed";
  late->send(Barrier{1});
  for (auto* const node : {early.get(), late.get()}) {
    const auto done = node->wait_for<BarrierDone>();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->sequence, 1u);
  }
}

TEST_F(StandbyTest, OnlyNodesOfTheJobCome) {
  lose_scheduler();
  take_over();
  const auto node = come(1);
  ASSERT_TRUE(node->wait_for<Resumed>());
  EXPECT_FALSE(come(1)->why_closed().is_ok()) << "it is here already";
  EXPECT_FALSE(come(2)->why_closed().is_ok()) << "no such node";
  const auto stranger = connect(address_);
  stranger->send(Rejoin{epoch_ + 1, 0, 2});
  EXPECT_FALSE(stranger->why_closed().is_ok()) << "another job";
  const auto liar = connect(address_);
  liar->send(Rejoin{epoch_, 0, 99});
  EXPECT_FALSE(liar->why_closed().is_ok()) << "it has got more than was sent";
  EXPECT_TRUE(come(0)->wait_for<Resumed>()) << "strangers do no harm";
}

TEST_F(StandbyTest, TheNewSchedulerEndsWithTheJob) {
  lose_scheduler();
  take_over();
  const auto rank_0 = come(0);
  const auto rank_1 = come(1);
  for (auto* const node : {rank_0.get(), rank_1.get()}) ASSERT_TRUE(node->wait_for<Resumed>());
  rank_0->send(Leave{});
  rank_1->send(Leave{});
  EXPECT_TRUE(rank_1->wait_for<Finished>());
  run_until_done(kNever, [this](UniqueFunction<void()> done) {
    loop_->post([this, done = std::move(done)]() mutable { standby_->leave(std::move(done)); });
  });
}

TEST_F(StandbyTest, ASchedulerThatIsStartedAgainSendsNodesToTheJob) {
  lose_scheduler();
  take_over();
  const auto rank_0 = come(0);
  const auto rank_1 = come(1);
  for (auto* const node : {rank_0.get(), rank_1.get()}) ASSERT_TRUE(node->wait_for<Resumed>());
  protocol::SchedulerOptions options = options_;
  options.num_servers = 1;  // otherwise it would refuse the server until it knows where the job is
  scheduler_.emplace(*scheduler_loop_, *tcp_, options);
  ASSERT_TRUE(scheduler_->listen(*tcp_, "127.0.0.1", {scheduler_address_.port}).is_ok());
  // It comes perhaps before the new scheduler does.
  const auto server = connect(scheduler_address_);
  server->send(join_of(Role::kServer, -1));
  const auto elsewhere = server->wait_for<protocol::Standby>();
  ASSERT_TRUE(elsewhere);
  EXPECT_EQ(elsewhere->address, address_.to_string());
  EXPECT_FALSE(server->why_closed().is_ok());
  const auto another = connect(scheduler_address_);
  another->send(join_of(Role::kServer, -1));
  EXPECT_EQ(another->wait_for<protocol::Standby>()->address, address_.to_string());

  const auto joined = connect(address_);
  joined->send(join_of(Role::kServer, -1));
  const auto roster = joined->wait_for<Roster>();
  ASSERT_TRUE(roster);
  EXPECT_EQ(roster->self, 2u);
  EXPECT_EQ(joined->wait_for<protocol::Standby>()->address, "") << "there is no second one";

  rank_0->send(Leave{});
  rank_1->send(Leave{});
  run_until_done(kNever, [this](UniqueFunction<void()> done) {
    loop_->post([this, done = std::move(done)]() mutable { standby_->leave(std::move(done)); });
  });
  EXPECT_EQ(scheduler_->ended().flag().wait(soon_us()), EventFlag::Wake::kSet);
  EXPECT_TRUE(scheduler_->outcome().is_ok()) << scheduler_->outcome();
}

TEST_F(StandbyTest, AStandbyThatIsNotTheSchedulerLeavesAtOnce) {
  run_until_done(kNever, [this](UniqueFunction<void()> done) {
    loop_->post([this, done = std::move(done)]() mutable { standby_->leave(std::move(done)); });
  });
}

}  // namespace
}  // namespace byteps::cluster
