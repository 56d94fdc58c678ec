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
  EXPECT_EQ(pacing_rate(fd->get()), 1'150'000u);
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
           Case{200, 0.01, 25'000'000, true},        // lossy: 3.5 packets of 12
           Case{200, 0.01, 125'000'000, false},      // 17 of 12
           Case{200, 0.06, 2'500'000, false},        // so lossy that timeouts decide
           Case{200, 0.001, 25'000'000, true},       // 3.5 packets of 38 that reno keeps in flight
           Case{1'000, 0.001, 125'000'000, false},   // 86 of 38
       }) {
    EXPECT_EQ(suits_reno({.min_rtt_us = each.rtt_us, .loss = each.loss}, each.bytes_per_s), each.suits)
        << each.rtt_us << " us, " << each.loss << ", " << each.bytes_per_s;
  }
}

class HeadroomTest : public testing::Test {
 protected:
  // Delivers for a second at this rate; the wanted one is 1,000,000.
  void deliver(double bytes_per_s) {
    acknowledged_bytes_ += static_cast<uint64_t>(bytes_per_s);
    busy_us_ += 1'000'000;
    headroom_.look(acknowledged_bytes_, busy_us_, 1'000'000);
  }
  Headroom headroom_;
  uint64_t acknowledged_bytes_ = 0;
  TimeUs busy_us_ = 0;
};

TEST_F(HeadroomTest, RisesWhileTheLimitIsReachedAndFallsAgain) {
  EXPECT_EQ(headroom_.factor(), 1.15);
  deliver(1'000'000);
  EXPECT_EQ(headroom_.factor(), 1.15) << "the wanted rate, but not the limit";
  for (int i = 0; i < 10; ++i) deliver(headroom_.factor() * 0.95e6);  // a fast path; headers count
  EXPECT_NEAR(headroom_.factor(), 10.7, 0.05);
  deliver(8'000'000);
  EXPECT_NEAR(headroom_.factor(), 10.7, 0.05);
  for (int i = 0; i < 20; ++i) deliver(900'000);
  EXPECT_EQ(headroom_.factor(), 1.15) << "never less";
  for (int i = 0; i < 99; ++i) deliver(1e12);
  EXPECT_EQ(headroom_.factor(), 64) << "never without an end";
}

// Connections of a full link, all with the same headroom, get what they want, less what is lost.
TEST_F(HeadroomTest, DoesNotRiseOnAFullLinkWhoseSpeedIsKnown) {
  for (int i = 0; i < 10; ++i) deliver(980'000);
  EXPECT_EQ(headroom_.factor(), 1.15);
  for (int i = 0; i < 3; ++i) deliver(2'000'000);  // the others had little to send
  EXPECT_GT(headroom_.factor(), 1.4);
  for (int i = 0; i < 3; ++i) deliver(980'000);
  EXPECT_EQ(headroom_.factor(), 1.15);
}

TEST_F(HeadroomTest, WaitsUntilTheKernelsTimeIsExactEnough) {
  headroom_.look(50'000, 9'000, 1'000'000);
  EXPECT_EQ(headroom_.factor(), 1.15);
  headroom_.look(50'000, 10'000, 1'000'000);
  EXPECT_GT(headroom_.factor(), 1.15);
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
