// What the kernel knows about the bytes that a TCP socket has sent.
#pragma once

#include <optional>

#include "transport/transport.h"

namespace byteps::transport {

// Nullopt: not a TCP socket, or a kernel older than Linux 4.10.
std::optional<SentTraffic> tcp_sent_traffic(int fd);

}  // namespace byteps::transport
