#include "transport/stream/rate_limit.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <string>

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
  EXPECT_EQ(congestion_control(pair.near.get()), "reno");
  EXPECT_EQ(pacing_rate(pair.near.get()), 1'000'000u);
  limit.set(pair.near.get(), 0);
  EXPECT_EQ(congestion_control(pair.near.get()), "bbr") << "reno's window would become small in the pause";
}

TEST(RateLimit, LetsBbrMakeASmallWindowLargerOnce) {
  const Pair pair = connected_pair(1448);  // windows begin with ten packets
  const int fd = pair.near.get();
  if (!choose_congestion_control(fd, "bbr")) GTEST_SKIP() << "this kernel offers no BBR";
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
  EXPECT_EQ(pacing_rate(fd->get()), 1'250'000u);
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
           Case{200, 0, 25'000'000, true},          // a switched network at 200 Mbit/s
           Case{200, 0, 12'500'000'000, true},      // 100 Gbit/s without losses
           Case{40'000, 0, 25'000'000, false},      // long
           Case{200, 0.01, 25'000'000, false},      // lossy
           Case{200, 0.001, 25'000'000, true},      // 3.5 packets of 38 that reno keeps in flight
           Case{1'000, 0.001, 125'000'000, false},  // 86 of 38
       }) {
    EXPECT_EQ(suits_reno({.min_rtt_us = each.rtt_us, .loss = each.loss}, each.bytes_per_s), each.suits)
        << each.rtt_us << " us, " << each.loss << ", " << each.bytes_per_s;
  }
}

TEST(Headroom, RisesWhileTheLimitIsReachedAndFallsAgain) {
  Headroom headroom;
  EXPECT_EQ(headroom.factor(), 1.25);
  headroom.look(1'000'000, 1'000'000);
  EXPECT_EQ(headroom.factor(), 1.25) << "the wanted rate, but not the limit";
  for (int i = 0; i < 3; ++i)
    headroom.look(static_cast<uint64_t>(headroom.factor() * 1e6), 1'000'000);  // a fast path
  EXPECT_EQ(headroom.factor(), 10);
  headroom.look(6'000'000, 1'000'000);
  EXPECT_EQ(headroom.factor(), 10);
  for (int i = 0; i < 9; ++i) headroom.look(900'000, 1'000'000);
  EXPECT_EQ(headroom.factor(), 1.25) << "never less";
  for (int i = 0; i < 99; ++i) headroom.look(~uint64_t{0} / 2, 1'000'000);
  EXPECT_EQ(headroom.factor(), 64) << "never without an end";
}

TEST(LossMeter, RecentBytesCountMore) {
  LossMeter meter;
  EXPECT_EQ(meter.loss(), 0) << "nothing sent";
  meter.look(10'000'000, 1'000'000);
  EXPECT_NEAR(meter.loss(), 0.1, 1e-9);
  uint64_t sent = 10'000'000;
  for (int i = 0; i < 20; ++i) meter.look(sent += 16 << 20, 1'000'000);
  EXPECT_LT(meter.loss(), 1e-4) << "the losses were long ago";
}

}  // namespace
}  // namespace byteps::transport
