// The TCP transport. Frames on the wire: docs/wire-format.md, transport/frame.h.
#pragma once

#include <memory>

#include "transport/stream/stream.h"

namespace byteps::transport {

using TcpOptions = StreamOptions;

std::unique_ptr<Transport> make_tcp_transport(TcpOptions options);

// Like Transport::listen, on a socket that is bound and listening already (handed over by a launcher). Owns `fd`.
Result<std::unique_ptr<Listener>> listen_on_tcp_socket(Transport& tcp, EventLoop& loop, int fd,
                                                       AcceptCallback on_accept);

}  // namespace byteps::transport
