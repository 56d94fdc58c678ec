#include "transport/stream/handshake.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace byteps::transport {
namespace {

// Control buffer for one descriptor.
union DescriptorMessage {
  cmsghdr header;
  std::byte bytes[CMSG_SPACE(sizeof(int))];
};

// Sends a whole message, which fits into the send buffer of a new connection; a partial write is an
// error. Sends `passed_fd`, unless -1, along with it (Unix sockets only).
Status send_all(int fd, Bytes message, int passed_fd = -1) {
  iovec part{const_cast<std::byte*>(message.data()), message.size()};
  msghdr whole{};
  whole.msg_iov = &part;
  whole.msg_iovlen = 1;
  DescriptorMessage descriptor{};
  if (passed_fd >= 0) {
    descriptor.header = {CMSG_LEN(sizeof passed_fd), SOL_SOCKET, SCM_RIGHTS};
    std::memcpy(CMSG_DATA(&descriptor.header), &passed_fd, sizeof passed_fd);
    whole.msg_control = &descriptor;
    whole.msg_controllen = sizeof descriptor.bytes;
  }
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(fd, &whole, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent == static_cast<ssize_t>(message.size())) return Status::ok();
  return from_errno("handshake: send", sent < 0 ? errno : ENOBUFS);
}

}  // namespace

SocketHandshake::SocketHandshake(Side side, const Credentials& credentials, int passed_fd)
    : side_(side), passed_fd_to_send_(passed_fd), handshake_(side, credentials) {}

Result<SocketHandshake::Progress> SocketHandshake::advance(int fd) {
  if (!greeted_ && side_ == Side::kConnecting) BPS_RETURN_IF_ERROR(greet(fd));
  if (!heard_) {
    const auto progress = receive(fd, kHelloBytes);
    if (!progress || *progress == Progress::kNeedsBytes) return progress;
    BPS_RETURN_IF_ERROR(on_hello(fd));
  }
  const auto progress = receive(fd, side_ == Side::kAccepting ? kClaimBytes : kVerdictBytes);
  if (!progress || *progress == Progress::kNeedsBytes) return progress;
  BPS_RETURN_IF_ERROR(side_ == Side::kAccepting ? on_claim(fd) : on_verdict());
  return Progress::kDone;
}

Status SocketHandshake::greet(int fd) {
  greeted_ = true;
  return send_all(fd, handshake_.hello());
}

// Receives one message of `bytes`, over several calls if necessary.
Result<SocketHandshake::Progress> SocketHandshake::receive(int fd, size_t bytes) {
  while (received_bytes_ < bytes) {
    const ssize_t got = receive_some(fd, std::span(received_).first(bytes).subspan(received_bytes_));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return Progress::kNeedsBytes;
    if (got < 0) return from_errno("handshake: receive", errno);
    if (got == 0) return unavailable("handshake: the other side closed the connection before the end");
    received_bytes_ += static_cast<size_t>(got);
  }
  received_bytes_ = 0;
  return Progress::kDone;
}

// Accepts a descriptor only together with a proof; the kernel closes any other.
ssize_t SocketHandshake::receive_some(int fd, std::span<std::byte> into) {
  if (!heard_ || side_ == Side::kConnecting) return recv(fd, into.data(), into.size(), 0);
  iovec part{into.data(), into.size()};
  DescriptorMessage descriptor{};
  msghdr whole{};
  whole.msg_iov = &part;
  whole.msg_iovlen = 1;
  whole.msg_control = &descriptor;
  whole.msg_controllen = sizeof descriptor.bytes;
  const ssize_t got = recvmsg(fd, &whole, MSG_CMSG_CLOEXEC);
  const cmsghdr* header = got > 0 ? CMSG_FIRSTHDR(&whole) : nullptr;
  if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
    int passed_fd = -1;
    std::memcpy(&passed_fd, CMSG_DATA(header), sizeof passed_fd);
    received_fd_.reset(passed_fd);
  }
  return got;
}

Status SocketHandshake::on_hello(int fd) {
  Hello other;
  std::copy_n(received_.begin(), kHelloBytes, other.begin());
  // Tells a peer of another version this side's version.
  if (side_ == Side::kAccepting && Handshake::is_hello(other)) BPS_RETURN_IF_ERROR(greet(fd));
  BPS_RETURN_IF_ERROR(handshake_.on_hello(other));
  heard_ = true;
  if (side_ == Side::kAccepting) return Status::ok();
  return send_all(fd, handshake_.claim(), passed_fd_to_send_);
}

Status SocketHandshake::on_claim(int fd) {
  const AuthResult result = handshake_.judge(received_);
  const Status sent = send_all(fd, handshake_.verdict(result));
  if (result == AuthResult::kAccepted) return sent;
  refused_ = result;
  return handshake_.explain(result);
}

Status SocketHandshake::on_verdict() {
  Verdict verdict;
  std::copy_n(received_.begin(), kVerdictBytes, verdict.begin());
  return handshake_.check_verdict(verdict);
}

}  // namespace byteps::transport
