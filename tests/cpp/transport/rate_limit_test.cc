#include "transport/stream/rate_limit.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "transport/stream/socket.h"

namespace byteps::transport {
namespace {

// Both ends of a TCP connection over the loopback.
struct Pair {
  UniqueFd near, far;
};

// `packet_bytes`: payload of a packet; 0: as large as the loopback allows.
Pair connected_pair(int packet_bytes = 0) {
  auto listener = open_listening_socket({"127.0.0.1", 0});
  EXPECT_TRUE(listener) << listener.status().message();
  const auto address = to_socket_address(local_address(listener->get()));
  UniqueFd near(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (packet_bytes > 0) setsockopt(near.get(), IPPROTO_TCP, TCP_MAXSEG, &packet_bytes, sizeof packet_bytes);
  EXPECT_EQ(connect(near.get(), address->get(), address->length), 0);
  UniqueFd far(accept(listener->get(), nullptr, nullptr));
  EXPECT_TRUE(far.valid());
  return {std::move(near), std::move(far)};
}

// So that the connection has seen its path: `bytes` go from the near end to the far one.
void send_across(const Pair& pair, size_t bytes) {
  std::vector<char> buffer(8 << 10);
  for (size_t sent = 0; sent < bytes; sent += buffer.size()) {
    ASSERT_EQ(send(pair.near.get(), buffer.data(), buffer.size(), 0), static_cast<ssize_t>(buffer.size()));
    ASSERT_EQ(recv(pair.far.get(), buffer.data(), buffer.size(), MSG_WAITALL),
              static_cast<ssize_t>(buffer.size()));
  }
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

TEST(RateLimit, LimitsASocketAndLetsItGo) {
  const Pair pair = connected_pair();
  ASSERT_TRUE(choose_congestion_control(pair.near.get(), "reno"));  // BBR has a headroom
  RateLimit limit;
  limit.set(pair.near.get(), 1'000'000);
  EXPECT_EQ(pacing_rate(pair.near.get()), 1'000'000u);
  limit.set(pair.near.get(), 0);
  EXPECT_EQ(pacing_rate(pair.near.get()), ~uint64_t{0});
}

TEST(RateLimit, ReplacesBbrOnAShortCleanPathWhileLimited) {
  const Pair pair = connected_pair();
  if (!choose_congestion_control(pair.near.get(), "bbr")) GTEST_SKIP() << "this kernel offers no BBR";
  RateLimit limit;
  limit.set(pair.near.get(), 0);
  EXPECT_EQ(congestion_control(pair.near.get()), "bbr") << "not limited";
  limit.set(pair.near.get(), 1'000'000);
  EXPECT_EQ(congestion_control(pair.near.get()), "bbr") << "nothing is known about losses yet";
  send_across(pair, 8 << 20);
  limit.set(pair.near.get(), 0);
  limit.set(pair.near.get(), 1'000'000);
  EXPECT_EQ(congestion_control(pair.near.get()), "reno");
  EXPECT_EQ(pacing_rate(pair.near.get()), 1'000'000u);
  limit.set(pair.near.get(), 0);
  EXPECT_EQ(congestion_control(pair.near.get()), "bbr") << "reno's window would become small in the pause";
}

TEST(RateLimit, LetsBbrMakeASmallWindowLargerOnce) {
  const Pair pair = connected_pair(500);  // windows begin with ten packets
  const int fd = pair.near.get();
  if (!choose_congestion_control(fd, "bbr")) GTEST_SKIP() << "this kernel offers no BBR";
  send_across(pair, 32 << 10);
  RateLimit limit;
  limit.set(fd, 1'000'000);
  EXPECT_EQ(congestion_control(fd), "bbr");
  EXPECT_EQ(pacing_rate(fd), 1'000'000u) << "no headroom on a path that suits reno";
  limit.on_written(fd, 128 << 10);
  EXPECT_EQ(congestion_control(fd), "bbr");
  limit.on_written(fd, 128 << 10);
  EXPECT_EQ(congestion_control(fd), "reno") << "whatever the window";
  limit.on_written(fd, 256 << 10);
  EXPECT_EQ(congestion_control(fd), "reno");
  limit.on_written(fd, 2 << 20);
  EXPECT_EQ(congestion_control(fd), "bbr") << "the next attempt";
  limit.set(fd, 0);
  limit.set(fd, 1'000'000);
  EXPECT_EQ(congestion_control(fd), "bbr") << "an attempt that a pause interrupted does not count";
}

TEST(RateLimit, KeepsBbrWhileThePathIsUnknown) {
  auto fd = open_stream_socket(AF_INET);  // without a connection there is no round trip
  if (!choose_congestion_control(fd->get(), "bbr")) GTEST_SKIP() << "this kernel offers no BBR";
  RateLimit limit;
  limit.set(fd->get(), 1'000'000);
  EXPECT_EQ(congestion_control(fd->get()), "bbr");
  EXPECT_EQ(pacing_rate(fd->get()), 1'020'000u);
}

TEST(RateLimit, KeepsWhatReactsToLosses) {
  const Pair pair = connected_pair();
  const std::string name = choose_congestion_control(pair.near.get(), "cubic") ? "cubic" : "reno";
  ASSERT_TRUE(choose_congestion_control(pair.near.get(), name));
  RateLimit limit;
  limit.set(pair.near.get(), 1'000'000);
  EXPECT_EQ(congestion_control(pair.near.get()), name);
}

TEST(SuitsReno, OnlyWhereItReachesTheRateWithEase) {
  struct Case {
    TimeUs rtt_us;
    double loss;
    uint64_t bytes_per_s;
    bool suits;
  };
  for (const Case& each : {
           Case{200, 0, 25'000'000, true},           // a switched network at 200 Mbit/s
           Case{200, 0, 12'500'000'000, true},       // 100 Gbit/s without losses
           Case{40'000, 0, 25'000'000, true},        // long
           Case{40'000, 0.0001, 25'000'000, false},  // 690 packets of 122
           Case{kNever, 0, 1, false},                // unknown
           Case{200, 0.01, 6'000'000, true},         // lossy: 0.8 packets of 12
           Case{200, 0.01, 25'000'000, false},       // 3.5 of 12: BBR is better from 1.5 on
           Case{200, 0.01, 125'000'000, false},      // 17 of 12
           Case{200, 0.06, 2'500'000, false},        // so lossy that timeouts decide
           Case{200, 0.001, 25'000'000, true},       // 3.5 packets of 38 that reno keeps in flight
           Case{1'000, 0.001, 125'000'000, false},   // 86 of 38
       }) {
    EXPECT_EQ(suits_reno({.min_rtt_us = each.rtt_us, .loss = each.loss}, each.bytes_per_s), each.suits)
        << each.rtt_us << " us, " << each.loss << ", " << each.bytes_per_s;
  }
}

TEST(LossMeter, RecentBytesCountMore) {
  LossMeter meter;
  meter.look(10'000'000, 1'000'000);
  EXPECT_NEAR(meter.loss(1000), 0.1, 1e-3);
  uint64_t sent = 10'000'000;
  for (int i = 0; i < 20; ++i) meter.look(sent += 16 << 20, 1'000'000);
  EXPECT_LT(meter.loss(1000), 1e-4) << "the losses were long ago";
}

TEST(LossMeter, FearsOneLossMoreThanItHasSeen) {
  LossMeter meter;
  EXPECT_EQ(meter.loss(1000), 1) << "nothing sent";
  meter.look(500, 0);
  EXPECT_EQ(meter.loss(1000), 1) << "less than a packet";
  meter.look(10'000, 0);
  EXPECT_NEAR(meter.loss(1000), 0.1, 1e-9);
  meter.look(1'000'000'000, 0);
  EXPECT_NEAR(meter.loss(1000), 1e-6, 1e-9) << "no matter how long ago";
}

}  // namespace
}  // namespace byteps::transport
