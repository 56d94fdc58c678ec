// Shared by the tests of TCP: sockets that are not byteps, and the fixture.
#pragma once

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/unique_fd.h"
#include "transport/authenticate.h"
#include "transport/frame.h"
#include "transport/harness.h"

namespace byteps::transport {

inline const Address kAnyPort{"127.0.0.1", 0};

inline std::string frame_front(size_t head_bytes, size_t payload_bytes) {
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
  explicit RawServer(int backlog = 16) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const auto any = to_socket_address(kAnyPort);
    EXPECT_EQ(bind(fd_.get(), any->get(), any->length), 0);
    EXPECT_EQ(listen(fd_.get(), backlog), 0);
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

// Nobody gets an answer: the kernel drops callers, because others wait to be accepted.
class UnansweringServer {
 public:
  UnansweringServer() {
    const auto to = to_socket_address(server_.address());
    for (int i = 0; i < 3; ++i) {
      callers_.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      ::connect(callers_.back().get(), to->get(), to->length);
    }
  }
  const Address& address() const { return server_.address(); }
  // The ports of those who have no answer yet.
  std::set<unsigned> waiting_ports() const {
    std::set<unsigned> ports;
    std::ifstream sockets("/proc/net/tcp");
    std::string line;
    for (std::getline(sockets, line); std::getline(sockets, line);) {
      unsigned own = 0;
      unsigned other = 0;
      unsigned state = 0;
      constexpr unsigned kSynSent = 2;
      const int found = std::sscanf(line.c_str(), "%*u: %*8x:%x %*8x:%x %x", &own, &other, &state);
      if (found == 3 && other == address().port && state == kSynSent) ports.insert(own);
    }
    return ports;
  }

 private:
  RawServer server_{0};
  std::vector<UniqueFd> callers_;
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

}  // namespace byteps::transport
