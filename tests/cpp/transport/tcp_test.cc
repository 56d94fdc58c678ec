// Specific to TCP: access control, unauthenticated peers, and how connect() waits for a peer.
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/unique_fd.h"
#include "transport/authenticate.h"
#include "transport/frame.h"
#include "transport/harness.h"

namespace byteps::transport {
namespace {

const Address kAnyPort{"127.0.0.1", 0};

std::string frame_front(size_t head_bytes, size_t payload_bytes) {
  std::array<std::byte, kFramePrefixBytes> prefix;
  encode_prefix({head_bytes, payload_bytes}, prefix);
  return std::string(as_text(prefix));
}

// A blocking socket with a deadline per call; plays peers that are not byteps.
class RawSocket {
 public:
  RawSocket() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const timeval timeout{10, 0};
    setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    setsockopt(fd_.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
  }
  explicit RawSocket(const Address& to) : RawSocket() { connect(to); }
  void connect(const Address& to) {
    const auto address = to_socket_address(to);
    ASSERT_EQ(::connect(fd_.get(), address->get(), address->length), 0) << strerror(errno);
  }
  // Returns false if the other side has closed.
  bool send(Bytes bytes) {
    return ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  }
  template <size_t N>
  bool receive(std::array<std::byte, N>& into) {
    return recv(fd_.get(), into.data(), N, MSG_WAITALL) == ssize_t{N};
  }
  // Waits until the other side closes. Returns false if it sends something or does not close by the
  // deadline.
  bool wait_until_closed() {
    char byte;
    const ssize_t got = recv(fd_.get(), &byte, 1, 0);
    return got == 0 || (got < 0 && errno == ECONNRESET);
  }
  // Plays the connecting side of the handshake.
  bool authenticate(const Credentials& credentials) {
    Handshake handshake(Side::kConnecting, credentials);
    Hello hello;
    Verdict verdict;
    if (!send(handshake.hello()) || !receive(hello) || !handshake.on_hello(hello).is_ok()) return false;
    return send(handshake.claim()) && receive(verdict) && handshake.check_verdict(verdict).is_ok();
  }
  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
};

// A listening socket without byteps.
class RawServer {
 public:
  RawServer() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const auto any = to_socket_address(kAnyPort);
    EXPECT_EQ(bind(fd_.get(), any->get(), any->length), 0);
    EXPECT_EQ(listen(fd_.get(), 16), 0);
    SocketAddress bound;
    bound.length = sizeof bound.storage;
    EXPECT_EQ(getsockname(fd_.get(), bound.get(), &bound.length), 0);
    address_ = from_socket_address(bound);
  }
  const Address& address() const { return address_; }
  UniqueFd accept() { return UniqueFd(::accept(fd_.get(), nullptr, nullptr)); }
  int release() { return fd_.release(); }

 private:
  UniqueFd fd_;
  Address address_;
};

class Tcp : public testing::Test {
 protected:
  ~Tcp() override { log::set_level(log::Level::kWarning); }

  std::unique_ptr<Transport> transport(const TcpOptions& options = {.credentials = test_credentials()}) {
    log::set_level(log::Level::kError);  // hides warnings about unauthenticated peers
    return make_tcp_transport(options);
  }
  // Checks that a member of the job can still connect and is answered.
  void expect_open_for_business(Transport& tcp, Acceptor& acceptor) {
    auto ours = connect_and_wait(tcp, *loop_, acceptor.address(), soon_us());
    ASSERT_TRUE(ours.is_ok()) << ours.status();
    auto theirs = acceptor.take();
    ASSERT_TRUE(theirs);
    Recorder recorder;
    run_on(*loop_, [&] {
      theirs->start(&recorder);
      (*ours)->send(as_bytes("still there?"), {}, {});
    });
    EXPECT_TRUE(recorder.wait_for_frames(1));
    run_on(*loop_, [&] {
      ours->reset();
      theirs.reset();
    });
  }
  // Returns the accepting end of a connection with `raw`, authenticated.
  std::unique_ptr<Connection> accept_raw(Acceptor& acceptor, RawSocket& raw, Recorder& recorder) {
    raw.connect(acceptor.address());
    EXPECT_TRUE(raw.authenticate(test_credentials()));
    auto connection = acceptor.take();
    if (connection) run_on(*loop_, [&] { connection->start(&recorder); });
    return connection;
  }
  void destroy(std::unique_ptr<Connection>& connection) {
    run_on(*loop_, [&] { connection.reset(); });
  }

  const std::unique_ptr<EventLoop> loop_ = make_loop();
};

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
      listen_on_tcp_socket(*tcp, *loop_, socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), [](auto) {});
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
