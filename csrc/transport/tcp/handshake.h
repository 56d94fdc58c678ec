// Drives a Handshake (transport/authenticate.h) over a non-blocking socket.
#pragma once

#include <array>

#include "transport/authenticate.h"

namespace byteps::transport {

class SocketHandshake {
 public:
  enum class Progress { kNeedsBytes, kDone };

  // `credentials` must outlive this object.
  SocketHandshake(Side side, const Credentials& credentials);

  // Goes on as far as the bytes that have come allow; never reads one byte more than the handshake has.
  // kDataLoss, kPermissionDenied: it is not one of us; kUnavailable: the connection broke.
  Result<Progress> advance(int fd);
  // The other side has sent a valid hello.
  bool heard() const { return heard_; }

 private:
  Status greet(int fd);
  Result<Progress> receive(int fd, size_t bytes);
  Status on_hello(int fd);
  Status on_proof(int fd);

  const Side side_;
  Handshake handshake_;
  bool greeted_ = false;
  bool heard_ = false;
  std::array<std::byte, kHelloBytes> received_;  // the message under way; a proof is shorter
  size_t received_bytes_ = 0;
};

}  // namespace byteps::transport
