// Runs a Handshake (transport/authenticate.h) over a non-blocking socket.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <utility>

#include "base/unique_fd.h"
#include "transport/authenticate.h"

namespace byteps::transport {

class SocketHandshake {
 public:
  enum class Progress { kNeedsBytes, kDone };

  // `credentials` must outlive this object. `passed_fd`: a descriptor to send with this side's
  // proof, or -1; keep it open until the handshake is done.
  SocketHandshake(Side side, const Credentials& credentials, int passed_fd = -1);

  // Proceeds as far as the received bytes allow; never reads past the end of the handshake.
  // kDataLoss or kPermissionDenied: the peer is not part of the job, or says that this side is not;
  // kUnavailable: the connection broke, or the peer closed it without a verdict.
  Result<Progress> advance(int fd);
  // For the accepting side: why it refused the peer's proof, if it did.
  std::optional<AuthResult> refused() const { return refused_; }
  // The descriptor that came with the peer's proof; invalid if none came.
  UniqueFd take_passed_fd() { return std::move(received_fd_); }

 private:
  Status greet(int fd);
  Result<Progress> receive(int fd, size_t bytes);
  ssize_t receive_some(int fd, std::span<std::byte> into);
  Status on_hello(int fd);
  Status on_claim(int fd);
  Status on_verdict();

  const Side side_;
  const int passed_fd_to_send_;
  Handshake handshake_;
  bool greeted_ = false;
  bool heard_ = false;
  std::optional<AuthResult> refused_;
  // The message being received; other messages are shorter.
  std::array<std::byte, kClaimBytes> received_;
  size_t received_bytes_ = 0;
  UniqueFd received_fd_;
};

}  // namespace byteps::transport
