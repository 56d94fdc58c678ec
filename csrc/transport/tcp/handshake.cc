#include "transport/tcp/handshake.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace byteps::transport {
namespace {

// A new connection's send buffer holds the few bytes of a handshake: less than all of them is an error.
Status send_all(int fd, Bytes message) {
  ssize_t sent = 0;
  do {
    sent = ::send(fd, message.data(), message.size(), MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent == static_cast<ssize_t>(message.size())) return Status::ok();
  return from_errno("handshake: send", sent < 0 ? errno : ENOBUFS);
}

}  // namespace

SocketHandshake::SocketHandshake(Side side, const Credentials& credentials)
    : side_(side), handshake_(side, credentials) {}

Result<SocketHandshake::Progress> SocketHandshake::advance(int fd) {
  if (!greeted_ && side_ == Side::kConnecting) BPS_RETURN_IF_ERROR(greet(fd));
  if (!heard_) {
    const auto progress = receive(fd, kHelloBytes);
    if (!progress || *progress == Progress::kNeedsBytes) return progress;
    BPS_RETURN_IF_ERROR(on_hello(fd));
  }
  const auto progress = receive(fd, kProofBytes);
  if (!progress || *progress == Progress::kNeedsBytes) return progress;
  BPS_RETURN_IF_ERROR(on_proof(fd));
  return Progress::kDone;
}

Status SocketHandshake::greet(int fd) {
  greeted_ = true;
  return send_all(fd, handshake_.hello());
}

// One message of `bytes`, all of it at last.
Result<SocketHandshake::Progress> SocketHandshake::receive(int fd, size_t bytes) {
  while (received_bytes_ < bytes) {
    const ssize_t got = recv(fd, received_.data() + received_bytes_, bytes - received_bytes_, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return Progress::kNeedsBytes;
    if (got < 0) return from_errno("handshake: receive", errno);
    if (got == 0 && heard_ && side_ == Side::kConnecting) {
      // It has seen this side's proof and hung up without a word: that is how a wrong proof is answered.
      return permission_denied(
          "handshake: refused by the other side: it has another secret or another job id: check "
          "that BYTEPS_SECRET_FILE is the same everywhere, or start all with bpslaunch");
    }
    if (got == 0) return unavailable("handshake: closed by the other side");
    received_bytes_ += static_cast<size_t>(got);
  }
  received_bytes_ = 0;
  return Progress::kDone;
}

Status SocketHandshake::on_hello(int fd) {
  BPS_RETURN_IF_ERROR(handshake_.on_hello(received_));
  heard_ = true;
  if (side_ == Side::kAccepting) return greet(fd);
  return send_all(fd, handshake_.proof());
}

Status SocketHandshake::on_proof(int fd) {
  Proof proof;
  std::copy_n(received_.begin(), kProofBytes, proof.begin());
  BPS_RETURN_IF_ERROR(handshake_.verify(proof));
  if (side_ == Side::kAccepting) return send_all(fd, handshake_.proof());
  return Status::ok();
}

}  // namespace byteps::transport
