// A client over TCP, with scripted schedulers. Its decisions are tested in
// protocol/membership_test.
#include "cluster/client.h"

#include <gtest/gtest.h>

#include <thread>

#include "cluster/harness.h"
#include "support/run_until_done.h"

namespace byteps::cluster {
namespace {

using protocol::Barrier;
using protocol::BarrierDone;
using protocol::Finished;
using protocol::Heartbeat;
using protocol::Join;
using protocol::Leave;
using protocol::Lost;
using protocol::Role;
using protocol::Roster;
using protocol::Suspect;

// Events that the client has reported.
struct Told {
  int started = 0;
  std::vector<Status> failed;
  std::vector<uint32_t> left;
  std::vector<std::string> finished;
  std::string waiting;
  std::vector<Control> answers;
  std::vector<Control> probes;
};

class ClientTest : public testing::Test, public ClientEvents {
 protected:
  ~ClientTest() override {
    client_.reset();
    scheduler_.reset();
    acceptors_.clear();
  }

  void leave(TimeUs deadline_us) {
    run_until_done(kNever,
                   [&](UniqueFunction<void()> done) { client_->leave(deadline_us, std::move(done)); });
  }

  // Opens an address at which the client may find a scheduler.
  Acceptor& listen(const std::string& secret = "a secret of the test") {
    transports_.push_back(make_tcp(secret));
    acceptors_.push_back(std::make_unique<Acceptor>(*transports_.back(), *scheduler_loop_, kAnyPort));
    return *acceptors_.back();
  }
  void make_client(const std::vector<int>& ports, TimeUs grace_us = kLongUs) {
    ClientOptions options{.scheduler_host = "127.0.0.1",
                          .scheduler_addresses = {{"127.0.0.1", 0}},
                          .scheduler_ports = ports,
                          .start_deadline_us = now_us() + grace_us,
                          .timeout_us = kLongUs};
    client_ = std::make_unique<Client>(*loop_, *tcp_, std::move(options), *this);
  }
  void join() { client_->join(join_of(Role::kWorker, 1)); }
  // Accepts the client as its scheduler.
  void accept_client(Acceptor& acceptor) {
    auto connection = acceptor.take();
    ASSERT_NE(connection, nullptr) << "nobody came";
    scheduler_ = std::make_unique<ControlPeer>(*scheduler_loop_, std::move(connection));
  }
  static Roster roster(TimeUs timeout_us = kLongUs) {
    Roster roster;
    roster.epoch = 1;
    roster.self = 1;
    roster.num_workers = 2;
    roster.timeout_us = static_cast<uint64_t>(timeout_us);
    for (const int32_t rank : {0, 1}) roster.nodes.push_back(join_of(Role::kWorker, rank).self);
    return roster;
  }
  void start(TimeUs timeout_us = kLongUs) {
    Acceptor& acceptor = listen();
    make_client({acceptor.address().port});
    join();
    accept_client(acceptor);
    ASSERT_TRUE(scheduler_->wait_for<Join>());
    scheduler_->send(roster(timeout_us));
    ASSERT_TRUE(told_.wait([](const Told& t) { return t.started == 1; }));
  }
  // Waits until the client has received everything that the scheduler has sent: a pass of a loop
  // ends by handling received data.
  void drain() {
    for (EventLoop* loop : {scheduler_loop_.get(), loop_.get()}) {
      for (int i = 0; i < 3; ++i) run_on(*loop, [] {});
    }
  }
  Status failure() {
    if (!told_.wait([](const Told& t) { return !t.failed.empty(); })) return internal("no failure in time");
    return told_.get().failed.front();
  }

  void on_started(const Roster& roster) override {
    EXPECT_EQ(roster.self, 1u);
    told_.update([](Told& t) { ++t.started; });
  }
  void on_failed(const Status& why) override {
    told_.update([&why](Told& t) { t.failed.push_back(why); });
  }
  void on_node_removed(const protocol::Removed&) override {}
  void on_node_added(const protocol::NodeInfo&) override {}
  void on_node_left(uint32_t node) override {
    told_.update([node](Told& t) { t.left.push_back(node); });
  }
  void on_finished(const std::string& text) override {
    told_.update([&text](Told& t) { t.finished.push_back(text); });
  }
  void on_probe_setup(const protocol::ProbeSetup& setup) override {
    told_.update([&setup](Told& t) { t.probes.emplace_back(setup); });
  }
  void on_probe_start(const protocol::ProbeStart& start) override {
    told_.update([&start](Told& t) { t.probes.emplace_back(start); });
  }
  void on_still_waiting(const std::string& text) override {
    told_.update([&text](Told& t) { t.waiting = text; });
  }
  Status on_answer(const Control& message) override {
    told_.update([&message](Told& t) { t.answers.push_back(message); });
    return verdict_;
  }

  Watched<Told> told_;
  Status verdict_;  // returned by on_answer
  std::unique_ptr<EventLoop> loop_ = transport::make_loop();
  std::unique_ptr<EventLoop> scheduler_loop_ = transport::make_loop();
  std::unique_ptr<transport::Transport> tcp_ = make_tcp();
  std::vector<std::unique_ptr<transport::Transport>> transports_;
  std::vector<std::unique_ptr<Acceptor>> acceptors_;
  std::unique_ptr<ControlPeer> scheduler_;
  std::unique_ptr<Client> client_;
};

TEST_F(ClientTest, JoinsStartsAndPassesAnswersOn) {
  start();
  EXPECT_EQ(scheduler_->wait_for<Join>()->self, join_of(Role::kWorker, 1).self);
  client_->send(Barrier{1});
  EXPECT_EQ(scheduler_->wait_for<Barrier>(), Barrier{1});
  scheduler_->send(BarrierDone{1, StatusCode::kOk, ""});
  scheduler_->send(protocol::Left{2, 0});
  ASSERT_TRUE(told_.wait([](const Told& t) { return !t.left.empty(); }));
  EXPECT_EQ(told_.get().answers, (std::vector<Control>{BarrierDone{1, StatusCode::kOk, ""}}));
  EXPECT_EQ(told_.get().left, (std::vector<uint32_t>{0}));
}

TEST_F(ClientTest, PassesOnEveryAnswerInOrder) {
  start();
  const std::vector<Control> sent{
      protocol::Placed{.name = "x", .tensor = 1, .locations = {{0, 0}}},
      protocol::Refused{.name = "x", .tensor = 1, .text = "rank 0 refuses it", .round = 3},
      BarrierDone{1, StatusCode::kOk, ""}, protocol::Stalled{1, "x", "waits"},
      protocol::Leaving{0, "KeyError"}};
  for (const Control& message : sent) scheduler_->send(message);
  ASSERT_TRUE(told_.wait([&](const Told& t) { return t.answers.size() == sent.size(); }));
  EXPECT_EQ(told_.get().answers, sent);
}

TEST_F(ClientTest, PassesOnProbeMessagesBeforeTheJobStarts) {
  Acceptor& acceptor = listen();
  make_client({acceptor.address().port});
  join();
  accept_client(acceptor);
  ASSERT_TRUE(scheduler_->wait_for<Join>());
  const std::vector<Control> sent{protocol::ProbeSetup{7}, protocol::ProbeStart{1, 2, {{{"10.0.0.2:9000"}}}}};
  for (const Control& message : sent) scheduler_->send(message);
  ASSERT_TRUE(told_.wait([](const Told& t) { return t.probes.size() == 2; }));
  EXPECT_EQ(told_.get().probes, sent);
  scheduler_->send(roster());
  ASSERT_TRUE(told_.wait([](const Told& t) { return t.started == 1; }));
}

TEST_F(ClientTest, AFailureIsReportedOnceAndAnswersInFlightAreNot) {
  start();
  scheduler_->closes_when_told_of_the_end = false;
  scheduler_->send(Lost{StatusCode::kUnavailable, "rank 0 is lost"});
  scheduler_->send(BarrierDone{1, StatusCode::kOk, ""});
  scheduler_->send(protocol::Placed{.name = "x", .tensor = 1, .locations = {}});
  scheduler_->send(Lost{StatusCode::kUnavailable, "rank 7 is lost"});
  EXPECT_EQ(failure().message(), "rank 0 is lost");
  client_->suspect(0, unavailable("reset"));
  drain();
  scheduler_->close();
  leave(kNever);
  EXPECT_EQ(told_.get().failed.size(), 1u);
  EXPECT_TRUE(told_.get().answers.empty());
}

TEST_F(ClientTest, AnUnexpectedAnswerEndsTheConnectionAndFails) {
  start();
  run_on(*loop_, [this] { verdict_ = data_loss("nobody waits for this"); });
  scheduler_->send(BarrierDone{1, StatusCode::kOk, ""});
  EXPECT_NE(failure().message().find("nobody waits for this"), std::string::npos) << failure();
  EXPECT_FALSE(scheduler_->why_closed().is_ok());
}

TEST_F(ClientTest, ASchedulerThatEndsIsNamed) {
  start();
  scheduler_->close();
  const std::string name = "scheduler at " + acceptors_[0]->address().to_string();
  EXPECT_NE(failure().message().find("lost the connection to the " + name), std::string::npos) << failure();
}

TEST_F(ClientTest, ASilentSchedulerIsNamed) {
  start(50'000);
  EXPECT_NE(failure().message().find("has been silent for"), std::string::npos) << failure();
}

TEST_F(ClientTest, ShowsTheSchedulerThatItLives) {
  start(2'000'000);
  EXPECT_TRUE(scheduler_->wait_for<Heartbeat>());
}

TEST_F(ClientTest, ABrokenConnectionIsReportedOnce) {
  start();
  client_->suspect(0, unavailable("reset"));
  client_->suspect(0, unavailable("reset again"));
  client_->send(Barrier{1});
  ASSERT_TRUE(scheduler_->wait_for<Barrier>());
  EXPECT_EQ(scheduler_->wait_for<Suspect>(), (Suspect{0, "reset"}));
  EXPECT_EQ(scheduler_->heard.get().messages.size(), 3u) << "a join, a suspicion, a barrier";
}

TEST_F(ClientTest, LeavesWhenTheSchedulerHasTakenIt) {
  start();
  std::thread leaving([this] { leave(kNever); });
  EXPECT_TRUE(scheduler_->wait_for<Leave>());
  scheduler_->close();
  leaving.join();
  EXPECT_TRUE(told_.get().failed.empty()) << "irrelevant for a node that leaves";
}

TEST_F(ClientTest, TellsTheSchedulerWhatEndsThisProcess) {
  start();
  client_->fail_job("KeyError: 'label'");
  EXPECT_EQ(scheduler_->wait_for<Leave>(), (Leave{"KeyError: 'label'"}));
}

TEST_F(ClientTest, GivesUpAndTheSchedulerNotices) {
  start();
  run_on(*loop_, [this] { client_->give_up(unavailable("no memory")); });
  EXPECT_EQ(failure().message(), "rank 1 (host h1, pid 101): no memory");
  EXPECT_EQ(scheduler_->why_closed().code(), StatusCode::kUnavailable);
  client_->suspect(0, unavailable("reset"));
  leave(kNever);
  EXPECT_EQ(told_.get().failed.size(), 1u);
}

TEST_F(ClientTest, GivesUpWithoutAConnection) {
  make_client({listen().address().port});
  run_on(*loop_, [this] { client_->give_up(unavailable("no memory")); });
  EXPECT_EQ(failure().message(), "no memory");
}

TEST_F(ClientTest, LeavesASchedulerThatDoesNotAnswerAtTheDeadline) {
  start();
  const TimeUs deadline_us = now_us() + 50'000;
  {
    const StoppedLoop stopped(*scheduler_loop_);
    leave(deadline_us);
  }
  EXPECT_GE(now_us(), deadline_us);
  EXPECT_TRUE(scheduler_->wait_for<Leave>());
}

TEST_F(ClientTest, LeavesAtOnceWithoutAConnection) {
  make_client({listen().address().port});
  leave(kNever);
}

// The scheduler of the previous job still runs when this node joins the next one.
TEST_F(ClientTest, ConnectsAgainWhenTheSchedulerIsOfAJobThatIsOver) {
  Acceptor& acceptor = listen();
  make_client({acceptor.address().port});
  join();
  accept_client(acceptor);
  ASSERT_TRUE(scheduler_->wait_for<Join>());
  scheduler_->send(Finished{"over"});
  EXPECT_EQ(scheduler_->why_closed().code(), StatusCode::kUnavailable);
  accept_client(acceptor);
  EXPECT_TRUE(scheduler_->wait_for<Join>());
  scheduler_->send(roster());
  EXPECT_TRUE(told_.wait([](const Told& t) { return t.started == 1; }));
  EXPECT_TRUE(told_.get().finished.empty());
}

TEST_F(ClientTest, FindsTheSchedulerBehindStrangers) {
  const Acceptor& stranger = listen("another secret");
  Acceptor& acceptor = listen();
  make_client({stranger.address().port, acceptor.address().port});
  join();
  accept_client(acceptor);
  EXPECT_TRUE(scheduler_->wait_for<Join>());
}

TEST_F(ClientTest, AnotherSecretIsAnErrorAfterAMoment) {
  const Acceptor& stranger = listen("another secret");
  make_client({stranger.address().port});
  join();
  EXPECT_EQ(failure().code(), StatusCode::kPermissionDenied) << failure();
  EXPECT_NE(failure().message().find(stranger.address().to_string()), std::string::npos) << failure();
}

TEST_F(ClientTest, ASchedulerThatDoesNotComeIsNamedAtTheStartDeadline) {
  const Address nowhere = listen().address();
  acceptors_.clear();
  make_client({nowhere.port}, 100'000);
  join();
  EXPECT_NE(failure().message().find(nowhere.to_string()), std::string::npos) << failure();
}

}  // namespace
}  // namespace byteps::cluster
