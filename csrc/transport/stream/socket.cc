#include "transport/stream/socket.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <limits>

namespace byteps::transport {
namespace {

// Two packets of the largest size that the kernel sends at once (GSO).
constexpr int kUnsentBytes = 128 << 10;

// Not in <netinet/tcp.h>.
constexpr int kTcpRtoMinUs = 45;
constexpr int kTcpDelackMaxUs = 46;
constexpr int kLeastTimeoutUs = 30'000;  // above the next one
constexpr int kMostDelayUs = 20'000;     // two ticks of the slowest kernels, which is the least

int get_option(int fd, int level, int option) {
  int value = 0;
  socklen_t length = sizeof value;
  return getsockopt(fd, level, option, &value, &length) == 0 ? value : -1;
}

void enable(int fd, int level, int option) {
  const int one = 1;
  setsockopt(fd, level, option, &one, sizeof one);
}

}  // namespace

Result<UniqueFd> open_stream_socket(int family) {
  UniqueFd fd(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return from_errno("socket", errno);
  return fd;
}

Result<UniqueFd> open_listening_socket(const Address& address) {
  const auto where = to_socket_address(address);
  if (!where) return where.status();
  auto fd = open_stream_socket(where->family());
  if (!fd) return fd.status();
  // Allows binding while closed connections of the last job linger.
  enable(fd->get(), SOL_SOCKET, SO_REUSEADDR);
  if (bind(fd->get(), where->get(), where->length) != 0 || ::listen(fd->get(), SOMAXCONN) != 0) {
    const char* advice = errno == EADDRINUSE      ? ": another process listens there: choose another port"
                         : errno == EADDRNOTAVAIL ? ": this machine does not have that address"
                                                  : "";
    const Status status = from_errno("listen on " + address.to_string(), errno);
    return Status(status.code(), status.message() + advice);
  }
  return fd;
}

Result<Address> adopt_listening_socket(int fd) {
  if (get_option(fd, SOL_SOCKET, SO_ACCEPTCONN) != 1 ||
      get_option(fd, SOL_SOCKET, SO_PROTOCOL) != IPPROTO_TCP) {
    return invalid_argument("tcp: descriptor " + std::to_string(fd) + " is not a listening TCP socket");
  }
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
    return from_errno("tcp: fcntl", errno);
  }
  return local_address(fd);
}

void tune_tcp(int fd) {
  enable(fd, IPPROTO_TCP, TCP_NODELAY);
  setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kUnsentBytes, sizeof kUnsentBytes);
  setsockopt(fd, IPPROTO_TCP, kTcpRtoMinUs, &kLeastTimeoutUs, sizeof kLeastTimeoutUs);
  setsockopt(fd, IPPROTO_TCP, kTcpDelackMaxUs, &kMostDelayUs, sizeof kMostDelayUs);
}

// While data is in flight, the kernel retransmits it until the user timeout. When there is none,
// keep-alive probes are sent. One answered probe ends the probing, so short intervals between
// probes cost nothing.
void limit_tcp_silence(int fd, TimeUs limit_us) {
  constexpr TimeUs kLongestIdleS = 32767;  // MAX_TCP_KEEPIDLE
  const auto limit_ms =
      static_cast<unsigned>(std::min<TimeUs>(limit_us / 1000, std::numeric_limits<int>::max()));
  const int idle_s = static_cast<int>(std::clamp<TimeUs>(limit_us / 2'000'000, 1, kLongestIdleS));
  const int pause_s = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &pause_s, sizeof pause_s);
  // This timeout also limits unanswered probes.
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, sizeof limit_ms);
  enable(fd, SOL_SOCKET, SO_KEEPALIVE);
}

void wake_at(int fd, int bytes) { setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes); }

size_t receive_buffer_bytes(int fd) {
  return static_cast<size_t>(std::max(0, get_option(fd, SOL_SOCKET, SO_RCVBUF)));
}

uint64_t untaken_bytes(int fd) {
  int bytes = 0;
  return ioctl(fd, SIOCOUTQ, &bytes) == 0 ? static_cast<uint64_t>(bytes) : 0;
}

Address local_address(int fd) {
  SocketAddress address;
  address.length = sizeof address.storage;
  if (getsockname(fd, address.get(), &address.length) != 0) return {};
  return from_socket_address(address);
}

Address peer_address(int fd) {
  SocketAddress address;
  address.length = sizeof address.storage;
  if (getpeername(fd, address.get(), &address.length) != 0) return {};
  return from_socket_address(address);
}

int take_socket_error(int fd) {
  const int error = get_option(fd, SOL_SOCKET, SO_ERROR);
  return error < 0 ? errno : error;
}

}  // namespace byteps::transport
