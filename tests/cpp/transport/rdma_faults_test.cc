// Failures of an RDMA connection with frames in flight: both ends report it once and name the peer.
#include <optional>

#include "support/log_reader.h"
#include "support/tcp_relay.h"
#include "transport/rdma_harness.h"

namespace byteps::transport::rdma {
namespace {

class RdmaFaultsTest : public RdmaTest {
 protected:
  // Keeps frames of every kind in flight until the connection ends.
  void load(int side) {
    for (int i = 0; i < 40; ++i) send_next(side);
  }
  void expect_both_told(const std::string& part_of_message = "") {
    for (const int side : {kA, kB}) {
      const Status why = recorders_[side].why_closed();
      EXPECT_EQ(why.code(), StatusCode::kUnavailable) << why;
      EXPECT_TRUE(mentions(why, end(side).peer())) << why;
      EXPECT_TRUE(mentions(why, part_of_message)) << why;
    }
    stop_load();
  }
  void stop_load() {
    for (const int side : {kA, kB}) {
      if (ends_[side]) run_on(loop(side), [&] { end(side).close(); });
    }
    EXPECT_TRUE(under_way_.wait([](const int& count) { return count == 0; })) << "each on_sent is called";
  }
  bool wait_for_more_frames(size_t more) {
    for (const int side : {kA, kB}) {
      const size_t now = recorders_[side].seen.get().frames.size();
      if (!recorders_[side].wait_for_frames(now + more)) return false;
    }
    return true;
  }

 private:
  void send_next(int side) {
    under_way_.update([](int& count) { ++count; });
    loop(side).post([this, side] {
      const size_t bytes =
          std::array{size_t{0}, size_t{100}, size_t{9'000}, size_t{100'000}}[turn_[side]++ % 4];
      end(side).send(as_bytes("load"), payload_of(std::string_view(text_).substr(0, bytes)),
                     [this, side](const Status& status) {
                       if (status.is_ok()) send_next(side);
                       under_way_.update([](int& count) { --count; });
                     });
    });
  }
  const std::string text_ = pattern(100'000, 1);
  std::array<size_t, 2> turn_{};
  Watched<int> under_way_;
};

TEST_F(RdmaFaultsTest, ABrokenQueuePairEndsBothEnds) {
  for (const int side : {kA, kB}) {
    SCOPED_TRACE(side);
    if (side == kA) {
      set_up_and_connect();
    } else {
      ASSERT_NO_FATAL_FAILURE(connect_another());
    }
    start_both();
    for (const int each : {kA, kB}) load(each);
    ASSERT_TRUE(wait_for_more_frames(100));
    break_queue_pair(side);
    expect_both_told();
  }
}

// After the peer's end record, later messages may get lost.
TEST_F(RdmaFaultsTest, AfterItsEndHasArrivedNothingIsAFailure) {
  set_up_and_connect();
  start(kB);  // A is not started, as it would close at once
  const uint64_t before = fabric_.statistics().immediates;
  run_on(loop(kB), [&] { end(kB).close_when_sent(soon_us()); });
  ASSERT_TRUE(eventually([&] { return fabric_.statistics().immediates > before; }));
  break_queue_pair(kB);
  EXPECT_TRUE(recorders_[kB].why_closed().is_ok()) << recorders_[kB].why_closed();
}

TEST_F(RdmaFaultsTest, UntilItsEndHasArrivedAFailureIsOne) {
  set_up_and_connect();
  start(kB);
  fabric_.set_options({.delay_us = kNever});
  run_on(loop(kB), [&] { end(kB).close_when_sent(soon_us()); });
  break_queue_pair(kB);
  EXPECT_EQ(recorders_[kB].why_closed().code(), StatusCode::kUnavailable) << recorders_[kB].why_closed();
}

TEST_F(RdmaFaultsTest, APeerThatGoesUnderLoadIsTold) {
  set_up_and_connect();
  start_both();
  load(kA);
  ASSERT_TRUE(recorders_[kB].wait_for_frames(100));
  destroy(kB);
  const Status why = recorders_[kA].why_closed();
  EXPECT_EQ(why.code(), StatusCode::kUnavailable) << why;
  EXPECT_TRUE(mentions(why, end(kA).peer())) << why;
  stop_load();
  for (const int side : {kA, kB}) EXPECT_TRUE(no_queue_pair_is_left(side));
}

TEST_F(RdmaFaultsTest, ACutThatIsMendedCostsNothing) {
  set_up_and_connect();
  start_both();
  for (const int side : {kA, kB}) load(side);
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(wait_for_more_frames(50));
    fabric_.cut(card(kA), card(kB));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    fabric_.mend(card(kA), card(kB));
  }
  ASSERT_TRUE(wait_for_more_frames(50));
  for (const int side : {kA, kB}) EXPECT_TRUE(recorders_[side].seen.get().closed.empty());
  stop_load();
}

TEST_F(RdmaFaultsTest, ACutForEverEndsBothEnds) {
  set_up_and_connect();
  start_both();
  for (const int side : {kA, kB}) load(side);
  ASSERT_TRUE(wait_for_more_frames(50));
  fabric_.set_options({.unreachable_retry_us = 30'000});
  fabric_.cut(card(kA), card(kB));
  expect_both_told();
}

TEST_F(RdmaFaultsTest, APortThatGoesDownAndUpCostsNothing) {
  set_up_and_connect();
  start_both();
  for (const int side : {kA, kB}) load(side);
  for (int i = 0; i < 3; ++i) {
    card(i % 2).set_port(false);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    card(i % 2).set_port(true);
    ASSERT_TRUE(wait_for_more_frames(50));
  }
  for (const int side : {kA, kB}) EXPECT_TRUE(recorders_[side].seen.get().closed.empty());
  stop_load();
}

// Also with ends that poll all the time and detect the failure before its reason is reported.
TEST_F(RdmaFaultsTest, ADeviceThatGoesIsNamed) {
  set_up_and_connect({.cards = {{.device = "mlx5_7"}}, .spin_us = 100'000}, {});
  start_both();
  for (const int side : {kA, kB}) load(side);
  ASSERT_TRUE(wait_for_more_frames(100));
  card(kA).be_gone();
  const Status why = recorders_[kA].why_closed();
  EXPECT_EQ(why.code(), StatusCode::kUnavailable) << why;
  EXPECT_TRUE(mentions(why, "mlx5_7")) << why;
  EXPECT_TRUE(mentions(why, end(kA).peer())) << why;
  EXPECT_EQ(recorders_[kB].why_closed().code(), StatusCode::kUnavailable);
  stop_load();
  const auto again = try_connect();
  EXPECT_EQ(again.status().code(), StatusCode::kUnavailable) << again.status();
  EXPECT_TRUE(mentions(again.status(), "mlx5_7")) << again.status();
}

TEST_F(RdmaFaultsTest, AllConnectionsOfADeviceEndAndNewOnesTakeAnother) {
  const Process two{.cards = {{.device = "one"}, {.device = "two"}}};
  set_up(two, two);
  std::array<Recorder, 8> recorders;
  std::vector<std::array<std::unique_ptr<Connection>, 2>> all;
  for (int i = 0; i < 4; ++i) {
    ASSERT_NO_FATAL_FAILURE(connect());
    for (const int side : {kA, kB}) {
      run_on(loop(side), [&] { end(side).start(&recorders[2 * i + side]); });
    }
    all.push_back(std::exchange(ends_, {}));
  }
  for (const size_t rail : {0, 1}) EXPECT_EQ(card(kA, rail).statistics().live_queue_pairs, 2u);
  card(kA, 0).be_gone();
  int ended = 0;
  ASSERT_TRUE(eventually([&] {
    ended = 0;
    for (int i = 0; i < 4; ++i) ended += !recorders[2 * i + kA].seen.get().closed.empty();
    return ended == 2;
  })) << ended;
  for (int i = 0; i < 4; ++i) {
    ASSERT_NO_FATAL_FAILURE(connect()) << "by the other one";
    for (const int side : {kA, kB}) destroy(side);
  }
  for (const int side : {kA, kB}) {
    run_on(loop(side), [&] {
      for (auto& ends : all) ends[side].reset();
    });
  }
  card(kA, 1).be_gone();
  const auto none = try_connect();
  EXPECT_EQ(none.status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(mentions(none.status(), "two")) << none.status();
}

TEST_F(RdmaFaultsTest, WhatCameBeforeTheFailureIsDelivered) {
  set_up_and_connect();
  start(kB);
  {
    const StoppedLoop stands(loop(kB));
    const uint64_t before = fabric_.statistics().immediates;
    run_on(loop(kA), [&] {
      for (int i = 0; i < 10; ++i) end(kA).send(as_bytes("last words"), {}, sent_.expect_one());
    });
    expect_all_sent();
    ASSERT_TRUE(eventually([&] { return fabric_.statistics().immediates >= before + 10; }));
    dynamic_cast<RdmaConnection&>(end(kB)).queue_pair()->fail();  // its loop is blocked
  }
  EXPECT_EQ(recorders_[kB].why_closed().code(), StatusCode::kUnavailable);
  EXPECT_EQ(recorders_[kB].seen.get().frames.size(), 10u);
}

TEST_F(RdmaFaultsTest, LoopsMayStopUnderLoad) {
  set_up_and_connect();
  start_both();
  for (const int side : {kA, kB}) load(side);
  ASSERT_TRUE(wait_for_more_frames(50));
  acceptor_.reset();
  loop(kB).stop();
  card(kA).be_gone();  // the event goes to a blocked loop
  EXPECT_EQ(recorders_[kA].why_closed().code(), StatusCode::kUnavailable);
  loop(kA).stop();
  ends_ = {};
}

// TCP connections that are made anew (transport/resume) begin RDMA connections, and stay open.
class RdmaResetTest : public RdmaFaultsTest {
 protected:
  void set_up_with_relay(TimeUs resume_limit_us = 20'000'000) {
    const Process process{.resume_limit_us = resume_limit_us};
    set_up(process, process);
    relay_.emplace(acceptor_->address());
    target_ = relay_->address();
    ASSERT_NO_FATAL_FAILURE(connect());
    start_both();
    for (const int each : {kA, kB}) load(each);
    ASSERT_TRUE(wait_for_more_frames(100));
  }
  std::optional<TcpRelay> relay_;
};

TEST_F(RdmaResetTest, FramesGoOnWhileTheTcpConnectionIsMadeAnew) {
  set_up_with_relay();
  for (int i = 0; i < 3; ++i) {
    LogReader log;
    relay_->reset_all();
    ASSERT_TRUE(log.wait_for("connected again after"));
    ASSERT_TRUE(wait_for_more_frames(100));
  }
  for (const int side : {kA, kB}) EXPECT_TRUE(recorders_[side].seen.get().closed.empty());
  stop_load();
}

TEST_F(RdmaResetTest, WithoutAnotherTcpConnectionItEnds) {
  set_up_with_relay(500'000);
  relay_->close();
  relay_->reset_all();
  expect_both_told();
}

TEST_F(RdmaResetTest, TheEndOfThePeerIsNotAReset) {
  set_up_with_relay();
  run_on(loop(kB), [this] { end(kB).close(); });
  EXPECT_EQ(recorders_[kA].why_closed().code(), StatusCode::kUnavailable);
  stop_load();
}

}  // namespace
}  // namespace byteps::transport::rdma
