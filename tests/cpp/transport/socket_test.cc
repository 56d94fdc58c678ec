// The socket options that byteps sets, read back from the kernel.
#include "transport/stream/socket.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <string>

namespace byteps::transport {
namespace {

UniqueFd tcp_socket() {
  auto fd = open_stream_socket(AF_INET);
  EXPECT_TRUE(fd) << fd.status().message();
  return std::move(*fd);
}

std::string congestion_control(int fd) {
  char name[16] = {};
  socklen_t length = sizeof name;
  EXPECT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length), 0);
  return name;
}

bool choose_congestion_control(int fd, const std::string& name) {
  return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), static_cast<socklen_t>(name.size())) == 0;
}

uint64_t pacing_rate(int fd) {
  uint64_t rate = 0;
  socklen_t length = sizeof rate;
  EXPECT_EQ(getsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, &length), 0);
  return rate;
}

TEST(Pace, HoldsASocketAndLetsItGo) {
  const UniqueFd fd = tcp_socket();
  pace_tcp(fd.get(), 1'000'000);
  EXPECT_EQ(pacing_rate(fd.get()), 1'000'000u);
  pace_tcp(fd.get(), 0);
  EXPECT_EQ(pacing_rate(fd.get()), ~uint64_t{0});
}

TEST(Pace, LeavesBbrWhenHeld) {
  const UniqueFd fd = tcp_socket();
  if (!choose_congestion_control(fd.get(), "bbr")) GTEST_SKIP() << "this kernel offers no BBR";
  pace_tcp(fd.get(), 0);
  EXPECT_EQ(congestion_control(fd.get()), "bbr") << "not held";
  pace_tcp(fd.get(), 1'000'000);
  EXPECT_EQ(congestion_control(fd.get()), "reno");
}

TEST(Pace, KeepsWhatReactsToLosses) {
  const UniqueFd fd = tcp_socket();
  const std::string name = choose_congestion_control(fd.get(), "cubic") ? "cubic" : "reno";
  ASSERT_TRUE(choose_congestion_control(fd.get(), name));
  pace_tcp(fd.get(), 1'000'000);
  EXPECT_EQ(congestion_control(fd.get()), name);
}

}  // namespace
}  // namespace byteps::transport
