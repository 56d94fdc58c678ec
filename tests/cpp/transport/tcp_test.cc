// Specific to TCP: access control, and how connect() waits for a peer.
#include "transport/tcp_harness.h"

namespace byteps::transport {
namespace {

TEST_F(Tcp, TheKernelCountsWhatTheOtherEndHasAcknowledged) {
  const auto tcp = transport();
  Acceptor acceptor(*tcp, *loop_, kAnyPort);
  auto ours = connect_and_wait(*tcp, *loop_, acceptor.address(), soon_us());
  ASSERT_TRUE(ours.is_ok()) << ours.status();
  auto theirs = acceptor.take();
  Recorder recorder;
  const std::vector<std::byte> payload(1 << 20);
  const auto sent = [&] { return on_loop(*loop_, [&] { return *(*ours)->sent_traffic(); }); };
  const SentTraffic before = sent();
  run_on(*loop_, [&] {
    theirs->start(&recorder);
    (*ours)->send(as_bytes("head"), {.data = payload, .reply_space = {}}, {});
  });
  EXPECT_TRUE(recorder.wait_for_frames(1));
  while (sent().bytes < before.bytes + payload.size()) std::this_thread::yield();
  EXPECT_GE(sent().busy_us, before.busy_us);
  run_on(*loop_, [&] {
    (*ours)->close();
    EXPECT_FALSE((*ours)->sent_traffic());
    ours->reset();
    theirs.reset();
  });
}

// ---- Access control ----

TEST_F(Tcp, AnotherSecretOrJobIsToldSoAtOnce) {
  const auto tcp = transport();
  Acceptor acceptor(*tcp, *loop_, kAnyPort);
  const std::vector<std::pair<Credentials, const char*>> others{
      {{"wrong", "job 7"}, "it has another secret: check that BYTEPS_SECRET_FILE"},
      {{"wrong", "job 7", true}, "it has another secret: no BYTEPS_SECRET_FILE is set"},
      {{"a secret of the test", "job 8"}, "another job id than \"job 8\""}};
  for (const auto& [other, what] : others) {
    const auto stranger = transport({.credentials = other});
    const auto result = connect_and_wait(*stranger, *loop_, acceptor.address(), kNever);
    EXPECT_EQ(result.status().code(), StatusCode::kPermissionDenied) << result.status();
    EXPECT_NE(result.status().message().find(acceptor.address().to_string()), std::string::npos);
    EXPECT_NE(result.status().message().find(what), std::string::npos) << result.status();
  }
  EXPECT_EQ(acceptor.waiting(), 0u);
  expect_open_for_business(*tcp, acceptor);
}

TEST_F(Tcp, ASecretOfThisMachineOnlyIsForTheLoopback) {
  const auto local = transport({.credentials = {"this user's", "job", true}});
  for (const char* ip : {"0.0.0.0", "::", "192.0.2.1"}) {
    const auto listener = local->listen(*loop_, {ip, 0}, [](auto) {});
    EXPECT_EQ(listener.status().code(), StatusCode::kPermissionDenied) << ip;
    EXPECT_NE(listener.status().message().find("BYTEPS_SECRET_FILE"), std::string::npos);
  }
  const auto connected = connect_and_wait(*local, *loop_, {"192.0.2.1", 9}, soon_us());
  EXPECT_EQ(connected.status().code(), StatusCode::kPermissionDenied);
  Acceptor acceptor(*local, *loop_, kAnyPort);
  expect_open_for_business(*local, acceptor);
}

TEST_F(Tcp, WithoutASecretNobodyIsLetIn) {
  const auto open = transport({.credentials = {"", "job"}});
  const auto listener = open->listen(*loop_, kAnyPort, [](auto) {});
  EXPECT_EQ(listener.status().code(), StatusCode::kPermissionDenied);
  const auto connected = connect_and_wait(*open, *loop_, {"127.0.0.1", 9}, soon_us());
  EXPECT_EQ(connected.status().code(), StatusCode::kPermissionDenied);
}

// The peer may have been stopped, or have had too many callers; this does not mean a wrong secret.
TEST_F(Tcp, WhoHangsUpDuringTheHandshakeIsCalledAgain) {
  const auto tcp = transport();
  RawServer hasty;
  std::thread thread([&] {
    hasty.accept();
    const UniqueFd second = hasty.accept();
    const Handshake handshake(Side::kAccepting, test_credentials());
    send(second.get(), handshake.hello().data(), kHelloBytes, MSG_NOSIGNAL);
    std::array<std::byte, kHelloBytes + kClaimBytes> all;
    recv(second.get(), all.data(), all.size(), MSG_WAITALL);
  });
  std::optional<Result<std::unique_ptr<Connection>>> outcome;
  EventFlag done;
  tcp->connect(*loop_, hasty.address(), kNever, [&](auto connection) {
    outcome = std::move(connection);
    done.set();
  });
  thread.join();
  Acceptor acceptor(*tcp, *loop_, hasty.release());
  done.wait(kNever);
  EXPECT_TRUE(outcome->is_ok()) << outcome->status();
  auto accepted = acceptor.take();
  EXPECT_TRUE(accepted);
  run_on(*loop_, [&] {
    outcome.reset();
    accepted.reset();
  });
}

TEST_F(Tcp, AnotherVersionIsNamedAtBothEnds) {
  const auto tcp = transport();
  Acceptor acceptor(*tcp, *loop_, kAnyPort);
  RawSocket older(acceptor.address());
  Hello hello = Handshake(Side::kConnecting, test_credentials()).hello();
  hello[3] = std::byte{1};
  older.send(hello);
  Hello answer;
  EXPECT_TRUE(older.receive(answer));
  EXPECT_EQ(answer[3], std::byte{2});
  EXPECT_TRUE(older.wait_until_closed());
}

TEST_F(Tcp, CallersWithAnotherSecretAreTold) {
  const auto tcp = transport();
  Watched<std::vector<std::string>> refused;
  std::unique_ptr<Listener> listener;
  run_on(*loop_, [&] {
    listener = std::move(*tcp->listen(*loop_, kAnyPort, [](auto) {}));
    listener->tell_refused([&](const Address& caller, const Status& why) {
      refused.update([&](auto& all) { all.push_back(caller.ip + " " + why.message()); });
    });
  });
  RawSocket(listener->address()).authenticate({"a secret of the test", "job 8"});
  RawSocket(listener->address()).send(as_bytes("GET / HTTP/1.1"));
  RawSocket(listener->address()).authenticate({"wrong", "job 7"});
  EXPECT_TRUE(refused.wait([](const auto& all) { return !all.empty(); }));
  run_on(*loop_, [&] { listener.reset(); });
  ASSERT_EQ(refused.get().size(), 1u);
  EXPECT_EQ(refused.get().front().find("127.0.0.1 it has another secret"), 0u) << refused.get().front();
}

TEST_F(Tcp, AnImpostorThatListensInOurPlaceIsRefused) {
  const auto tcp = transport();
  RawServer impostor;
  std::thread thread([&] {
    const UniqueFd victim = impostor.accept();
    std::array<std::byte, kHelloBytes> hello;
    recv(victim.get(), hello.data(), hello.size(), MSG_WAITALL);
    send(victim.get(), hello.data(), hello.size(), MSG_NOSIGNAL);  // reflects its own message
    Claim claim;
    recv(victim.get(), claim.data(), claim.size(), MSG_WAITALL);
    // Reflects its claim, too.
    send(victim.get(), claim.data() + claim.size() - kVerdictBytes, kVerdictBytes, MSG_NOSIGNAL);
    recv(victim.get(), claim.data(), claim.size(), MSG_WAITALL);
  });
  const auto result = connect_and_wait(*tcp, *loop_, impostor.address(), soon_us());
  EXPECT_EQ(result.status().code(), StatusCode::kPermissionDenied) << result.status();
  thread.join();
}

TEST_F(Tcp, AListeningSocketCanBeHandedOver) {
  const auto tcp = transport();
  RawServer launcher;
  const Address address = launcher.address();
  Acceptor acceptor(*tcp, *loop_, launcher.release());
  EXPECT_EQ(acceptor.address(), address);
  expect_open_for_business(*tcp, acceptor);
  const auto refused =
      tcp->listen_on(*loop_, UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), [](auto) {});
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
}

TEST_F(Tcp, APortInUseIsNamed) {
  const auto tcp = transport();
  const RawServer other;
  const auto listener = tcp->listen(*loop_, other.address(), [](auto) {});
  EXPECT_EQ(listener.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(listener.status().message().find(other.address().to_string()), std::string::npos)
      << listener.status();
}

// ---- connect() ----

TEST_F(Tcp, ConnectWaitsForAListenerThatComesLate) {
  const auto tcp = transport();
  const Address address = RawServer().address();  // the port is free again
  std::unique_ptr<Acceptor> acceptor;
  std::thread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(80));
    acceptor = std::make_unique<Acceptor>(*tcp, *loop_, address);
  });
  auto connected = connect_and_wait(*tcp, *loop_, address, soon_us());
  late.join();
  EXPECT_TRUE(connected.is_ok()) << connected.status();
  run_on(*loop_, [&] { connected = internal("done"); });
}

TEST_F(Tcp, ConnectGivesUpAtItsDeadlineAndSaysWhatItSaw) {
  const auto tcp = transport();
  const Address address = RawServer().address();
  const TimeUs before = now_us();
  const auto nobody = connect_and_wait(*tcp, *loop_, address, now_us() + 150'000);
  EXPECT_EQ(nobody.status().code(), StatusCode::kUnavailable);
  EXPECT_GE(now_us() - before, 150'000);
  EXPECT_LT(now_us() - before, 5'000'000);
  EXPECT_NE(nobody.status().message().find(address.to_string()), std::string::npos) << nobody.status();
  EXPECT_NE(nobody.status().message().find("refused"), std::string::npos) << nobody.status();

  const RawServer silent;  // the kernel accepts for it
  const auto mute = connect_and_wait(*tcp, *loop_, silent.address(), now_us() + 150'000);
  EXPECT_EQ(mute.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(mute.status().message().find("does not answer"), std::string::npos) << mute.status();
}

TEST_F(Tcp, ConnectGivesUpWhereNobodyListens) {
  const auto tcp = transport();
  const Address address = RawServer().address();
  const TimeUs before = now_us();
  const auto nobody = connect_and_wait(*tcp, *loop_, address, {kNever, /*refusals_us=*/50'000});
  EXPECT_GE(now_us() - before, 50'000);
  EXPECT_EQ(nobody.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(nobody.status().message().find("refused"), std::string::npos) << nobody.status();
}

// It may be there again soon, unlike a process that has ended.
TEST_F(Tcp, AMachineThatDoesNotAnswerHasRefusedNothing) {
  const auto tcp = transport();
  const UnansweringServer away;
  const TimeUs deadline_us = now_us() + 150'000;
  const auto nobody = connect_and_wait(*tcp, *loop_, away.address(), {deadline_us, /*refusals_us=*/0});
  EXPECT_GE(now_us(), deadline_us);
  EXPECT_NE(nobody.status().message().find("no answer"), std::string::npos) << nobody.status();
}

// The kernel's own tries become ever rarer.
TEST_F(Tcp, AnAttemptWithoutAnAnswerBeginsAnew) {
  const auto tcp = transport();
  const UnansweringServer away;
  std::set<unsigned> seen = away.waiting_ports();
  const size_t before = seen.size();
  tcp->connect(*loop_, away.address(), kNever, [](auto) { FAIL(); });
  EXPECT_TRUE(eventually([&] {
    seen.merge(away.waiting_ports());
    return seen.size() >= before + 2;
  }));
}

TEST_F(Tcp, ConnectTellsAnotherProgramAtOnce) {
  const auto tcp = transport();
  RawServer web;
  std::thread thread([&] {
    const UniqueFd client = web.accept();
    const std::string_view answer = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";
    send(client.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
    char byte;
    while (recv(client.get(), &byte, 1, 0) > 0) {
    }
  });
  const auto result = connect_and_wait(*tcp, *loop_, web.address(), soon_us());
  EXPECT_EQ(result.status().code(), StatusCode::kDataLoss) << result.status();
  thread.join();
}

TEST_F(Tcp, AnAttemptEndsWithItsLoop) {
  const auto tcp = transport();
  auto loop = make_loop();
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = held;
  tcp->connect(*loop, RawServer().address(), kNever, [held = std::move(held)](auto) { FAIL(); });
  const RawServer silent;
  tcp->connect(*loop, silent.address(), kNever, [](auto) { FAIL(); });
  run_on(*loop, [] {});
  loop.reset();
  EXPECT_TRUE(watch.expired());
}

}  // namespace
}  // namespace byteps::transport
