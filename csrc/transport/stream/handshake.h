// Drives a Handshake (transport/authenticate.h) over a non-blocking socket.
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

  // `credentials` must outlive this object. `gift_fd`: a descriptor that goes with this side's proof, or -1; it has
  // to stay open until the handshake is done.
  SocketHandshake(Side side, const Credentials& credentials, int gift_fd = -1);

  // Goes on as far as the bytes that have come allow; never reads one byte more than the handshake has.
  // kDataLoss, kPermissionDenied: it is not one of us, or says that this side is not; kUnavailable: the connection
  // broke, or the other side has closed it without a verdict.
  Result<Progress> advance(int fd);
  // The accepting side: what it thought of the other one's proof, once it has refused it.
  std::optional<AuthResult> refused() const { return refused_; }
  // The descriptor that came with the other side's proof; not valid if none did.
  UniqueFd take_gift() { return std::move(gift_); }

 private:
  Status greet(int fd);
  Result<Progress> receive(int fd, size_t bytes);
  ssize_t receive_some(int fd, std::span<std::byte> into);
  Status on_hello(int fd);
  Status on_claim(int fd);
  Status on_verdict();

  const Side side_;
  const int gift_fd_;
  Handshake handshake_;
  bool greeted_ = false;
  bool heard_ = false;
  std::optional<AuthResult> refused_;
  std::array<std::byte, kClaimBytes> received_;  // the message under way; others are shorter
  size_t received_bytes_ = 0;
  UniqueFd gift_;
};

}  // namespace byteps::transport
