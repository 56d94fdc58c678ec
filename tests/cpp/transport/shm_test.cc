// Specific to shared memory: access control, hostile or dying peers, and lack of room.
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "base/log.h"
#include "transport/frame.h"
#include "transport/harness.h"
#include "transport/shm/reference.h"
#include "transport/shm/segment.h"

namespace byteps::transport {
namespace {

const Address kAnyName{"@", 0};
constexpr size_t kLendBytes = 64 << 10;

// Another implementation of the connecting end, with a blocking socket and its own memory.
class RawLeaseOwner {
 public:
  explicit RawLeaseOwner(const Address& to) : fd_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const timeval timeout{10, 0};
    setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    const auto address = to_socket_address(to);
    EXPECT_EQ(::connect(fd_.get(), address->get(), address->length), 0) << strerror(errno);
  }
  // Sends `passed_fd` (-1: none) with its proof. Returns true if the other side proves itself, too.
  bool authenticate(int passed_fd, const Credentials& credentials = test_credentials()) {
    Handshake handshake(Side::kConnecting, credentials);
    Hello hello;
    Verdict verdict;
    if (!send(handshake.hello()) || !receive(hello) || !handshake.on_hello(hello).is_ok()) return false;
    return send(handshake.claim(), passed_fd) && receive(verdict) && handshake.check_verdict(verdict).is_ok();
  }
  bool send(Bytes bytes, int passed_fd = -1) {
    iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (passed_fd >= 0) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      *CMSG_FIRSTHDR(&message) = {CMSG_LEN(sizeof passed_fd), SOL_SOCKET, SCM_RIGHTS};
      std::memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), &passed_fd, sizeof passed_fd);
    }
    return sendmsg(fd_.get(), &message, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  }
  // Sends a frame of reference, head and payload.
  void send_frame(const Reference& reference, std::string_view head = {}, std::string_view payload = {}) {
    std::array<std::byte, kReferenceBytes> encoded;
    encode_reference(reference, encoded);
    send_raw_frame(std::string(as_text(encoded)) + std::string(head), payload);
  }
  void send_raw_frame(std::string_view head, std::string_view payload) {
    std::array<std::byte, kFramePrefixBytes> prefix;
    encode_prefix({head.size(), payload.size()}, prefix);
    EXPECT_TRUE(send(as_bytes(std::string(as_text(prefix)) + std::string(head) + std::string(payload))));
  }
  bool wait_until_closed() {
    char byte;
    const ssize_t got = recv(fd_.get(), &byte, 1, 0);
    return got == 0 || (got < 0 && errno == ECONNRESET);
  }
  void close() { fd_.reset(); }

 private:
  template <size_t N>
  bool receive(std::array<std::byte, N>& into) {
    return recv(fd_.get(), into.data(), N, MSG_WAITALL) == ssize_t{N};
  }
  UniqueFd fd_;
};

std::set<std::string> names_in(const char* folder) {
  std::set<std::string> names;
  DIR* dir = opendir(folder);
  while (const dirent* entry = dir ? readdir(dir) : nullptr) names.insert(entry->d_name);
  if (dir) closedir(dir);
  return names;
}

std::string content_of(const char* file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

class Shm : public testing::Test {
 protected:
  Shm() { log::set_level(log::Level::kError); }  // hides warnings about unauthenticated peers
  ~Shm() override {
    run_on(*loop_, [this] {
      mine_.reset();
      other_.reset();
    });
    acceptor_.reset();
    log::set_level(log::Level::kWarning);
  }

  static std::unique_ptr<Transport> transport(const Credentials& credentials = test_credentials()) {
    return make_shm_transport({.stream = {.credentials = credentials}, .lend_bytes = kLendBytes});
  }
  void listen() { acceptor_ = std::make_unique<Acceptor>(*shm_, *loop_, kAnyName); }
  // `mine_` owns the memory; `other_` holds leases and keeps all of them.
  void connect() {
    listen();
    auto connected = connect_and_wait(*shm_, *loop_, acceptor_->address(), soon_us());
    ASSERT_TRUE(connected.is_ok()) << connected.status();
    mine_ = std::move(*connected);
    other_ = acceptor_->take();
    ASSERT_TRUE(other_);
    run_on(*loop_, [this] { mine_->start(&asker_); });
    start_holder();
  }
  void start_holder() {
    lease_holder_.keeps_leases = true;
    lease_holder_.head = [](Connection&, const Arrival& arrival) -> Result<ReceiveBuffer> {
      if (arrival.lease != kNoLease) return ReceiveBuffer::in_place();
      return ReceiveBuffer::discard();
    };
    lease_holder_.frame = [this](Connection&, const Arrival& arrival, Bytes) {
      if (arrival.lease != kNoLease) leases_.push_back(arrival.lease);
      return Status::ok();
    };
    run_on(*loop_, [this] { other_->start(&lease_holder_); });
  }
  void give_one_back() {
    run_on(*loop_, [this] {
      other_->return_lease(leases_.front());
      leases_.pop_front();
    });
  }
  void send(std::string_view head, std::string_view payload) {
    run_on(*loop_, [&] { mine_->send(as_bytes(head), payload_of(payload), sent_.expect_one()); });
  }
  // Waits until the peer has read everything sent so far.
  void drain() {
    for (int i = 0; i < 10; ++i) run_on(*loop_, [] {});
  }

  class Starving final : public Recorder {
   public:
    Watched<int> calls;
    void on_starving(Connection&) override {
      calls.update([](int& n) { ++n; });
    }
  };

  const std::unique_ptr<EventLoop> loop_ = make_loop();
  const std::unique_ptr<Transport> shm_ = transport();
  SentLog sent_;
  Recorder asker_;
  Starving lease_holder_;
  std::deque<LeaseId> leases_;  // used on the loop
  std::unique_ptr<Acceptor> acceptor_;
  std::unique_ptr<Connection> mine_;
  std::unique_ptr<Connection> other_;
};

// ---- Access control ----

TEST_F(Shm, IsViableHere) { EXPECT_TRUE(shm_->viable().is_ok()) << shm_->viable(); }

TEST_F(Shm, NamesAreRandomAndSayTheJob) {
  listen();
  Acceptor second(*shm_, *loop_, kAnyName);
  const std::string name = acceptor_->address().to_string();
  EXPECT_EQ(name.rfind("@byteps-job-7-", 0), 0u) << name;
  EXPECT_NE(name, second.address().to_string());
  EXPECT_EQ(parse_address(name).value(), acceptor_->address());
  const auto taken = shm_->listen(*loop_, second.address(), [](auto) {});
  EXPECT_EQ(taken.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(taken.status().message().find(second.address().to_string()), std::string::npos) << taken.status();
}

TEST_F(Shm, AddressesOfOtherKindsAreRefused) {
  const Address tcp{"127.0.0.1", 9};
  EXPECT_EQ(shm_->listen(*loop_, tcp, [](auto) {}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(connect_and_wait(*shm_, *loop_, tcp, soon_us()).status().code(), StatusCode::kInvalidArgument);
}

// So ranks that wrongly believe to be on one machine fall back to TCP without delay.
TEST_F(Shm, NobodyListeningIsReportedAtOnce) {
  const auto nobody = connect_and_wait(*shm_, *loop_, {"@byteps-nobody", 0}, kNever);
  EXPECT_EQ(nobody.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(nobody.status().message().find("shm: connect to @byteps-nobody"), std::string::npos)
      << nobody.status();
}

TEST_F(Shm, AnotherSecretOrJobIsRefusedAtOnce) {
  listen();
  for (const Credentials& other :
       {Credentials{"wrong", "job 7"}, Credentials{"a secret of the test", "job 8"}}) {
    const auto result = connect_and_wait(*transport(other), *loop_, acceptor_->address(), soon_us());
    EXPECT_EQ(result.status().code(), StatusCode::kPermissionDenied) << result.status();
  }
  EXPECT_EQ(acceptor_->waiting(), 0u);
}

TEST_F(Shm, NoSecretIsNeededAmongProcessesOfOneUser) {
  const auto open = transport({"", "job"});
  Acceptor acceptor(*open, *loop_, kAnyName);
  auto connected = connect_and_wait(*open, *loop_, acceptor.address(), soon_us());
  EXPECT_TRUE(connected.is_ok()) << connected.status();
  run_on(*loop_, [&] { connected = internal("done"); });
}

TEST_F(Shm, OtherUsersAreDroppedBeforeAWord) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be somebody else";
  listen();
  std::thread([&] {
    constexpr int kNobody = 65534;
    ASSERT_EQ(syscall(SYS_setresuid, kNobody, kNobody, kNobody), 0);  // of this thread only
    RawLeaseOwner stranger(acceptor_->address());
    EXPECT_TRUE(stranger.wait_until_closed());
  }).join();
  EXPECT_EQ(acceptor_->waiting(), 0u);
}

TEST_F(Shm, WhoPassesNoSoundMemoryIsDropped) {
  listen();
  const UniqueFd unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 8192), 0);
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  for (const int passed_fd : {-1, unsealed.get(), null.get()}) {
    RawLeaseOwner peer(acceptor_->address());
    peer.authenticate(passed_fd);
    EXPECT_TRUE(peer.wait_until_closed()) << passed_fd;
  }
  EXPECT_EQ(acceptor_->waiting(), 0u);
}

// ---- Hostile and dying peers ----

TEST_F(Shm, ForgedFramesCloseTheConnection) {
  const std::string no_reference = "short";
  const std::vector<std::function<void(RawLeaseOwner&)>> forgeries{
      // beyond the end
      [](RawLeaseOwner& peer) { peer.send_frame({ReferenceType::kLent, 2, 8192}); },
      // far beyond
      [](RawLeaseOwner& peer) { peer.send_frame({ReferenceType::kLent, 0xffffffff, 1, 1}); },
      // twice
      [](RawLeaseOwner& peer) {
        peer.send_frame({ReferenceType::kLent, 1, 64});
        peer.send_frame({ReferenceType::kLent, 1, 64});
      },
      // Types that only the other end may send.
      [](RawLeaseOwner& peer) { peer.send_frame({ReferenceType::kReturned, 1, 1}); },
      [](RawLeaseOwner& peer) { peer.send_frame({ReferenceType::kGivenBack, 1}); },
      [](RawLeaseOwner& peer) { peer.send_frame({ReferenceType::kInline, 1}); },
      [](RawLeaseOwner& peer) { peer.send_frame({ReferenceType::kLent, 1, 64}, "head", "and a payload"); },
      [](RawLeaseOwner& peer) { peer.send_frame({ReferenceType::kStarving}, "", "payload"); },
      [](RawLeaseOwner& peer) { peer.send_frame({static_cast<ReferenceType>(9), 1, 64}); },
      [&](RawLeaseOwner& peer) { peer.send_raw_frame(no_reference, ""); },
      [&](RawLeaseOwner& peer) { peer.send_raw_frame(no_reference, "payload"); },
      [](RawLeaseOwner& peer) { peer.send_frame({}, std::string(kMaxHeadBytes + 1, 'x')); },
  };
  listen();
  const auto memory = create_segment(8192);
  for (size_t i = 0; i < forgeries.size(); ++i) {
    RawLeaseOwner peer(acceptor_->address());
    ASSERT_TRUE(peer.authenticate(memory->get()));
    auto connection = acceptor_->take();
    ASSERT_TRUE(connection);
    Recorder recorder;
    recorder.keeps_leases = true;
    run_on(*loop_, [&] { connection->start(&recorder); });
    forgeries[i](peer);
    EXPECT_EQ(recorder.why_closed().code(), StatusCode::kDataLoss) << i << ": " << recorder.why_closed();
    run_on(*loop_, [&] { connection.reset(); });
  }
}

TEST_F(Shm, LeasesOfADeadPeerStayReadableUntilTheConnectionGoes) {
  listen();
  auto memory = create_segment(8192);
  RawLeaseOwner peer(acceptor_->address());
  ASSERT_TRUE(peer.authenticate(memory->get()));
  other_ = acceptor_->take();
  ASSERT_TRUE(other_);
  start_holder();
  Bytes leased;
  run_on(*loop_, [&] {
    lease_holder_.frame = [&](Connection&, const Arrival&, Bytes payload) {
      leased = payload;
      return Status::ok();
    };
  });
  {
    auto mapped = Segment::map(memory->get());
    std::memcpy(mapped->bytes().data(), "last words", 10);
  }
  peer.send_frame({ReferenceType::kLent, 1, 10, 10}, "head");
  ASSERT_TRUE(lease_holder_.wait_for_frames(1));
  peer.close();
  memory->reset();
  EXPECT_EQ(lease_holder_.why_closed().code(), StatusCode::kUnavailable);
  run_on(*loop_, [&] {
    EXPECT_EQ(as_text(leased), "last words");
    other_->return_lease(1);  // has no effect
  });
}

TEST_F(Shm, NothingIsLeftAndNothingWasEverInAFileSystem) {
  const auto before = names_in("/dev/shm");
  connect();
  const std::string name = acceptor_->address().to_string();
  send("head", "payload");
  ASSERT_TRUE(lease_holder_.wait_for_frames(1));
  EXPECT_EQ(names_in("/dev/shm"), before);
  EXPECT_NE(content_of("/proc/net/unix").find(name), std::string::npos);
  EXPECT_NE(content_of("/proc/self/maps").find("memfd:byteps"), std::string::npos);
  run_on(*loop_, [this] {
    mine_.reset();
    other_.reset();
  });
  acceptor_.reset();
  EXPECT_EQ(content_of("/proc/net/unix").find(name), std::string::npos);
  EXPECT_EQ(content_of("/proc/self/maps").find("memfd:byteps"), std::string::npos);
}

// ---- Lack of room ----

TEST_F(Shm, FramesWaitInOrderForRoomAndTheOtherEndIsTold) {
  connect();
  const std::string half = pattern(kLendBytes / 2, 1);
  const std::string small = "small";
  for (const char* head : {"1", "2", "3"}) send(head, half);
  send("4", small);
  send("5", {});  // needs no room, but must not overtake
  ASSERT_TRUE(lease_holder_.calls.wait([](int n) { return n == 1; }));
  drain();
  EXPECT_EQ(lease_holder_.seen.get().frames.size(), 2u);
  EXPECT_EQ(lease_holder_.calls.get(), 1) << "told once, until a lease comes back";
  give_one_back();
  ASSERT_TRUE(lease_holder_.wait_for_frames(3));
  ASSERT_TRUE(lease_holder_.calls.wait([](int n) { return n == 2; }));
  give_one_back();
  ASSERT_TRUE(lease_holder_.wait_for_frames(5));
  drain();
  EXPECT_EQ(lease_holder_.calls.get(), 2);
  const Seen seen = lease_holder_.seen.get();
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(seen.frames[i].head, std::to_string(i + 1));
  EXPECT_TRUE(seen.frames[2].payload == half);
  for (const Status& status : sent_.all()) EXPECT_TRUE(status.is_ok()) << status;
}

TEST_F(Shm, ALargerPayloadThanTheMemoryGoesThroughTheSocket) {
  connect();
  const std::string large = pattern(kLendBytes + 1, 1);
  std::vector<std::byte> receive_buffer(large.size());
  run_on(*loop_, [&] {
    lease_holder_.head = [&](Connection&, const Arrival& arrival) -> Result<ReceiveBuffer> {
      EXPECT_EQ(arrival.lease, kNoLease);
      EXPECT_TRUE(arrival.lent.empty() && arrival.reply_space.empty());
      return ReceiveBuffer::at(receive_buffer);
    };
  });
  send("large", large);
  ASSERT_TRUE(lease_holder_.wait_for_frames(1));
  EXPECT_TRUE(lease_holder_.seen.get().frames[0].payload == large);
}

TEST_F(Shm, AFailureThatAnswersALeaseReturnsIt) {
  connect();
  const std::string all = pattern(kLendBytes, 1);
  send("1", all);
  send("2", all);
  ASSERT_TRUE(lease_holder_.calls.wait([](int n) { return n == 1; }));
  const std::string text = "no such tensor";
  run_on(*loop_, [&] {
    other_->send(as_bytes("failed"), {as_bytes(text), {}, leases_.front()}, sent_.expect_one());
  });
  ASSERT_TRUE(asker_.wait_for_frames(1));
  EXPECT_EQ(asker_.seen.get().frames[0].payload, text);
  ASSERT_TRUE(lease_holder_.wait_for_frames(2));
}

TEST_F(Shm, ClosingWhenSentAlsoSendsWhatWaitsForRoom) {
  connect();
  const std::string all = pattern(kLendBytes, 1);
  for (const char* head : {"1", "2", "3"}) send(head, all);
  run_on(*loop_, [&] { mine_->close_when_sent(soon_us()); });
  for (size_t frames : {1, 2, 3}) {
    ASSERT_TRUE(lease_holder_.wait_for_frames(frames));
    if (frames < 3) give_one_back();
  }
  EXPECT_EQ(lease_holder_.why_closed().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(asker_.why_closed().is_ok()) << asker_.why_closed();
  for (const Status& status : sent_.all()) EXPECT_TRUE(status.is_ok()) << status;
}

TEST_F(Shm, ClosingWhenSentWaitsForRoomUntilItsDeadlineOnly) {
  connect();
  const std::string all = pattern(kLendBytes, 1);
  for (const char* head : {"1", "2"}) send(head, all);
  run_on(*loop_, [&] { mine_->close_when_sent(now_us() + 20'000); });
  EXPECT_TRUE(asker_.why_closed().is_ok()) << asker_.why_closed();
  EXPECT_EQ(sent_.all().back().code(), StatusCode::kAborted);
}

TEST_F(Shm, WhatWaitsForRoomIsAbortedWhenThisEndCloses) {
  connect();
  const std::string all = pattern(kLendBytes, 1);
  for (const char* head : {"1", "2"}) send(head, all);
  run_on(*loop_, [this] { mine_->close(); });
  EXPECT_EQ(sent_.all().back().code(), StatusCode::kAborted);
}

TEST_F(Shm, WhatWaitsForRoomFailsWhenTheOtherEndCloses) {
  connect();
  const std::string all = pattern(kLendBytes, 1);
  for (const char* head : {"1", "2"}) send(head, all);
  ASSERT_TRUE(lease_holder_.wait_for_frames(1));
  run_on(*loop_, [this] { other_->close(); });
  EXPECT_EQ(asker_.why_closed().code(), StatusCode::kUnavailable);
  EXPECT_EQ(sent_.all().back().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace byteps::transport
