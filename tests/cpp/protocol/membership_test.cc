#include "protocol/membership.h"

#include <gtest/gtest.h>

namespace byteps::protocol {
namespace {

constexpr TimeUs kSilenceUs = 8'000'000;
constexpr TimeUs kBeginUs = 60'000'000;

NodeInfo numbered_node(Role role, int32_t rank) {
  NodeInfo info;
  info.role = role;
  info.rank = rank;
  info.host = "h" + std::to_string(rank);
  info.pid = 10;
  return info;
}

// The membership of a node, and the actions of the last call, one word each.
class MembershipTest : public testing::Test {
 protected:
  void connect(TimeUs now = 0) {
    collect([&](MembershipActions& actions) { membership_.on_connected(Join{}, now, actions); });
  }
  Status receive(const Control& message, TimeUs now = 0) {
    Status status;
    collect([&](MembershipActions& actions) { status = membership_.on_message(message, now, actions); });
    return status;
  }
  void start(TimeUs now = 0) {
    connect(now);
    Roster roster;
    roster.num_workers = 2;
    roster.timeout_us = kSilenceUs;
    roster.nodes = {numbered_node(Role::kWorker, 0), numbered_node(Role::kWorker, 1),
                    numbered_node(Role::kServer, 0)};
    ASSERT_TRUE(receive(roster, now).is_ok());
  }
  void tick(TimeUs now) {
    collect([&](MembershipActions& actions) { membership_.on_tick(now, actions); });
  }
  void suspect(uint32_t node, TimeUs now = 0) {
    collect([&](MembershipActions& actions) {
      membership_.on_suspect(node, unavailable("reset"), now, actions);
    });
  }
  void close() {
    collect([&](MembershipActions& actions) {
      membership_.on_scheduler_closed(unavailable("end of file"), 0, actions);
    });
  }
  void leave(const std::string& cause = "") {
    collect([&](MembershipActions& actions) { membership_.leave(cause, actions); });
  }

  template <typename Body>
  void collect(Body body) {
    MembershipActions actions;
    body(actions);
    said_.clear();
    for (const MembershipAction& action : actions) {
      if (const auto* send = std::get_if<SendControl>(&action)) {
        if (std::holds_alternative<Join>(send->message)) said_ += "join ";
        if (std::holds_alternative<Heartbeat>(send->message)) said_ += "heartbeat ";
        if (std::holds_alternative<Leave>(send->message)) said_ += "leave ";
        if (const auto* s = std::get_if<Suspect>(&send->message))
          said_ += "suspect " + std::to_string(s->node) + " ";
      }
      if (std::holds_alternative<JobStarted>(action)) said_ += "started ";
      if (std::holds_alternative<JobFailed>(action)) said_ += "failed ";
      if (const auto* left = std::get_if<NodeLeft>(&action))
        said_ += "left " + std::to_string(left->node) + " ";
      if (std::holds_alternative<NodeAdded>(action))
        said_ += "added server " + std::to_string(membership_.roster().nodes.back().rank) + " ";
      if (std::holds_alternative<JobFinished>(action)) said_ += "finished ";
      if (const auto* waiting = std::get_if<LogStillWaiting>(&action)) said_ += "waiting: " + waiting->text;
      if (const auto* again = std::get_if<TryAgain>(&action)) {
        said_ += "again ";
        why_again_ = again->why.message();
      }
    }
  }
  void expect_failure(StatusCode code, const std::string& message) {
    EXPECT_EQ(said_, "failed ");
    EXPECT_EQ(membership_.failure().code(), code);
    EXPECT_EQ(membership_.failure().message(), message);
    EXPECT_EQ(membership_.next_tick_us(), kNever);
  }

  Membership membership_{"scheduler at 10.0.0.1:9000", false, kBeginUs, kSilenceUs};
  std::string said_;
  std::string why_again_;
};

TEST_F(MembershipTest, JoinsAndStarts) {
  connect();
  EXPECT_EQ(said_, "join ");
  EXPECT_FALSE(membership_.started());
  start();
  EXPECT_EQ(said_, "started ");
  EXPECT_TRUE(membership_.started());
  EXPECT_EQ(membership_.roster().nodes.size(), 3u);
}

TEST_F(MembershipTest, SendsAHeartbeatFourTimesPerTimeout) {
  start();
  for (TimeUs now = kSilenceUs / 4; now <= 10 * kSilenceUs; now += kSilenceUs / 4) {
    EXPECT_EQ(membership_.next_tick_us(), now);
    tick(now - 1);
    EXPECT_EQ(said_, "");
    tick(now);
    EXPECT_EQ(said_, "heartbeat ");
    ASSERT_TRUE(receive(Heartbeat{}, now).is_ok());
  }
}

TEST_F(MembershipTest, TheRostersTimeoutReplacesItsOwn) {
  connect();
  Roster roster;
  roster.num_workers = 1;
  roster.timeout_us = 400;
  roster.nodes = {numbered_node(Role::kWorker, 0)};
  ASSERT_TRUE(receive(roster, 0).is_ok());
  EXPECT_EQ(membership_.next_tick_us(), 100);
  tick(400);
  EXPECT_FALSE(membership_.failure().is_ok());
}

TEST_F(MembershipTest, FailsWhenTheJobDoesNotStart) {
  tick(kBeginUs - 1);
  EXPECT_EQ(said_, "");
  tick(kBeginUs);
  expect_failure(StatusCode::kDeadlineExceeded,
                 "the job has not started: no connection to the scheduler at 10.0.0.1:9000");
}

TEST_F(MembershipTest, FailsWhenTheRosterDoesNotCome) {
  connect(kBeginUs - 1);
  tick(kBeginUs);
  expect_failure(StatusCode::kDeadlineExceeded,
                 "the job has not started: the scheduler at 10.0.0.1:9000 still waits for other nodes");
}

TEST_F(MembershipTest, AnySignOfLifeOfTheSchedulerCounts) {
  start();
  const Control signs[] = {Heartbeat{}, Placed{}, Refused{}, BarrierDone{}, Left{2, 1}};
  TimeUs now = 0;
  for (const Control& sign : signs) {
    now += kSilenceUs - 1;
    ASSERT_TRUE(receive(sign, now).is_ok());
    tick(now + 1);
    EXPECT_TRUE(membership_.failure().is_ok());
  }
  tick(now + kSilenceUs);
  expect_failure(StatusCode::kUnavailable, "the scheduler at 10.0.0.1:9000 has been silent for 8 s");
}

TEST_F(MembershipTest, FailsWhenTheSchedulerIsGone) {
  start();
  close();
  expect_failure(StatusCode::kUnavailable,
                 "lost the connection to the scheduler at 10.0.0.1:9000: end of file");
}

TEST_F(MembershipTest, ASchedulerThatHangsUpWithoutAnAnswerIsThatOfAnEarlierJob) {
  connect();
  close();
  EXPECT_EQ(said_, "again ");
  EXPECT_EQ(why_again_, "it closed the connection without an answer: end of file");
  connect();
  ASSERT_TRUE(receive(Heartbeat{}).is_ok());
  close();
  expect_failure(StatusCode::kUnavailable,
                 "lost the connection to the scheduler at 10.0.0.1:9000: end of file");
}

TEST_F(MembershipTest, AConnectionThatGetsNoAnswerIsStillTriedOnlyUntilTheStartDeadline) {
  connect();
  close();
  tick(kBeginUs);
  expect_failure(StatusCode::kDeadlineExceeded,
                 "the job has not started: no connection to the scheduler at 10.0.0.1:9000");
}

TEST_F(MembershipTest, NamesTheRankThatTheSchedulerLivesIn) {
  Membership membership("scheduler", true, kBeginUs, kSilenceUs);
  MembershipActions actions;
  membership.on_connected(Join{}, 0, actions);
  Roster roster;
  roster.num_workers = 1;
  roster.timeout_us = kSilenceUs;
  roster.nodes = {numbered_node(Role::kWorker, 0)};
  ASSERT_TRUE(membership.on_message(roster, 0, actions).is_ok());
  membership.on_scheduler_closed(unavailable("end of file"), 0, actions);
  EXPECT_EQ(membership.failure().message(),
            "lost the connection to the scheduler, which is part of rank 0 (host h0, pid 10): end of file");
}

TEST_F(MembershipTest, TheSchedulersVerdictIsFinalAndTheFirstFailureStays) {
  start();
  ASSERT_TRUE(receive(Lost{StatusCode::kUnavailable, "rank 1 ended"}).is_ok());
  expect_failure(StatusCode::kUnavailable, "rank 1 ended");
  ASSERT_TRUE(receive(Lost{StatusCode::kInternal, "something else"}).is_ok());
  EXPECT_EQ(said_, "");
  close();
  suspect(1);
  leave();
  tick(100 * kSilenceUs);
  EXPECT_EQ(said_, "");
  EXPECT_EQ(membership_.failure().message(), "rank 1 ended");
}

TEST_F(MembershipTest, SuspicionIsReportedOnceAndWaitsForTheVerdict) {
  start();
  suspect(2, 100);
  EXPECT_EQ(said_, "suspect 2 ");
  suspect(2, 200);
  EXPECT_EQ(said_, "");
  const TimeUs deadline = 100 + kSilenceUs * 3 / 2;
  ASSERT_TRUE(receive(Heartbeat{}, deadline - 2).is_ok());
  tick(deadline - 1);
  EXPECT_TRUE(membership_.failure().is_ok());
  EXPECT_LE(membership_.next_tick_us(), deadline);
  tick(deadline);
  expect_failure(StatusCode::kUnavailable, "lost the connection to server 0 (host h0, pid 10): reset");
}

TEST_F(MembershipTest, SuspectThatHadLeftIsNoFailure) {
  start();
  suspect(1);
  ASSERT_TRUE(receive(Left{2, 1}).is_ok());
  EXPECT_EQ(said_, "left 1 ");
  EXPECT_TRUE(membership_.has_left(1));
  EXPECT_FALSE(membership_.has_left(0));
  suspect(1);
  EXPECT_EQ(said_, "");
  const TimeUs later = kSilenceUs * 2;
  ASSERT_TRUE(receive(Heartbeat{}, later).is_ok());
  tick(later);
  EXPECT_TRUE(membership_.failure().is_ok());
}

TEST_F(MembershipTest, AfterTheEndABrokenConnectionIsNoFailure) {
  start();
  leave();
  suspect(1);
  ASSERT_TRUE(receive(Finished{"all workers have left"}).is_ok());
  EXPECT_EQ(said_, "finished ");
  close();
  EXPECT_EQ(said_, "");
  suspect(2);
  EXPECT_EQ(said_, "");
  tick(100 * kSilenceUs);
  EXPECT_EQ(said_, "");
  EXPECT_TRUE(membership_.failure().is_ok());
  EXPECT_EQ(membership_.next_tick_us(), kNever);
}

TEST_F(MembershipTest, WorkerThatTheSchedulerLeavesBehindFailsATimeoutLater) {
  start();
  ASSERT_TRUE(receive(Finished{"rank 0 has left"}, 5).is_ok());
  EXPECT_EQ(said_, "finished ");
  EXPECT_EQ(membership_.next_tick_us(), 5 + kSilenceUs);
  tick(4 + kSilenceUs);
  EXPECT_EQ(said_, "");
  tick(5 + kSilenceUs);
  expect_failure(StatusCode::kUnavailable, "the scheduler at 10.0.0.1:9000 has left the job");
}

TEST_F(MembershipTest, TheSuspectIsNamedWhenTheSchedulerLeftBeforeAVerdict) {
  start();
  suspect(1);
  ASSERT_TRUE(receive(Finished{"rank 0 has left"}, 5).is_ok());
  suspect(2);  // its process may have ended because the job has
  tick(5 + kSilenceUs);
  expect_failure(
      StatusCode::kUnavailable,
      "the scheduler at 10.0.0.1:9000 has left the job, and the connection to rank 1 (host h1, pid 10) is "
      "lost: reset");
}

TEST_F(MembershipTest, SchedulerOfAnEarlierJobIsNotTheOneToJoin) {
  connect();
  ASSERT_TRUE(receive(Finished{"this job is over"}).is_ok());
  EXPECT_EQ(said_, "again ");
  EXPECT_EQ(why_again_, "it still serves a job that this process has left");
  EXPECT_TRUE(membership_.failure().is_ok());
  connect();
  EXPECT_EQ(said_, "join ");
}

TEST_F(MembershipTest, SchedulerThatCannotBeReachedIsAFailure) {
  collect([&](MembershipActions& actions) {
    membership_.on_scheduler_closed(permission_denied("another secret"), 0, actions);
  });
  expect_failure(StatusCode::kPermissionDenied,
                 "cannot join the job: scheduler at 10.0.0.1:9000: another secret");
}

TEST_F(MembershipTest, SaysThatThereIsNoConnectionYet) {
  membership_.on_begin(1);
  EXPECT_EQ(membership_.next_tick_us(), std::min(kBeginUs, TimeUs{5'000'001}));
  Membership patient("scheduler at h:1", false, kNever, kSilenceUs);
  patient.on_begin(1);
  for (const TimeUs now : {5'000'001, 35'000'001}) {
    EXPECT_EQ(patient.next_tick_us(), now);
    MembershipActions actions;
    patient.on_tick(now - 1, actions);
    EXPECT_TRUE(actions.empty());
    patient.on_tick(now, actions);
    ASSERT_EQ(actions.size(), 1u);
    EXPECT_EQ(std::get<LogStillWaiting>(actions[0]).text,
              "the job has not started after " + std::string(now < 10'000'000 ? "5" : "35") +
                  " s: no connection to the scheduler at h:1 yet");
  }
}

TEST_F(MembershipTest, LogsWhichNodesTheSchedulerWaitsFor) {
  start();
  ASSERT_TRUE(receive(Waiting{"rank 1 waits for nothing"}).is_ok());
  EXPECT_EQ(said_, "waiting: rank 1 waits for nothing");
}

TEST_F(MembershipTest, TellsWhatEndsIt) {
  start();
  MembershipActions actions;
  membership_.leave("KeyError: 'label'", actions);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(std::get<Leave>(std::get<SendControl>(actions[0]).message), (Leave{"KeyError: 'label'"}));
}

TEST_F(MembershipTest, GivesUpWithoutTheScheduler) {
  start();
  const auto give_up = [this] {
    collect([&](MembershipActions& actions) { membership_.give_up(unavailable("no memory"), actions); });
  };
  give_up();
  EXPECT_EQ(membership_.failure().message(), "rank 0 (host h0, pid 10): no memory");
  give_up();
  EXPECT_EQ(said_, "") << "once";
}

TEST_F(MembershipTest, LeavesOnceAtAnyTime) {
  leave();
  EXPECT_EQ(said_, "") << "not connected yet";
  Membership joining("scheduler", false, kBeginUs, kSilenceUs);
  MembershipActions actions;
  joining.on_connected(Join{}, 0, actions);
  joining.leave("", actions);
  EXPECT_EQ(actions.size(), 2u);
  joining.leave("", actions);
  EXPECT_EQ(actions.size(), 2u);
}

TEST_F(MembershipTest, LeavesInOrder) {
  start();
  leave();
  EXPECT_EQ(said_, "leave ");
  leave();
  EXPECT_EQ(said_, "");
}

TEST_F(MembershipTest, RefusesMessagesThatNoSchedulerSends) {
  connect();
  EXPECT_EQ(receive(Left{2, 0}).code(), StatusCode::kDataLoss) << "before the roster";
  start();
  const Control wrong[] = {Join{}, Declare{}, Barrier{}, Suspect{}, Leave{}, Left{2, 3}};
  for (const Control& message : wrong) {
    EXPECT_EQ(receive(message).code(), StatusCode::kDataLoss) << message.index();
    EXPECT_EQ(said_, "");
  }
  EXPECT_EQ(receive(membership_.roster()).code(), StatusCode::kDataLoss) << "a second roster";
  EXPECT_EQ(receive(ProbeSetup{1}).code(), StatusCode::kDataLoss) << "after the start";
  ASSERT_TRUE(receive(Left{2, 1}).is_ok());
  EXPECT_EQ(receive(Left{3, 1}).code(), StatusCode::kDataLoss) << "left twice";
  EXPECT_TRUE(membership_.failure().is_ok());
}

TEST_F(MembershipTest, NetworkCardsAreMeasuredBeforeTheStart) {
  connect();
  EXPECT_TRUE(receive(ProbeSetup{1}).is_ok());
  EXPECT_TRUE(receive(ProbeStart{.round = 1, .helpers = {}}).is_ok());
  EXPECT_EQ(receive(ProbeDone{1, 1, 1}).code(), StatusCode::kDataLoss) << "only nodes send it";
}

TEST_F(MembershipTest, AServerThatComesIsTheNextNode) {
  EXPECT_FALSE(receive(Added{numbered_node(Role::kServer, 1)}).is_ok()) << "before the roster";
  start();
  ASSERT_TRUE(receive(Added{numbered_node(Role::kServer, 1)}).is_ok());
  EXPECT_EQ(said_, "added server 1 ");
  suspect(3);
  ASSERT_TRUE(receive(Removed{3, "server 1 is lost", {}}).is_ok());
  EXPECT_TRUE(membership_.has_left(3));
  EXPECT_FALSE(receive(Added{numbered_node(Role::kServer, 1)}).is_ok()) << "numbers are used once";
  EXPECT_FALSE(receive(Added{numbered_node(Role::kServer, 3)}).is_ok());
}

TEST_F(MembershipTest, ServersThatWereLostBeforeThisNodeCameAreKnown) {
  connect();
  Roster roster;
  roster.num_workers = 1;
  roster.timeout_us = kSilenceUs;
  roster.nodes = {numbered_node(Role::kWorker, 0), numbered_node(Role::kServer, 0),
                  numbered_node(Role::kServer, 1)};
  roster.lost = {1};
  ASSERT_TRUE(receive(roster).is_ok());
  EXPECT_TRUE(membership_.has_left(1));
  EXPECT_FALSE(membership_.has_left(2));
  EXPECT_FALSE(receive(Removed{1, "again", {}}).is_ok());
}

}  // namespace
}  // namespace byteps::protocol
