#include "transport/stream/socket.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>

namespace byteps::transport {
namespace {

// In microseconds; 0: kernels before Linux 6.15 have no such option.
int time_option(int fd, int option) {
  int value = 0;
  socklen_t length = sizeof value;
  if (getsockopt(fd, IPPROTO_TCP, option, &value, &length) == 0) return value;
  EXPECT_EQ(errno, ENOPROTOOPT);
  return 0;
}

TEST(TuneTcp, ALostLastPacketIsSentAgainSoonButNotBeforeItsAcknowledgementMayCome) {
  constexpr int kTcpRtoMinUs = 45, kTcpDelackMaxUs = 46;  // linux/tcp.h
  const UniqueFd fd = open_stream_socket(AF_INET).value();
  const bool is_known = time_option(fd.get(), kTcpRtoMinUs) > 0;
  tune_tcp(fd.get());
  const int timeout_us = time_option(fd.get(), kTcpRtoMinUs);
  EXPECT_LE(timeout_us, 50'000);
  const int two_ticks_us = is_known ? 8'000 : 0;
  EXPECT_GE(timeout_us, time_option(fd.get(), kTcpDelackMaxUs) + two_ticks_us);
}

}  // namespace
}  // namespace byteps::transport
