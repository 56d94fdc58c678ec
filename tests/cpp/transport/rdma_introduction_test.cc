// Setup of RDMA connections, and its failures.
#include "transport/rdma_harness.h"

namespace byteps::transport::rdma {
namespace {

constexpr TimeUs kShortUs = 150'000;

class RdmaIntroductionTest : public RdmaTest {
 protected:
  // A peer with the secret that talks TCP only.
  std::unique_ptr<Connection> call(Recorder& recorder, const Address& address) {
    auto called = connect_and_wait(*tcp_, loop(kA), address, soon_us());
    EXPECT_TRUE(called.is_ok()) << called.status();
    run_on(loop(kA), [&] { (*called)->start(&recorder); });
    return std::move(*called);
  }
  // The outcome of connecting to a listener that has the secret and sends `words`, but writes
  // nothing by RDMA.
  Status try_connect_to_peer_that_sends(const std::vector<std::string>& words) {
    Acceptor tcp_acceptor(*tcp_, loop(kB), Address{"127.0.0.1", 0});
    Watched<std::optional<Status>> done;
    transports_[kA]->connect(loop(kA), tcp_acceptor.address(), soon_us(), [&](auto result) {
      done.update([&](auto& status) { status = result.status(); });
    });
    auto accepted = tcp_acceptor.take();
    run_on(loop(kB), [&] {
      for (const std::string& word : words) accepted->send(as_bytes(word), {}, {});
    });
    EXPECT_TRUE(done.wait([](const auto& status) { return status.has_value(); }));
    run_on(loop(kB), [&] { accepted.reset(); });
    EXPECT_TRUE(no_queue_pair_is_left(kA));
    return done.get().value_or(Status::ok());
  }
  void hang_up(std::unique_ptr<Connection> connection) {
    run_on(loop(kA), [&] { connection.reset(); });
  }
  std::string some_offer() {
    EndpointOffer offer{
        .is_ethernet = true, .queue_pair = {}, .ring_address = 4096, .ring_key = 1, .card = "mine"};
    offer.queue_pair = {.number = 77, .packet_sequence = 7, .gid = card(kA).info().gid, .mtu_bytes = 1024};
    return encode_offer(offer);
  }
  // Retries, as on a busy machine an introduction may take longer than the test's limit.
  void expect_still_serving() {
    ASSERT_TRUE(eventually([&] {
      auto connected = try_connect();
      if (connected) ends_[kA] = std::move(*connected);
      return connected.is_ok();
    }));
    destroy(kA);
    EXPECT_TRUE(eventually([&] {
      while (acceptor_->waiting() > 0) {
        ends_[kB] = acceptor_->take();
        destroy(kB);
      }
      return card(kB).statistics().live_queue_pairs == 0;
    }));
  }
  const std::unique_ptr<Transport> tcp_ = make_tcp_transport({.credentials = test_credentials()});
};

TEST_F(RdmaIntroductionTest, APathByTcpOnlyIsFoundAndSaid) {
  set_up({.introduction_timeout_us = kShortUs}, {.introduction_timeout_us = kShortUs});
  fabric_.cut(card(kA), card(kB));
  const auto connected = try_connect();
  EXPECT_EQ(connected.status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(mentions(connected.status(), "check that the two network cards reach each other"))
      << connected.status();
  EXPECT_TRUE(mentions(connected.status(), acceptor_->address().to_string())) << connected.status();
  for (const int side : {kA, kB}) EXPECT_TRUE(no_queue_pair_is_left(side));
  fabric_.mend(card(kA), card(kB));
  expect_still_serving();
}

TEST_F(RdmaIntroductionTest, APathByTcpOnlyIsSaidThoughTheOtherEndGivesUpFirst) {
  set_up({}, {.introduction_timeout_us = kShortUs});
  fabric_.cut(card(kA), card(kB));
  const auto connected = try_connect();
  EXPECT_EQ(connected.status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(mentions(connected.status(), "check that the two network cards reach each other"))
      << connected.status();
  EXPECT_TRUE(mentions(connected.status(), "closed by the other end")) << connected.status();
}

TEST_F(RdmaIntroductionTest, EthernetDoesNotMeetInfiniBand) {
  set_up({.cards = {{.is_ethernet = false}}}, {});
  const auto connected = try_connect();
  EXPECT_EQ(connected.status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(mentions(connected.status(), "both to be Ethernet, or both InfiniBand")) << connected.status();
  for (const int side : {kA, kB}) EXPECT_TRUE(no_queue_pair_is_left(side));
}

TEST_F(RdmaIntroductionTest, WhyTheOtherCardCannotIsSaidHere) {
  set_up();
  card(kB).fail_next_queue_pair(unavailable("no more of them at fake0"));
  const auto refused = try_connect();
  EXPECT_EQ(refused.status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(mentions(refused.status(), "refused by the other end")) << refused.status();
  EXPECT_TRUE(mentions(refused.status(), "no more of them at fake0")) << refused.status();
  EXPECT_FALSE(mentions(refused.status(), "check that the two network cards")) << refused.status();
  card(kA).fail_next_queue_pair(unavailable("none here"));
  EXPECT_TRUE(mentions(try_connect().status(), "none here"));
  card(kA).fail_next_registration(unavailable("no memory"));
  expect_still_serving();
}

TEST_F(RdmaIntroductionTest, WithoutCardsItSaysSo) {
  const auto loop = make_loop();
  for (const bool is_error : {true, false}) {
    std::vector<std::unique_ptr<Nic>> none;
    const auto transport = is_error ? make_rdma_transport({}, unavailable("RDMA: no device"))
                                    : make_rdma_transport({}, std::move(none));
    EXPECT_EQ(transport->viable().code(), StatusCode::kUnavailable);
    EXPECT_FALSE(transport->listen(*loop, {"127.0.0.1", 0}, [](auto) {}));
    const auto connected = connect_and_wait(*transport, *loop, {"127.0.0.1", 1}, soon_us());
    EXPECT_TRUE(mentions(connected.status(), "no device")) << connected.status();
  }
}

TEST_F(RdmaIntroductionTest, AnAddressInUseIsAnError) {
  set_up();
  const auto loop = make_loop();
  const auto again = transports_[kB]->listen(*loop, acceptor_->address(), [](auto) {});
  EXPECT_EQ(again.status().code(), StatusCode::kUnavailable);
  expect_still_serving();
}

TEST_F(RdmaIntroductionTest, WhoIsToldOfAConnectionMayDropItAtOnce) {
  set_up();
  Watched<int> dropped;
  const auto drop = [&](auto) { dropped.update([](int& count) { ++count; }); };
  std::unique_ptr<Listener> listener = std::move(*transports_[kB]->listen(loop(kB), {"127.0.0.1", 0}, drop));
  for (int i = 1; i <= 5; ++i) {
    transports_[kA]->connect(loop(kA), listener->address(), soon_us(), drop);
    ASSERT_TRUE(dropped.wait([&](const int& count) { return count == 2 * i; }));
  }
  run_on(loop(kB), [&] { listener.reset(); });
  for (const int side : {kA, kB}) EXPECT_TRUE(no_queue_pair_is_left(side));
}

TEST_F(RdmaIntroductionTest, AListenerThatHasGoneGetsNoConnections) {
  set_up();
  bool is_gone = false;  // used on loop kB
  bool was_called = false;
  for (int i = 0; i < 20; ++i) {
    is_gone = false;
    std::unique_ptr<Listener> listener =
        std::move(*transports_[kB]->listen(loop(kB), {"127.0.0.1", 0}, [&](auto) { was_called |= is_gone; }));
    Recorder recorder;
    auto caller = call(recorder, listener->address());
    run_on(loop(kA), [&] { caller->send(as_bytes(some_offer()), {}, {}); });
    ASSERT_TRUE(recorder.wait_for_frames(1)) << "the offer of the other end: they have met half-way";
    Watched<int> done;
    transports_[kA]->connect(loop(kA), listener->address(), soon_us(0.1),
                             [&](auto) { done.update([](int& count) { ++count; }); });
    std::this_thread::sleep_for(std::chrono::microseconds(100 * i));
    run_on(loop(kB), [&] {
      is_gone = true;
      listener.reset();
    });
    hang_up(std::move(caller));
    ASSERT_TRUE(done.wait([](const int& count) { return count == 1; }));
  }
  EXPECT_TRUE(no_queue_pair_is_left(kB));
  run_on(loop(kB), [&] { EXPECT_FALSE(was_called); });
}

// Deadline and refusal are noticed in the same pass of the loop.
TEST_F(RdmaIntroductionTest, TheDeadlineAndAnotherEndAtTheSameTime) {
  set_up({.introduction_timeout_us = 50'000}, {});
  for (int i = 0; i < 5; ++i) {
    Watched<std::vector<Status>> done;
    Recorder other;
    std::unique_ptr<Connection> accepted;
    Acceptor tcp_acceptor(*tcp_, loop(kB), Address{"127.0.0.1", 0});
    transports_[kA]->connect(loop(kA), tcp_acceptor.address(), soon_us(), [&](auto result) {
      done.update([&](auto& all) { all.push_back(result.status()); });
    });
    accepted = tcp_acceptor.take();
    run_on(loop(kB), [&] { accepted->start(&other); });
    ASSERT_TRUE(other.wait_for_frames(1));
    {
      const StoppedLoop stands(loop(kA));
      Watched<bool> is_sent;
      run_on(loop(kB), [&] {
        accepted->send(as_bytes(encode_refusal(unavailable("no"))), {},
                       [&](const Status&) { is_sent.update([](bool& sent) { sent = true; }); });
      });
      ASSERT_TRUE(is_sent.wait([](const bool& sent) { return sent; }));
      std::this_thread::sleep_for(std::chrono::milliseconds(80));
    }
    ASSERT_TRUE(done.wait([](const auto& all) { return !all.empty(); }));
    run_on(loop(kA), [] {});
    run_on(loop(kA), [] {});
    EXPECT_EQ(done.get().size(), 1u);
    EXPECT_EQ(done.get().front().code(), StatusCode::kUnavailable);
    run_on(loop(kB), [&] { accepted.reset(); });
  }
}

TEST_F(RdmaIntroductionTest, LoopsMayStopWithIntroductionsUnderWay) {
  set_up();
  fabric_.cut(card(kA), card(kB));
  for (int i = 0; i < 10; ++i) {
    transports_[kA]->connect(loop(kA), acceptor_->address(), soon_us(), [](auto) {});
  }
  ASSERT_TRUE(eventually([&] { return card(kB).statistics().live_queue_pairs == 10; }));
  acceptor_.reset();
  loop(kB).stop();
  loop(kA).stop();
  for (const int side : {kA, kB}) EXPECT_EQ(card(side).statistics().live_queue_pairs, 0u);
}

TEST_F(RdmaIntroductionTest, OffersWithAChangedByteHurtNobody) {
  set_up({}, {.introduction_timeout_us = kShortUs});
  std::vector<std::string> words{"", "x", std::string(kMaxOfferBytes, '\xff')};
  const std::string good = some_offer();
  for (size_t at = 0; at < good.size(); ++at) {
    words.push_back(good);
    words.back()[at] = static_cast<char>(good[at] + 1 + static_cast<char>(at * 31));
  }
  std::vector<std::unique_ptr<Connection>> callers;
  std::vector<std::unique_ptr<Recorder>> recorders;
  for (const std::string& word : words) {
    recorders.push_back(std::make_unique<Recorder>());
    callers.push_back(call(*recorders.back(), acceptor_->address()));
    run_on(loop(kA), [&] { callers.back()->send(as_bytes(word), {}, {}); });
  }
  for (const auto& recorder : recorders) EXPECT_TRUE(recorder->wait_until_closed()) << "dropped in time";
  EXPECT_EQ(acceptor_->waiting(), 0u);
  for (auto& caller : callers) hang_up(std::move(caller));
  EXPECT_TRUE(no_queue_pair_is_left(kB));
  expect_still_serving();
}

TEST_F(RdmaIntroductionTest, WhoBreaksTheRulesIsDropped) {
  set_up({}, {.introduction_timeout_us = kShortUs});
  const std::vector<std::function<void(Connection&)>> ways{
      [](Connection&) {},  // sends nothing
      [](Connection& c) { c.send(as_bytes("head"), payload_of("payload"), {}); },
      [&](Connection& c) { c.send(as_bytes(some_offer()), payload_of("payload"), {}); },
      [&](Connection& c) {
        for (int i = 0; i < 2; ++i) c.send(as_bytes(some_offer()), {}, {});
      },
      [&](Connection& c) {
        c.send(as_bytes(some_offer()), {}, {});
        c.send(as_bytes("and more"), payload_of("payload"), {});
      },
      [](Connection& c) { c.send(as_bytes(encode_refusal(unavailable("I will not"))), {}, {}); },
      [&](Connection& c) {
        c.send(as_bytes(some_offer()), {}, {});
        c.close_when_sent(soon_us());
      },
  };
  for (const auto& way : ways) {
    Recorder recorder;
    auto caller = call(recorder, acceptor_->address());
    run_on(loop(kA), [&] { way(*caller); });
    EXPECT_TRUE(recorder.wait_until_closed()) << &way - ways.data();
    hang_up(std::move(caller));
  }
  EXPECT_EQ(acceptor_->waiting(), 0u);
  EXPECT_TRUE(no_queue_pair_is_left(kB));
  expect_still_serving();
}

// After the offers, TCP serves only to detect a dead peer, so the time limit ends the attempt.
TEST_F(RdmaIntroductionTest, AListenerThatOffersAndIsNoneEndsTheAttempt) {
  set_up({.introduction_timeout_us = kShortUs}, {});
  EXPECT_EQ(try_connect_to_peer_that_sends({some_offer()}).code(), StatusCode::kUnavailable);
}

TEST_F(RdmaIntroductionTest, ABrokenRuleIsNotBlamedOnTheCards) {
  set_up();
  const std::vector<std::vector<std::string>> all{{"nonsense"}, {""}, {some_offer(), some_offer()}};
  for (const std::vector<std::string>& words : all) {
    const Status status = try_connect_to_peer_that_sends(words);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status;
  }
}

}  // namespace
}  // namespace byteps::transport::rdma
