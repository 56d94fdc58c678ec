// Shared by the tests of shared memory: another implementation of the connecting end, and the fixture.
#pragma once

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
#include "transport/shm/buffer_leases.h"
#include "transport/shm/segment.h"

namespace byteps::transport {

inline const Address kAnyName{"@", 0};
inline constexpr size_t kLendBytes = 64 << 10;

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

inline std::set<std::string> names_in(const char* folder) {
  std::set<std::string> names;
  DIR* dir = opendir(folder);
  while (const dirent* entry = dir ? readdir(dir) : nullptr) names.insert(entry->d_name);
  if (dir) closedir(dir);
  return names;
}

inline std::string content_of(const char* file) {
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
    return make_shm_transport({.stream = {.credentials = credentials}, .arena_bytes = kLendBytes});
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

}  // namespace byteps::transport
