// Connections of transport/resume over TCP connections that a relay resets. What holds for all
// transports is in conformance_test.
#include "transport/resume/resuming_connection.h"

#include "support/tcp_relay.h"
#include "transport/resume/resuming_transport.h"
#include "transport/tcp_harness.h"

namespace byteps::transport {
namespace {

class ResumingConnectionTest : public testing::Test {
 protected:
  explicit ResumingConnectionTest(TimeUs limit_us = 20'000'000) {
    for (const uint64_t nonce : {1, 2}) {
      transports_.push_back(make_resuming_transport(make_tcp_transport({.credentials = test_credentials()}),
                                                    {.nonce = nonce, .limit_us = limit_us}));
    }
    acceptor_ = std::make_unique<Acceptor>(*transports_[0], *loops_[0], Address{"127.0.0.1", 0});
    relay_ = std::make_unique<TcpRelay>(acceptor_->address());
    accept_more_ = std::thread([this] { start_others(); });
    auto connected = connect_and_wait(*transports_[1], *loops_[1], relay_->address(), soon_us());
    BPS_CHECK(connected.is_ok()) << connected.status();
    ends_[1] = std::move(*connected);
    run_on(*loops_[1], [this] { ends_[1]->start(&recorders_[1]); });
    BPS_CHECK(first_.wait([](const Connection* first) { return first != nullptr; }));
  }
  ~ResumingConnectionTest() override {
    stop_accepting_ = true;
    accept_more_.join();
    run_on(*loops_[1], [this] { ends_[1].reset(); });
    run_on(*loops_[0], [this] { accepted_.clear(); });
    acceptor_.reset();
  }
  // A service starts all connections, also those whose carriers are for another one.
  void start_others() {
    while (!stop_accepting_) {
      if (acceptor_->waiting() == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        continue;
      }
      auto connection = acceptor_->take();
      run_on(*loops_[0], [&] {
        const bool is_first = accepted_.empty();
        connection->start(is_first ? &recorders_[0] : &others_.emplace_back());
        accepted_.push_back(std::move(connection));
        if (is_first) first_.update([this](Connection*& first) { first = accepted_[0].get(); });
      });
    }
  }
  void send(int side, const std::string& head, const std::string& payload) {
    const auto kept = std::make_shared<const std::string>(payload);
    run_on(*loops_[side], [&] {
      Connection& end = side == 0 ? *accepted_[0] : *ends_[1];
      end.send(as_bytes(head), {.data = as_bytes(*kept), .reply_space = {}, .keep = kept},
               [this](const Status& status) { reported_.update([&](auto& all) { all.push_back(status); }); });
    });
  }

  std::array<std::unique_ptr<EpollLoop>, 2> loops_{make_loop(), make_loop()};
  std::vector<std::unique_ptr<Transport>> transports_;
  std::array<Recorder, 2> recorders_;
  std::deque<Recorder> others_;
  std::unique_ptr<Acceptor> acceptor_;
  std::unique_ptr<TcpRelay> relay_;
  std::vector<std::unique_ptr<Connection>> accepted_;
  Watched<Connection*> first_;
  std::array<std::unique_ptr<Connection>, 2> ends_;
  Watched<std::vector<Status>> reported_;
  std::atomic<bool> stop_accepting_ = false;
  std::thread accept_more_;
};

TEST_F(ResumingConnectionTest, FramesArriveOnceAndInOrderWhateverIsReset) {
  constexpr int kFrames = 300;
  for (int i = 0; i < kFrames; ++i) {
    for (const int side : {0, 1}) {
      const size_t bytes = i % 7 == 0 ? 300'000 : static_cast<size_t>(i);
      send(side, "head " + std::to_string(i), std::string(bytes, static_cast<char>('a' + i % 26)));
    }
    if (i % 20 == 10) relay_->reset_all();
  }
  for (Recorder& recorder : recorders_) {
    ASSERT_TRUE(recorder.wait_for_frames(kFrames));
    const Seen seen = recorder.seen.get();
    ASSERT_EQ(seen.frames.size(), static_cast<size_t>(kFrames));
    EXPECT_TRUE(seen.closed.empty());
    for (int i = 0; i < kFrames; ++i) {
      const size_t bytes = i % 7 == 0 ? 300'000 : static_cast<size_t>(i);
      EXPECT_EQ(seen.frames[i].head, "head " + std::to_string(i));
      EXPECT_EQ(seen.frames[i].payload, std::string(bytes, static_cast<char>('a' + i % 26)));
    }
  }
  ASSERT_TRUE(reported_.wait([](const auto& all) { return all.size() == 2 * kFrames; }));
  for (const Status& status : reported_.get()) EXPECT_TRUE(status.is_ok()) << status;
}

TEST_F(ResumingConnectionTest, TrafficOfEarlierConnectionsCounts) {
  const std::string payload(1 << 20, 'x');
  const auto sent = [this] {
    return on_loop(*loops_[1], [this] { return ends_[1]->sent_traffic().value_or(SentTraffic()); });
  };
  for (uint64_t frames = 1; frames <= 3; ++frames) {
    send(1, "head", payload);
    const TimeUs deadline_us = soon_us();
    while (sent().bytes < frames * payload.size() && now_us() < deadline_us) std::this_thread::yield();
    EXPECT_GE(sent().bytes, frames * payload.size());
    EXPECT_GT(sent().min_rtt_us, 0);
    relay_->reset_all();
  }
}

TEST_F(ResumingConnectionTest, APeerThatClosesIsNotWaitedFor) {
  run_on(*loops_[0], [this] { accepted_[0]->close(); });
  EXPECT_NE(recorders_[1].why_closed().message().find("closed by the other end"), std::string::npos);
}

TEST_F(ResumingConnectionTest, ClosingSendsEverythingInSpiteOfAReset) {
  const std::string large(4 << 20, 'x');
  send(1, "last", large);
  run_on(*loops_[1], [this] { ends_[1]->close_when_sent({soon_us(), 0}); });
  relay_->reset_all();
  ASSERT_TRUE(recorders_[0].wait_for_frames(1));
  EXPECT_EQ(recorders_[0].seen.get().frames[0].payload, large);
  run_on(*loops_[0], [this] { accepted_[0]->close(); });
  EXPECT_TRUE(recorders_[1].wait_until_closed());
}

TEST_F(ResumingConnectionTest, AnotherSessionCannotBeResumed) {
  send(1, "a", "b");
  ASSERT_TRUE(recorders_[0].wait_for_frames(1));
  send(0, "c", "d");
  ASSERT_TRUE(recorders_[1].wait_for_frames(1));
  // The accepting end forgets the session before the connecting end comes again.
  run_on(*loops_[0], [this] {
    relay_->reset_all();
    accepted_[0]->close();
  });
  EXPECT_FALSE(recorders_[1].why_closed().is_ok());
}

// The connecting end has received nothing, and can send all again.
TEST_F(ResumingConnectionTest, ASessionThatTheOtherEndHasEndedDoesNotBeginAnew) {
  send(1, "a", "b");
  ASSERT_TRUE(recorders_[0].wait_for_frames(1));
  run_on(*loops_[0], [this] {
    relay_->reset_all();
    accepted_[0]->close();
  });
  EXPECT_NE(recorders_[1].why_closed().message().find("reset"), std::string::npos);
  run_on(*loops_[0], [this] {
    for (const Recorder& other : others_) EXPECT_TRUE(other.seen.get().frames.empty());
  });
}

// Its process has ended: nobody listens there.
TEST_F(ResumingConnectionTest, APeerWhoseMachineRefusesConnectionsIsNotWaitedFor) {
  send(1, "a", "b");
  ASSERT_TRUE(recorders_[0].wait_for_frames(1));
  relay_->close();
  relay_->reset_all();
  const Status why = recorders_[1].why_closed();  // long before the limit
  EXPECT_NE(why.message().find("Connection reset by peer"), std::string::npos) << why;
  EXPECT_NE(why.message().find("Connection refused"), std::string::npos) << why;
  // The other end cannot tell.
  EXPECT_TRUE(on_loop(*loops_[0], [this] { return accepted_[0]->is_interrupted(); }));
  EXPECT_TRUE(recorders_[0].seen.get().closed.empty());
  EXPECT_EQ(recorders_[0].seen.get().interruptions, 1);
}

TEST_F(ResumingConnectionTest, AnInterruptionEndsWithTheGracePeriodOfAConnectionThatCloses) {
  send(1, "a", "b");
  ASSERT_TRUE(recorders_[0].wait_for_frames(1));
  relay_->close();
  relay_->reset_all();
  ASSERT_TRUE(transport::eventually(
      [this] { return on_loop(*loops_[0], [this] { return accepted_[0]->is_interrupted(); }); }));
  run_on(*loops_[0], [this] { accepted_[0]->close_when_sent({now_us() + 10'000, 10'000}); });
  EXPECT_TRUE(recorders_[0].why_closed().is_ok());
}

TEST_F(ResumingConnectionTest, AnInterruptionIsOverWhenAllIsSent) {
  send(1, "a", "b");
  ASSERT_TRUE(recorders_[0].wait_for_frames(1));
  relay_->reset_all();
  send(0, "c", "d");
  ASSERT_TRUE(recorders_[1].wait_for_frames(1));
  for (const int side : {0, 1}) {
    EXPECT_FALSE(
        on_loop(*loops_[side], [&] { return (side == 0 ? accepted_[0] : ends_[1])->is_interrupted(); }));
    EXPECT_EQ(recorders_[side].seen.get().interruptions, 1);
  }
}

class ShortLimitTest : public ResumingConnectionTest {
 protected:
  ShortLimitTest() : ResumingConnectionTest(300'000) {}
};

TEST_F(ShortLimitTest, EndsWithTheCauseIfNoConnectionComesAbout) {
  send(1, "a", "b");
  ASSERT_TRUE(recorders_[0].wait_for_frames(1));
  relay_->close();
  relay_->reset_all();
  for (Recorder& recorder : recorders_) {
    const Status why = recorder.why_closed();
    EXPECT_NE(why.message().find("Connection reset by peer"), std::string::npos) << why;
  }
  send(1, "late", "x");
  ASSERT_TRUE(reported_.wait([](const auto& all) { return all.size() == 2; }));
  EXPECT_FALSE(reported_.get().back().is_ok());
}

}  // namespace
}  // namespace byteps::transport
