// The TCP transport. Frames: docs/wire-format.md, transport/frame.h.
#pragma once

#include <memory>

#include "transport/stream/stream.h"

namespace byteps::transport {

using TcpOptions = StreamOptions;

std::unique_ptr<Transport> make_tcp_transport(TcpOptions options);

// Transport::listen on a socket that is already bound and listening (inherited from a launcher).
// Takes over `fd`.
Result<std::unique_ptr<Listener>> listen_on_tcp_socket(Transport& tcp, EventLoop& loop, int fd,
                                                       AcceptCallback on_accept);

}  // namespace byteps::transport
