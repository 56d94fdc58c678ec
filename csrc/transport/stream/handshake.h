// Drives a Handshake (transport/authenticate.h) over a non-blocking socket.
#pragma once

#include <array>
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
  // kDataLoss, kPermissionDenied: it is not one of us; kUnavailable: the connection broke.
  Result<Progress> advance(int fd);
  // The other side has sent a valid hello.
  bool heard() const { return heard_; }
  // The descriptor that came with the other side's proof; not valid if none did.
  UniqueFd take_gift() { return std::move(gift_); }

 private:
  Status greet(int fd);
  Result<Progress> receive(int fd, size_t bytes);
  ssize_t receive_some(int fd, std::span<std::byte> into);
  Status on_hello(int fd);
  Status on_proof(int fd);

  const Side side_;
  const int gift_fd_;
  Handshake handshake_;
  bool greeted_ = false;
  bool heard_ = false;
  std::array<std::byte, kHelloBytes> received_;  // the message under way; a proof is shorter
  size_t received_bytes_ = 0;
  UniqueFd gift_;
};

}  // namespace byteps::transport
