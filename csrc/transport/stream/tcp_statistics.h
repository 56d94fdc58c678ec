// What the kernel knows about a TCP connection.
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"

namespace byteps::transport {

// Totals since the connection began, unless stated otherwise.
struct TcpStatistics {
  uint64_t acknowledged_bytes = 0;
  TimeUs busy_us = 0;  // time with bytes to be sent or acknowledged
  // 0 on kernels before Linux 4.19, which do not count them.
  uint64_t sent_bytes = 0;
  uint64_t resent_bytes = 0;
  TimeUs min_rtt_us = 0;      // shortest round trip of the last minutes; kNever: none yet
  uint32_t packet_bytes = 0;  // payload of a packet
  uint64_t window_bytes = 0;  // congestion window
};

// Nullopt: not a TCP socket, or a kernel older than Linux 4.10.
std::optional<TcpStatistics> tcp_statistics(int fd);

}  // namespace byteps::transport
