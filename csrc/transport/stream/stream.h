// What the transports over stream sockets (tcp/, shm/) have in common, and what each adds.
#pragma once

#include <memory>

#include "base/unique_fd.h"
#include "transport/authenticate.h"
#include "transport/transport.h"

namespace byteps::transport {

struct StreamOptions {
  Credentials credentials = {};
  double handshake_timeout_s = 30.0;  // an accepted connection that has not proved itself by then is dropped
  size_t max_payload_bytes = 1ull << 30;  // a longer frame closes the connection before anything is allocated
  int max_unproved_connections = 128;  // at a time; further ones replace them, after a moment in the kernel
};

// One transport's part of connecting and accepting. Any thread; outlives the transport with connections under way.
class StreamKind {
 public:
  virtual ~StreamKind() = default;
  virtual const char* name() const = 0;
  virtual const StreamOptions& options() const = 0;
  // Whether this side talks to who is at the other end at all, before a byte of it is read.
  virtual Status admit(int socket_fd) const = 0;
  // A descriptor that the connecting end hands over with its proof, or none (not valid).
  virtual Result<UniqueFd> make_gift() const = 0;
  // Both ends have proved themselves. `gift`: what make_gift() made, or what has come.
  virtual Result<std::unique_ptr<Connection>> make_connection(EventLoop& loop, UniqueFd socket,
                                                              const Address& peer, Side side,
                                                              UniqueFd gift) const = 0;
};

// Transport::listen on a socket that is bound to `address` and listens. On the loop's thread or any other.
Result<std::unique_ptr<Listener>> listen_on_stream(EventLoop& loop, std::shared_ptr<const StreamKind> kind,
                                                   UniqueFd fd, const Address& address,
                                                   AcceptCallback on_accept);

// Transport::connect; loop thread.
void connect_stream(EventLoop& loop, std::shared_ptr<const StreamKind> kind, const Address& address,
                    TimeUs deadline_us, ConnectCallback on_done);

}  // namespace byteps::transport
