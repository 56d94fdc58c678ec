// What the transports over stream sockets (tcp/, shm/) share, and the interface for their
// differences.
#pragma once

#include <memory>

#include "base/unique_fd.h"
#include "transport/authenticate.h"
#include "transport/transport.h"

namespace byteps::transport {

struct StreamOptions {
  Credentials credentials = {};
  double handshake_timeout_s = 30.0;  // time limit for the handshake of an accepted connection
  // A longer frame closes the connection before anything is allocated.
  size_t max_payload_bytes = 1ull << 30;
  // Limit at a time; beyond it, new connections replace old ones after a short wait.
  int max_unverified_connections = 128;
};

// Transport-specific parts of connecting and accepting. Thread-safe. Outlives the transport if
// connections are pending.
class StreamKind {
 public:
  virtual ~StreamKind() = default;
  virtual const char* name() const = 0;
  virtual const StreamOptions& options() const = 0;
  // Checks the peer before any of its bytes is read.
  virtual Status admit(int socket_fd) const = 0;
  // The descriptor that the connecting end sends with its proof, or an invalid one.
  virtual Result<UniqueFd> make_passed_fd() const = 0;
  // Called after both ends have been authenticated. `passed_fd`: the result of make_passed_fd(), or
  // the received descriptor.
  virtual Result<std::unique_ptr<Connection>> make_connection(EventLoop& loop, UniqueFd socket,
                                                              const Address& peer, Side side,
                                                              UniqueFd passed_fd) const = 0;
};

// Transport::listen on a socket bound to `address` and listening. Any thread.
Result<std::unique_ptr<Listener>> listen_on_stream(EventLoop& loop, std::shared_ptr<const StreamKind> kind,
                                                   UniqueFd fd, const Address& address,
                                                   AcceptCallback on_accept);

// Transport::connect. Loop thread.
void connect_stream(EventLoop& loop, std::shared_ptr<const StreamKind> kind, const Address& address,
                    ConnectLimits limits, ConnectCallback on_done);

}  // namespace byteps::transport
