#include "protocol/standby.h"

#include "protocol/membership.h"
#include "protocol/scheduler_harness.h"

namespace byteps::protocol {
namespace {

using EventKind = SchedulerEvent::Kind;

// A scheduler of two workers and a server, and its standby at peer 0. Messages to the standby arrive
// when deliver() is called.
class StandbyTest : public testing::Test {
 protected:
  StandbyTest() : state_(kOptions, 5), replication_({kOptions, 5}) {}

  void happen(const SchedulerEvent& event) {
    SchedulerActions actions;
    SchedulerActions released;
    apply(event, state_, actions);
    if (state_.has_standby() && !replication_.has_begun()) replication_.begin(event.peer, released);
    replication_.on_event(event, std::move(actions), released);
    if (replication_.has_begun() && !state_.has_standby()) replication_.end(released);
    take(released);
  }
  void receive(PeerId peer, const Control& message) {
    happen({.kind = EventKind::kMessage, .peer = peer, .now_us = 100, .message = message});
  }
  void take(const SchedulerActions& released) {
    sent_.clear();
    for (const SchedulerAction& action : released) {
      const auto* send = std::get_if<SendTo>(&action);
      if (send == nullptr) continue;
      const auto* replicate = std::get_if<Replicate>(&send->message);
      replicate ? on_way_.push_back(*replicate) : sent_.push_back(*send);
    }
  }
  // The standby gets all that is on its way, and says so.
  void deliver() {
    for (const Replicate& each : on_way_) {
      const Status status = replica_.on_replicate(each, 1'000);
      ASSERT_TRUE(status.is_ok()) << status;
    }
    if (on_way_.empty()) return;
    SchedulerActions released;
    const Status status = replication_.on_replicated(0, {on_way_.back().number}, released);
    ASSERT_TRUE(status.is_ok()) << status;
    on_way_.clear();
    take(released);
  }
  void start() {
    receive(0, join_of(Role::kWorker, 0));
    receive(1, join_of(Role::kWorker, 1));
    receive(2, join_of(Role::kServer, 0));
    ASSERT_EQ(state_.phase(), Phase::kRunning);
    receive(0, Standby{"10.0.0.1:7"});
    EXPECT_TRUE(sent_.empty()) << "nobody may rely on the standby yet";
    deliver();
    EXPECT_EQ(receivers<Standby>(), (std::vector<PeerId>{0, 1, 2}));
  }
  template <typename T>
  std::vector<PeerId> receivers() const {
    std::vector<PeerId> peers;
    for (const SendTo& send : sent_) {
      if (std::holds_alternative<T>(send.message)) peers.push_back(send.peer);
    }
    return peers;
  }

  static inline const SchedulerOptions kOptions{.num_workers = 2,
                                                .num_servers = 1,
                                                .start_timeout_us = kStartUs,
                                                .timeout_us = kTimeoutUs,
                                                .op_timeout_us = kOpUs,
                                                .partition_bytes = 4096,
                                                .placement = {.kind = PlacementPolicy::Kind::kPs},
                                                .failover = true,
                                                .has_standby = true};
  SchedulerState state_;
  Replication replication_;
  SchedulerReplica replica_;
  std::vector<SendTo> sent_;  // by the last call, but for Replicates
  std::vector<Replicate> on_way_;
};

TEST_F(StandbyTest, NobodyHearsWhatTheStandbyDoesNotKnow) {
  start();
  receive(1, Declare{.name = "w", .bytes = 8});
  EXPECT_TRUE(sent_.empty());
  receive(0, Declare{.name = "w", .bytes = 8});
  deliver();
  EXPECT_EQ(receivers<Placed>(), (std::vector<PeerId>{1, 0}));
}

TEST_F(StandbyTest, HeartbeatsAreAnsweredAtOnceAndConfirmOnlyWhatTheStandbyHas) {
  start();
  const uint64_t before = replication_.confirmed(1);
  receive(1, Declare{.name = "w", .bytes = 8});
  happen({.kind = EventKind::kHeartbeat, .peer = 1, .now_us = 100, .count = 0});
  EXPECT_EQ(receivers<Heartbeat>(), (std::vector<PeerId>{1}));
  EXPECT_EQ(replication_.confirmed(1), before);
  deliver();
  EXPECT_EQ(replication_.confirmed(1), before + 1);
}

TEST_F(StandbyTest, TheStandbyGoesOnWhereTheSchedulerWas) {
  start();
  receive(1, Declare{.name = "a", .bytes = 8});
  receive(0, Barrier{1});
  deliver();
  replica_.state().take_over(200);
  SchedulerActions actions;
  replica_.state().on_message(0, Declare{.name = "b", .bytes = 8}, 200, actions);
  replica_.state().on_message(1, Barrier{1}, 200, actions);
  ASSERT_EQ(actions.size(), 3u);
  const auto& placed = std::get<Placed>(std::get<SendTo>(actions[0]).message);
  EXPECT_EQ(placed.tensor, 2u) << "number 1 is a's";
  for (const size_t answer : {1, 2}) {
    const SendTo& send = std::get<SendTo>(actions[answer]);
    EXPECT_EQ(send.message, (Control{BarrierDone{1, StatusCode::kOk, ""}}));
  }
}

TEST_F(StandbyTest, SessionsKnowWhatEachEndLacks) {
  start();
  receive(1, Declare{.name = "a", .bytes = 8});
  receive(1, Declare{.name = "b", .bytes = 8});
  deliver();
  // It has the roster, the standby, and one of the answers.
  happen({.kind = EventKind::kHeartbeat, .peer = 1, .now_us = 100, .count = 3});
  deliver();
  const SchedulerReplica::Session& session = replica_.sessions().at(1);
  EXPECT_EQ(session.received, 3u) << "a Join and two Declares";
  EXPECT_EQ(session.sent.total(), 4u);
  ASSERT_EQ(session.sent.unconfirmed().size(), 1u);
  EXPECT_EQ(std::get<Placed>(session.sent.unconfirmed().front()).name, "b");
}

TEST_F(StandbyTest, TheSilenceOfNodesIsTheirsAndNotThatOfTheirMessagesOnTheWay) {
  start();
  for (TimeUs now = 0; now <= 3 * kTimeoutUs; now += kTimeoutUs / 4) {
    for (const PeerId peer : {0, 1, 2}) happen({.kind = EventKind::kHeartbeat, .peer = peer, .now_us = now});
    happen({.kind = EventKind::kTick, .now_us = now});
    deliver();
  }
  EXPECT_EQ(state_.phase(), Phase::kRunning);
  EXPECT_EQ(replica_.state().phase(), Phase::kRunning) << replica_.state().failure();
}

TEST_F(StandbyTest, NodesThatDoNotComeAreLostAfterTheTimeout) {
  start();
  const TimeUs now = 1'000'000'000;  // the scheduler was silent for long
  SchedulerState& state = replica_.state();
  state.take_over(now);
  SchedulerActions actions;
  state.on_message(0, Heartbeat{}, now + kTimeoutUs / 2, actions);
  state.on_message(1, Heartbeat{}, now + kTimeoutUs / 2, actions);
  state.on_tick(now + kTimeoutUs - 1, actions);
  EXPECT_EQ(state.peer_of(2), std::optional<PeerId>(2));
  state.on_tick(now + kTimeoutUs, actions);
  EXPECT_EQ(state.peer_of(2), std::nullopt) << "the server";
  EXPECT_EQ(state.phase(), Phase::kRunning);
}

TEST_F(StandbyTest, ANodeThatLeavesIsToldAtOnceThatItsMessageCounts) {
  start();
  receive(1, Leave{});
  EXPECT_TRUE(sent_.empty());
  deliver();
  EXPECT_EQ(receivers<Heartbeat>(), (std::vector<PeerId>{1}));
}

TEST_F(StandbyTest, WithoutTheStandbyNothingIsHeldBack) {
  start();
  receive(0, Leave{});
  EXPECT_EQ(receivers<Standby>(), (std::vector<PeerId>{0, 1, 2}));
  EXPECT_EQ(std::get<Standby>(sent_.front().message).address, "");
  on_way_.clear();  // it need not come
  receive(1, Declare{.name = "w", .bytes = 8});
  EXPECT_EQ(receivers<Placed>(), (std::vector<PeerId>{1}));
  EXPECT_EQ(replication_.confirmed(1), 2u);
  SchedulerActions released;
  EXPECT_TRUE(replication_.on_replicated(0, {1}, released).is_ok()) << "it was on its way";
}

TEST_F(StandbyTest, RefusesWhatDoesNotFit) {
  start();
  SchedulerActions released;
  EXPECT_EQ(replication_.on_replicated(1, {0}, released).code(), StatusCode::kDataLoss) << "no standby";
  EXPECT_EQ(replication_.on_replicated(0, {99}, released).code(), StatusCode::kDataLoss) << "not sent";
  EXPECT_EQ(replica_.on_replicate({99, {}}, 0).code(), StatusCode::kDataLoss) << "not the next one";
  EXPECT_EQ(replica_.on_replicate({5, {}}, 0).code(), StatusCode::kDataLoss) << "no event";
  receive(1, Standby{"10.0.0.2:7"});
  EXPECT_EQ(state_.phase(), Phase::kFailed) << "only rank 0 can be the standby";
}

// The node's side.
class FollowTest : public testing::Test {
 protected:
  void SetUp() override {
    MembershipActions actions;
    membership_.on_connected(Join{}, 0, actions);
    Roster roster;
    roster.num_workers = 1;
    roster.timeout_us = kTimeoutUs;
    roster.nodes = {join_of(Role::kWorker, 0).self, join_of(Role::kServer, 0).self};
    ASSERT_TRUE(membership_.on_message(roster, 0, actions).is_ok());
    ASSERT_TRUE(membership_.on_message(Standby{"10.0.0.1:7"}, 0, actions).is_ok());
  }
  // Loses the scheduler.
  void follow(TimeUs now) {
    MembershipActions actions;
    membership_.on_scheduler_closed(unavailable("end of file"), now, actions);
    ASSERT_EQ(actions.size(), 1u);
    EXPECT_EQ(std::get<FollowStandby>(actions[0]).address, "10.0.0.1:7");
  }

  Membership membership_{"scheduler at a:9000", false, kStartUs, kTimeoutUs};
  MembershipActions actions_;
};

TEST_F(FollowTest, FollowsTheStandbyWhenTheSchedulerIsSilentAndGoesOn) {
  membership_.on_tick(kTimeoutUs, actions_);
  ASSERT_TRUE(std::holds_alternative<FollowStandby>(actions_.back()));
  EXPECT_EQ(std::get<FollowStandby>(actions_.back()).why.message(),
            "the scheduler at a:9000 has been silent for 10 s");
  membership_.on_resumed(kTimeoutUs + 5);
  EXPECT_EQ(membership_.next_tick_us(), kTimeoutUs + 5 + kTimeoutUs / kHeartbeatsPerTimeout);
  EXPECT_TRUE(membership_.failure().is_ok());
}

TEST_F(FollowTest, FailsIfTheStandbyDoesNotAnswer) {
  follow(3);
  EXPECT_EQ(membership_.next_tick_us(), 3 + kTimeoutUs);
  membership_.on_tick(3 + kTimeoutUs, actions_);
  EXPECT_EQ(membership_.failure().message(),
            "lost the connection to the scheduler at a:9000: end of file; and no connection to its standby "
            "in rank 0 (host h, pid 100): no answer for 10 s");
}

TEST_F(FollowTest, ThereIsNoSecondStandby) {
  follow(3);
  membership_.on_resumed(4);
  membership_.on_scheduler_closed(unavailable("reset"), 5, actions_);
  EXPECT_EQ(membership_.failure().message(),
            "lost the connection to the scheduler that was the standby, which is part of rank 0 (host h, pid "
            "100): reset");
}

TEST_F(FollowTest, SuspicionsWaitForTheVerdictOfTheStandby) {
  membership_.on_suspect(1, unavailable("reset"), 0, actions_);
  follow(1);
  membership_.on_tick(kTimeoutUs, actions_);
  membership_.on_resumed(kTimeoutUs);
  EXPECT_TRUE(membership_.failure().is_ok());
  MembershipActions actions;
  ASSERT_TRUE(membership_.on_message(Heartbeat{}, 2 * kTimeoutUs, actions).is_ok());
  membership_.on_tick(kTimeoutUs + 3 * kTimeoutUs / 2, actions);
  EXPECT_EQ(membership_.failure().message(), "lost the connection to server 0 (host h, pid 100): reset");
}

TEST_F(FollowTest, ALeaveIsSentToTheStandby) {
  follow(3);
  membership_.leave("", actions_);
  ASSERT_EQ(actions_.size(), 1u);
  EXPECT_EQ(std::get<SendControl>(actions_[0]).message, Control{Leave{}});
}

TEST_F(FollowTest, ANodeThatWantsToJoinGoesWhereTheJobIs) {
  Membership membership("scheduler at a:9000", false, kStartUs, kTimeoutUs);
  membership.on_connected(Join{}, 0, actions_);
  ASSERT_TRUE(membership.on_message(Standby{"10.0.0.1:7"}, 0, actions_).is_ok());
  EXPECT_EQ(std::get<JoinElsewhere>(actions_.back()).address, "10.0.0.1:7");
  membership.on_connected(Join{}, 1, actions_);
  EXPECT_EQ(std::get<SendControl>(actions_.back()).message, Control{Join{}});
}

TEST_F(FollowTest, WithoutAStandbyTheLossIsAFailure) {
  ASSERT_TRUE(membership_.on_message(Standby{}, 0, actions_).is_ok());
  membership_.on_scheduler_closed(unavailable("end of file"), 1, actions_);
  EXPECT_FALSE(membership_.failure().is_ok());
}

}  // namespace
}  // namespace byteps::protocol
