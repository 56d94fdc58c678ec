// The TCP transport. Frames: docs/wire-format.md, transport/frame.h.
#pragma once

#include <memory>

#include "transport/stream/stream.h"

namespace byteps::transport {

using TcpOptions = StreamOptions;

std::unique_ptr<Transport> make_tcp_transport(TcpOptions options);

}  // namespace byteps::transport
