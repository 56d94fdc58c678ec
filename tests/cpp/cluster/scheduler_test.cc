// A scheduler over TCP, with scripted nodes. Its decisions are tested in protocol/scheduler_*_test.
#include "cluster/scheduler.h"

#include <gtest/gtest.h>

#include <thread>

#include "cluster/harness.h"
#include "support/log_reader.h"
#include "support/run_until_done.h"
#include "support/tcp_relay.h"
#include "transport/resume/resuming_transport.h"

namespace byteps::cluster {
namespace {

using protocol::Finished;
using protocol::Leave;
using protocol::Lost;
using protocol::Role;
using protocol::Roster;

class SchedulerTest : public testing::Test {
 protected:
  SchedulerTest() { scheduler_.emplace(*loop_, *tcp_, options_); }
  ~SchedulerTest() override {
    peers_.clear();
    scheduler_.reset();
  }

  void shut_down(const std::string& text, TimeUs deadline_us) {
    run_until_done(kNever, [&](UniqueFunction<void()> done) {
      scheduler_->shutdown(text, deadline_us, std::move(done));
    });
  }
  void listen() {
    const Status status = scheduler_->listen(*tcp_, "127.0.0.1", {0});
    ASSERT_TRUE(status.is_ok()) << status;
  }
  std::unique_ptr<ControlPeer> connect() {
    peer_loops_.push_back(transport::make_loop());
    EventLoop& loop = *peer_loops_.back();
    auto connection = connect_and_wait(*tcp_, loop, scheduler_->address(), soon_us());
    BPS_CHECK(connection.is_ok()) << connection.status();
    return std::make_unique<ControlPeer>(loop, std::move(*connection));
  }
  // Starts a job of ranks 0 and 1.
  void start() {
    listen();
    for (const int32_t rank : {0, 1}) {
      peers_.push_back(connect());
      peers_.back()->send(join_of(Role::kWorker, rank));
    }
    for (const auto& peer : peers_) ASSERT_TRUE(peer->wait_for<Roster>());
  }
  bool has_ended(TimeUs deadline_us) {
    return scheduler_->ended().flag().wait(deadline_us) == EventFlag::Wake::kSet;
  }

  const protocol::SchedulerOptions options_{
      .num_workers = 2, .start_timeout_us = kLongUs, .timeout_us = kLongUs, .op_timeout_us = kLongUs};
  std::unique_ptr<transport::Transport> tcp_ = make_tcp();
  std::unique_ptr<EventLoop> loop_ = transport::make_loop();
  // One for each peer, in the order of creation.
  std::vector<std::unique_ptr<EventLoop>> peer_loops_;
  std::optional<Scheduler> scheduler_;
  std::vector<std::unique_ptr<ControlPeer>> peers_;
};

TEST_F(SchedulerTest, ListensOnTheFirstPortThatIsFree) {
  const Acceptor taken(*tcp_, *loop_, kAnyPort);
  const int port = taken.address().port;
  const Status status = scheduler_->listen(*tcp_, "127.0.0.1", {port, 0});
  EXPECT_TRUE(status.is_ok()) << status;
  EXPECT_NE(scheduler_->address().port, port);
  EXPECT_NE(scheduler_->address().port, 0);
}

TEST_F(SchedulerTest, SaysWhichPortsItHasTried) {
  const Acceptor one(*tcp_, *loop_, kAnyPort);
  const Acceptor two(*tcp_, *loop_, kAnyPort);
  const Status status = scheduler_->listen(*tcp_, "127.0.0.1", {one.address().port, two.address().port});
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  for (const Acceptor* taken : {&one, &two}) {
    EXPECT_NE(status.message().find(taken->address().to_string()), std::string::npos) << status;
  }
}

TEST_F(SchedulerTest, ANodeThatEndsIsNamedToTheOthersAndIsTheOutcome) {
  start();
  peers_[1]->close();
  const auto lost = peers_[0]->wait_for<Lost>();
  ASSERT_TRUE(lost);
  EXPECT_NE(lost->text.find("rank 1 (host h1, pid 101) ended without leaving"), std::string::npos)
      << lost->text;
  ASSERT_TRUE(has_ended(soon_us()));
  EXPECT_EQ(scheduler_->outcome().message(), lost->text);
}

TEST_F(SchedulerTest, ASilentNodeIsNamed) {
  scheduler_.emplace(
      *loop_, *tcp_,
      protocol::SchedulerOptions{
          .num_workers = 2, .start_timeout_us = kLongUs, .timeout_us = 50'000, .op_timeout_us = kLongUs});
  start();
  const auto lost = peers_[0]->wait_for<Lost>();
  ASSERT_TRUE(lost);
  EXPECT_NE(lost->text.find("has been silent for"), std::string::npos) << lost->text;
}

TEST_F(SchedulerTest, AMissingNodeIsNamedAtTheStartDeadline) {
  scheduler_.emplace(
      *loop_, *tcp_,
      protocol::SchedulerOptions{
          .num_workers = 2, .start_timeout_us = 100'000, .timeout_us = kLongUs, .op_timeout_us = kLongUs});
  listen();
  EXPECT_TRUE(has_ended(soon_us())) << "with nobody there";
  EXPECT_NE(scheduler_->outcome().message().find("2 workers missing"), std::string::npos)
      << scheduler_->outcome();
}

TEST_F(SchedulerTest, ItHasEndedWellWhenAllHaveLeft) {
  start();
  for (const auto& peer : peers_) peer->send(Leave{});
  ASSERT_TRUE(has_ended(soon_us()));
  EXPECT_TRUE(scheduler_->outcome().is_ok()) << scheduler_->outcome();
  EXPECT_TRUE(peers_[0]->wait_for<Finished>());
}

TEST_F(SchedulerTest, AStoppedNodeDoesNotKeepItFromEnding) {
  start();
  const StoppedLoop stopped(*peer_loops_[0]);
  peers_[1]->close();
  ASSERT_TRUE(has_ended(soon_us()));
  EXPECT_NE(scheduler_->outcome().message().find("rank 1 (host h1"), std::string::npos)
      << scheduler_->outcome();
}

TEST_F(SchedulerTest, ANodeThatJoinsAFailedJobIsToldWhy) {
  start();
  peers_[1]->close();
  ASSERT_TRUE(peers_[0]->wait_for<Lost>());
  const auto late = connect();
  late->send(join_of(Role::kWorker, 1));
  const auto lost = late->wait_for<Lost>();
  ASSERT_TRUE(lost);
  EXPECT_NE(lost->text.find("rank 1 (host h1, pid 101)"), std::string::npos) << lost->text;
}

TEST_F(SchedulerTest, APeerThatSendsBeforeItsJoinIsDisconnected) {
  listen();
  const auto stranger = connect();
  stranger->send(protocol::Heartbeat{});
  EXPECT_EQ(stranger->why_closed().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(stranger->heard.get().messages.empty());
}

TEST_F(SchedulerTest, AnotherVersionClosesTheConnectionAndIsLoggedOnce) {
  listen();
  const std::string address = scheduler_->address().to_string();
  LogReader log;
  for (int i = 0; i < 2; ++i) {
    const auto loop = transport::make_loop();
    auto connection = connect_and_wait(*tcp_, *loop, scheduler_->address(), soon_us());
    ASSERT_TRUE(connection.is_ok()) << connection.status();
    transport::Recorder recorder;
    auto encoded = protocol::encode(Control(join_of(Role::kWorker, 0)));
    encoded.head[0] = std::byte{99};
    run_on(*loop, [&] {
      (*connection)->start(&recorder);
      (*connection)->send(encoded.head, {encoded.payload, {}}, {});
    });
    EXPECT_EQ(recorder.why_closed().code(), StatusCode::kUnavailable);
    run_on(*loop, [&] { connection->reset(); });
    EXPECT_EQ(log.wait_for("another version of byteps", now_us() + (i == 0 ? 20'000'000 : 0)), i == 0);
  }
}

TEST_F(SchedulerTest, ShuttingDownTellsAllAndWaitsUntilTheyHaveClosed) {
  start();
  shut_down("rank 0 has left", kNever);
  for (const auto& peer : peers_) {
    const auto finished = peer->wait_for<Finished>();
    ASSERT_TRUE(finished);
    EXPECT_EQ(finished->text, "rank 0 has left");
  }
}

TEST_F(SchedulerTest, GivesUpAndAllNotice) {
  start();
  run_on(*loop_, [this] { scheduler_->give_up(unavailable("no memory")); });
  EXPECT_TRUE(has_ended(soon_us()));
  EXPECT_EQ(scheduler_->outcome().message(), "the scheduler: no memory");
  for (const auto& peer : peers_) EXPECT_EQ(peer->why_closed().code(), StatusCode::kUnavailable);
  shut_down("it has left", kNever);
}

TEST_F(SchedulerTest, ShuttingDownEndsAtItsDeadline) {
  start();
  const StoppedLoop stopped(*peer_loops_[1]);
  const TimeUs deadline_us = now_us() + 50'000;
  shut_down("rank 0 has left", deadline_us);
  EXPECT_GE(now_us(), deadline_us);
}

TEST_F(SchedulerTest, ShuttingDownBeforeTheStartFailsTheJob) {
  listen();
  const auto first = connect();
  first->send(join_of(Role::kWorker, 0));
  // An answer proves that the scheduler has processed the Join before it.
  first->send(protocol::Heartbeat{});
  ASSERT_TRUE(first->wait_for<protocol::Heartbeat>());
  shut_down("rank 0 has left", kNever);
  const auto lost = first->wait_for<Lost>();
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->text, "the job has not started: rank 0 has left");
}

// Rank 1's connection to the scheduler is made anew when it is reset, for longer than a test lasts.
class InterruptedNodeTest : public SchedulerTest {
 protected:
  InterruptedNodeTest() {
    for (const uint64_t nonce : {1, 2, 3}) {
      resuming_.push_back(
          transport::make_resuming_transport(make_tcp(), {.nonce = nonce, .limit_us = kLongUs}));
    }
    EXPECT_TRUE(scheduler_->listen(*resuming_[0], "127.0.0.1", {0}).is_ok());
    relay_.emplace(scheduler_->address());
    join(0, scheduler_->address());
    join(1, relay_->address());
    for (const auto& peer : peers_) EXPECT_TRUE(peer->wait_for<Roster>());
  }
  // A connection that is being made anew uses its transport.
  ~InterruptedNodeTest() override { peers_.clear(); }

  void join(int32_t rank, const Address& scheduler) {
    services_.push_back(std::make_unique<Acceptor>(*tcp_, *loop_, kAnyPort));
    peer_loops_.push_back(transport::make_loop());
    EventLoop& loop = *peer_loops_.back();
    auto connection = connect_and_wait(*resuming_[rank + 1], loop, scheduler, soon_us());
    BPS_CHECK(connection.is_ok()) << connection.status();
    peers_.push_back(std::make_unique<ControlPeer>(loop, std::move(*connection)));
    protocol::Join join = join_of(Role::kWorker, rank);
    join.self.endpoints = {{"tcp", {services_.back()->address().to_string()}}};
    peers_.back()->send(join);
  }
  void reset_and_cut() {
    relay_->close();
    relay_->reset_all();
  }
  void end_service(size_t rank) { services_[rank].reset(); }
  void expect_that_rank_1_is_lost() {
    const auto lost = peers_[0]->wait_for<Lost>();
    ASSERT_TRUE(lost);
    EXPECT_NE(lost->text.find("rank 1 (host h1, pid 101) ended without leaving"), std::string::npos)
        << lost->text;
    EXPECT_NE(lost->text.find("its process has ended"), std::string::npos) << lost->text;
  }

  std::vector<std::unique_ptr<transport::Transport>> resuming_;
  std::vector<std::unique_ptr<Acceptor>> services_;
  std::optional<transport::TcpRelay> relay_;
};

// The kernel resets the connections of a process that is killed before it has read everything.
TEST_F(InterruptedNodeTest, ItIsLostIfItsProcessHasEnded) {
  end_service(1);
  reset_and_cut();
  expect_that_rank_1_is_lost();
}

TEST_F(InterruptedNodeTest, ItIsTriedAgainWhileItsProcessIsThere) {
  reset_and_cut();
  ASSERT_TRUE(transport::eventually([this] { return services_[1]->waiting() >= 2; }));
  EXPECT_FALSE(scheduler_->ended().is_reached());
  end_service(1);
  expect_that_rank_1_is_lost();
}

TEST_F(InterruptedNodeTest, ItGoesOnIfItConnectsAgain) {
  end_service(1);
  relay_->reset_all();
  peers_[1]->send(protocol::Heartbeat{});
  ASSERT_TRUE(peers_[1]->wait_for<protocol::Heartbeat>());
  for (const auto& peer : peers_) peer->send(Leave{});
  ASSERT_TRUE(has_ended(soon_us()));
  EXPECT_TRUE(scheduler_->outcome().is_ok()) << scheduler_->outcome();
}

}  // namespace
}  // namespace byteps::cluster
