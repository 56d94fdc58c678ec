// SchedulerState: a scheduler that is started again, at whose address the job was before.
#include "protocol/scheduler_harness.h"

namespace byteps::protocol {
namespace {

constexpr PeerId kSuccessor = 77;

class SchedulerMovedTest : public SchedulerStateTest {
 protected:
  SchedulerMovedTest() : SchedulerStateTest(true) {}
};

TEST_F(SchedulerMovedTest, SendsServersToTheJob) {
  receive(5, join_of(Role::kServer, -1));
  receive(kSuccessor, Standby{"10.0.0.1:7"});
  EXPECT_EQ(receivers<Standby>(), (Peers{5})) << "it had come before";
  EXPECT_EQ(closed_, (Peers{5}));
  receive(6, join_of(Role::kServer, -1));
  EXPECT_EQ(first<Standby>().address, "10.0.0.1:7");
  EXPECT_EQ(closed_, (Peers{6}));
  receive(7, join_of(Role::kWorker, 0));
  EXPECT_EQ(closed_, (Peers{7})) << "the job says what is wrong with it";
}

TEST_F(SchedulerMovedTest, EndsWithTheJob) {
  receive(kSuccessor, Standby{"10.0.0.1:7"});
  receive(kSuccessor, Finished{"the job has ended"});
  EXPECT_EQ(state_.phase(), Phase::kFinished);
}

TEST_F(SchedulerMovedTest, FailsWhenTheSchedulerOfTheJobIsGoneOrSilent) {
  receive(kSuccessor, Standby{"10.0.0.1:7"});
  receive(kSuccessor, Heartbeat{}, 5);
  EXPECT_EQ(receivers<Heartbeat>(), (Peers{kSuccessor}));
  EXPECT_EQ(state_.next_tick_us(), 5 + kTimeoutUs) << "the start has no deadline any more";
  tick(5 + kTimeoutUs);
  EXPECT_EQ(state_.failure().message(), "the scheduler at 10.0.0.1:7 is silent");

  SchedulerState state({.num_workers = 2, .timeout_us = kTimeoutUs}, 0);
  SchedulerActions actions;
  state.on_message(kSuccessor, Standby{"10.0.0.1:7"}, 0, actions);
  state.on_closed(kSuccessor, unavailable("reset"), 0, actions);
  EXPECT_EQ(state.failure().message(), "the scheduler at 10.0.0.1:7 has gone: reset");
}

TEST_F(SchedulerMovedTest, ANewJobIsNotSentAway) {
  receive(0, join_of(Role::kWorker, 0));
  receive(kSuccessor, Standby{"10.0.0.1:7"});
  EXPECT_EQ(closed_, (Peers{kSuccessor}));
  EXPECT_EQ(state_.phase(), Phase::kJoining);
  receive(1, join_of(Role::kWorker, 1));
  receive(2, join_of(Role::kServer, 0));
  EXPECT_EQ(state_.phase(), Phase::kRunning);
  receive(kSuccessor, Standby{"10.0.0.1:7"});
  EXPECT_EQ(closed_, (Peers{kSuccessor}));
}

}  // namespace
}  // namespace byteps::protocol
