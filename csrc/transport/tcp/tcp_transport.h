// The TCP transport. Frames on the wire: docs/wire-format.md, transport/frame.h.
#pragma once

#include <memory>

#include "transport/authenticate.h"
#include "transport/transport.h"

namespace byteps::transport {

struct TcpOptions {
  Credentials credentials = {};
  double handshake_timeout_s = 5.0;  // an accepted connection that has not proved itself by then is dropped
  size_t max_payload_bytes = 1ull << 30;  // a longer frame closes the connection before anything is allocated
  int max_unproved_connections = 64;      // at a time; further ones wait in the kernel or replace silent ones
  std::string bind_device = {};           // empty, or the interface whose address outgoing connections bear
};

std::unique_ptr<Transport> make_tcp_transport(TcpOptions options);

// Like Transport::listen, on a socket that is bound and listening already (handed over by a launcher). Owns `fd`.
Result<std::unique_ptr<Listener>> listen_on_tcp_socket(Transport& tcp, EventLoop& loop, int fd,
                                                       AcceptCallback on_accept);

}  // namespace byteps::transport
