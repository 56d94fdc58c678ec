#include "transport/stream/sent_traffic.h"

// Not <netinet/tcp.h>, whose tcp_info lacks these fields.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>

namespace byteps::transport {

std::optional<SentTraffic> tcp_sent_traffic(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return std::nullopt;
  if (length < offsetof(tcp_info, tcpi_busy_time) + sizeof info.tcpi_busy_time) return std::nullopt;
  return SentTraffic{.bytes = info.tcpi_bytes_acked, .busy_us = static_cast<TimeUs>(info.tcpi_busy_time)};
}

}  // namespace byteps::transport
