#include "transport/stream/tcp_statistics.h"

// Not <netinet/tcp.h>, whose tcp_info lacks these fields.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>

namespace byteps::transport {

// Older kernels fill in less; the rest of `info` stays 0.
std::optional<TcpStatistics> tcp_statistics(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return std::nullopt;
  if (length < offsetof(tcp_info, tcpi_busy_time) + sizeof info.tcpi_busy_time) return std::nullopt;
  return TcpStatistics{.acknowledged_bytes = info.tcpi_bytes_acked,
                       .busy_us = static_cast<TimeUs>(info.tcpi_busy_time),
                       .sent_bytes = info.tcpi_bytes_sent,
                       .resent_bytes = info.tcpi_bytes_retrans,
                       .min_rtt_us = info.tcpi_min_rtt == ~uint32_t{0} ? kNever : info.tcpi_min_rtt,
                       .packet_bytes = info.tcpi_snd_mss,
                       .window_bytes = uint64_t{info.tcpi_snd_cwnd} * info.tcpi_snd_mss};
}

}  // namespace byteps::transport
