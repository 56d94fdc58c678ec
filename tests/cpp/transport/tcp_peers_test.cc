// Specific to TCP: unauthenticated peers, and invalid bytes of authenticated ones.
#include "transport/tcp_harness.h"

namespace byteps::transport {
namespace {

// ---- Unauthenticated peers ----

TEST_F(Tcp, StrangersAreDroppedAndTheListenerGoesOn) {
  const auto tcp = transport();
  Acceptor acceptor(*tcp, *loop_, kAnyPort);
  std::mt19937 random(1);
  for (int i = 0; i < 50; ++i) {
    std::string noise = pattern(36 + random() % 5000, random());
    if (i % 3 == 0) noise = "GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: scanner\r\nAccept: */*\r\n\r\n";
    // A hello without a proof.
    if (i % 3 == 1) noise[0] = 'B', noise[1] = 'P', noise[2] = 'S', noise[3] = 2;
    RawSocket stranger(acceptor.address());
    stranger.send(as_bytes(noise));
    std::array<std::byte, kHelloBytes> hello;
    const bool greets = noise.starts_with("BPS");
    EXPECT_TRUE(!greets || stranger.receive(hello));
    if (greets && noise.size() < kHelloBytes + kClaimBytes) continue;  // the claim is incomplete
    Verdict verdict;
    if (greets) stranger.receive(verdict);  // may be lost in a reset
    EXPECT_TRUE(stranger.wait_until_closed()) << i;
  }
  EXPECT_EQ(acceptor.waiting(), 0u);
  expect_open_for_business(*tcp, acceptor);
}

TEST_F(Tcp, StrangersAreWarnedOfOnce) {
  const auto tcp = transport();
  log::set_level(log::Level::kWarning);
  Acceptor acceptor(*tcp, *loop_, kAnyPort);
  testing::internal::CaptureStderr();
  for (int i = 0; i < 20; ++i) {
    RawSocket stranger(acceptor.address());
    stranger.send(as_bytes(pattern(36, i)));
    EXPECT_TRUE(stranger.wait_until_closed());
  }
  run_on(*loop_, [] {});
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
  EXPECT_NE(log.find(acceptor.address().to_string()), std::string::npos) << log;
}

TEST_F(Tcp, WhoDoesNotProveItselfInTimeIsDropped) {
  const auto tcp = transport({.credentials = test_credentials(), .handshake_timeout_s = 0.1});
  Acceptor acceptor(*tcp, *loop_, kAnyPort);
  RawSocket silent(acceptor.address());
  RawSocket half(acceptor.address());
  const Handshake handshake(Side::kConnecting, test_credentials());
  half.send(handshake.hello());
  std::array<std::byte, kHelloBytes> hello;
  EXPECT_TRUE(half.receive(hello));
  RawSocket slow(acceptor.address());
  for (size_t i = 0; i < kHelloBytes && slow.send(Bytes(handshake.hello()).subspan(i, 1)); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  for (RawSocket* each : {&silent, &half, &slow}) EXPECT_TRUE(each->wait_until_closed());
  EXPECT_EQ(acceptor.waiting(), 0u);
}

// Of each kind, and with a valid hello, which needs no secret.
TEST_F(Tcp, AFloodOfStrangersDoesNotKeepOursOut) {
  const auto tcp = transport({.credentials = test_credentials(), .handshake_timeout_s = 600});
  Acceptor acceptor(*tcp, *loop_, kAnyPort);
  const Handshake handshake(Side::kConnecting, test_credentials());
  std::vector<std::unique_ptr<RawSocket>> flood;
  for (int i = 0; i < 500; ++i) {
    flood.push_back(std::make_unique<RawSocket>(acceptor.address()));
    if (i % 5 != 0) flood.back()->send(handshake.hello());
  }
  expect_open_for_business(*tcp, acceptor);
}

TEST_F(Tcp, TheListenerSurvivesRunningOutOfDescriptors) {
  const auto tcp = transport();
  Acceptor acceptor(*tcp, *loop_, kAnyPort);
  RawSocket client;
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const UniqueFd next_free(dup(client.fd()));
  const rlimit none_left{static_cast<rlim_t>(next_free.get()) + 1, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none_left), 0);
  client.connect(acceptor.address());
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  EXPECT_EQ(acceptor.waiting(), 0u);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_TRUE(client.authenticate(test_credentials()));
  auto connection = acceptor.take();
  EXPECT_TRUE(connection);
  destroy(connection);
}

// ---- Invalid bytes on an authenticated connection ----

TEST_F(Tcp, ACloseInsideAFrameIsUnavailable) {
  const auto tcp = transport();
  Acceptor acceptor(*tcp, *loop_, kAnyPort);
  Recorder recorder;
  auto raw = std::make_unique<RawSocket>();
  auto connection = accept_raw(acceptor, *raw, recorder);
  raw->send(as_bytes(frame_front(4, 100'000) + "head and a part of the payload"));
  ASSERT_TRUE(recorder.seen.wait([](const Seen& s) { return s.heads == 1; }));
  raw.reset();
  const Status why = recorder.why_closed();
  EXPECT_EQ(why.code(), StatusCode::kUnavailable);
  EXPECT_NE(why.message().find("inside a frame"), std::string::npos) << why;
  destroy(connection);
}

TEST_F(Tcp, APayloadAboveTheLimitClosesBeforeItIsAskedFor) {
  const auto tcp = transport({.credentials = test_credentials(), .max_payload_bytes = 1000});
  Acceptor acceptor(*tcp, *loop_, kAnyPort);
  Recorder recorder;
  RawSocket raw;
  auto connection = accept_raw(acceptor, raw, recorder);
  raw.send(as_bytes(frame_front(0, 1001)));
  EXPECT_EQ(recorder.why_closed().code(), StatusCode::kDataLoss);
  EXPECT_EQ(recorder.seen.get().heads, 0u);
  EXPECT_TRUE(raw.wait_until_closed());
  destroy(connection);
}

TEST_F(Tcp, MutatedFramesCloseTheirConnectionOnly) {
  const auto tcp = transport({.credentials = test_credentials(), .max_payload_bytes = 4096});
  Acceptor acceptor(*tcp, *loop_, kAnyPort);
  auto ours = connect_and_wait(*tcp, *loop_, acceptor.address(), soon_us());
  ASSERT_TRUE(ours.is_ok()) << ours.status();
  auto theirs = acceptor.take();
  Recorder sound;
  run_on(*loop_, [&] { theirs->start(&sound); });
  constexpr int kRounds = 300;
  for (int seed = 0; seed < kRounds; ++seed) {
    std::mt19937 random(seed);
    Recorder recorder;
    RawSocket raw;
    auto connection = accept_raw(acceptor, raw, recorder);
    ASSERT_TRUE(connection);
    std::string stream = frame_front(4, 200) + "head" + pattern(200, seed);
    stream[random() % kFramePrefixBytes] ^= static_cast<char>(1 + random() % 255);
    raw.send(as_bytes(stream));
    shutdown(raw.fd(), SHUT_WR);
    const StatusCode code = recorder.why_closed().code();
    EXPECT_TRUE(code == StatusCode::kDataLoss || code == StatusCode::kUnavailable) << seed;
    destroy(connection);
    run_on(*loop_, [&] { (*ours)->send(as_bytes("sound"), {}, {}); });
  }
  EXPECT_TRUE(sound.wait_for_frames(kRounds));
  EXPECT_TRUE(sound.seen.get().closed.empty());
  run_on(*loop_, [&] {
    ours->reset();
    theirs.reset();
  });
}

// The peer's last frames are delivered although this end was writing to it.
TEST_F(Tcp, LastWordsAreReadAfterAWriteFailed) {
  const auto tcp = transport();
  Acceptor acceptor(*tcp, *loop_, kAnyPort);
  Recorder recorder;
  auto raw = std::make_unique<RawSocket>();
  raw->connect(acceptor.address());
  ASSERT_TRUE(raw->authenticate(test_credentials()));
  auto connection = acceptor.take();
  ASSERT_TRUE(connection);
  const std::string bulk(32 << 20, 'x');
  SentLog sent;
  run_on(*loop_, [&] { connection->send({}, payload_of(bulk), sent.expect_one()); });
  raw->send(as_bytes(frame_front(7, 0) + "because"));
  raw.reset();  // with unread bytes, so the kernel resets the connection
  EXPECT_FALSE(sent.all().front().is_ok());
  run_on(*loop_, [&] { connection->start(&recorder); });
  EXPECT_EQ(recorder.why_closed().code(), StatusCode::kUnavailable);
  ASSERT_EQ(recorder.seen.get().frames.size(), 1u);
  EXPECT_EQ(recorder.seen.get().frames[0].head, "because");
  destroy(connection);
}

TEST_F(Tcp, APeerThatHasNoRoomForSoLongIsNoPeerAnyMore) {
  const auto tcp = transport();
  Acceptor acceptor(*tcp, *loop_, kAnyPort);
  auto ours = connect_and_wait(*tcp, *loop_, acceptor.address(), soon_us());
  ASSERT_TRUE(ours.is_ok()) << ours.status();
  auto theirs = acceptor.take();  // never reads
  ASSERT_TRUE(theirs);
  const std::string bulk(64 << 20, 'x');
  Recorder recorder;
  SentLog sent;
  run_on(*loop_, [&] {
    (*ours)->limit_silence(500'000);
    (*ours)->start(&recorder);
    (*ours)->send({}, payload_of(bulk), sent.expect_one());
  });
  EXPECT_NE(recorder.why_closed().message().find("no sign of life"), std::string::npos)
      << recorder.why_closed();
  EXPECT_FALSE(sent.all().front().is_ok());
  run_on(*loop_, [&] {
    ours->reset();
    theirs.reset();
  });
}

}  // namespace
}  // namespace byteps::transport
