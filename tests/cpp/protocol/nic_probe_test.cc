#include "protocol/nic_probe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include "protocol/partition.h"

namespace byteps::protocol {
namespace {

// Simulates a hub on a connection of `bytes_per_s` per direction and a round trip of `rtt_us`.
// Returns the maximum number of bytes in flight.
uint64_t run_probe(double bytes_per_s, TimeUs rtt_us, ProbeMeter& meter) {
  struct UnderWay {
    uint32_t bytes;
    double answered_us;
  };
  ProbeWindow window;
  std::deque<UnderWay> under_way;
  double line_free_us = 0;
  uint64_t bytes_under_way = 0;
  uint64_t most = 0;
  double now_us = 0;
  while (!meter.done(static_cast<TimeUs>(now_us))) {
    while (const uint32_t bytes = window.next_frame(static_cast<TimeUs>(now_us))) {
      line_free_us = std::max(line_free_us, now_us) + bytes / bytes_per_s * 1e6;
      under_way.push_back({bytes, line_free_us + static_cast<double>(rtt_us)});
      bytes_under_way += bytes;
    }
    most = std::max(most, bytes_under_way);
    if (under_way.empty()) break;
    const UnderWay answered = under_way.front();
    under_way.pop_front();
    now_us = std::max(now_us, answered.answered_us);
    bytes_under_way -= answered.bytes;
    EXPECT_TRUE(window.on_answer(answered.bytes, static_cast<TimeUs>(now_us)).is_ok());
    meter.on_answer(answered.bytes, static_cast<TimeUs>(now_us), window.is_settled(), window.min_rtt_us());
  }
  return most;
}

TEST(NicProbe, MeasuresTheRateOfAnyLine) {
  for (const double mbyte_per_s : {1.0, 12.5, 25.0, 125.0, 1250.0, 12500.0}) {
    for (const TimeUs rtt_us : {50, 200, 1000, 10'000, 40'000, 100'000}) {
      if (mbyte_per_s * static_cast<double>(rtt_us) > kMaxProbeWindowBytes / 2)
        continue;  // the window is too small
      ProbeMeter meter(0);
      run_probe(mbyte_per_s * 1e6, rtt_us, meter);
      EXPECT_NEAR(meter.bytes_per_s() / (mbyte_per_s * 1e6), 1, 0.02) << mbyte_per_s << " " << rtt_us;
    }
  }
}

TEST(NicProbe, BytesInFlightDrainSoon) {
  for (const double mbyte_per_s : {1.0, 12.5, 125.0, 12500.0}) {
    ProbeMeter meter(0);
    const uint64_t most = run_probe(mbyte_per_s * 1e6, 100, meter);
    EXPECT_LE(static_cast<double>(most), 600'000 + 0.1 * mbyte_per_s * 1e6) << "bytes, of " << mbyte_per_s;
    EXPECT_LE(most, kMaxProbeWindowBytes);
  }
}

TEST(NicProbe, AWindowThatNeverSettlesDoesNotKeepTheMeterWaiting) {
  ProbeMeter meter(0);
  for (TimeUs now = 1'000; !meter.done(now); now += 1'000) meter.on_answer(10'000, now, false, 1'000);
  EXPECT_NEAR(meter.bytes_per_s(), 10e6, 1);
}

TEST(NicProbe, ABurstAtTheBeginningDoesNotCount) {
  ProbeMeter meter(1'000'000);
  meter.on_answer(100'000'000, 1'000'100, true, 100);
  for (TimeUs now = 1'050'000; !meter.done(now); now += 1'000) meter.on_answer(10'000, now, true, 100);
  EXPECT_NEAR(meter.bytes_per_s(), 10e6, 1);
}

TEST(NicProbe, EndsInTimeWithoutAnyAnswer) {
  const ProbeMeter meter(1'000);
  EXPECT_FALSE(meter.done(500'000));
  EXPECT_TRUE(meter.done(meter.deadline_us()));
  EXPECT_EQ(meter.bytes_per_s(), 0);
}

TEST(NicProbe, OneAnswerIsNoRate) {
  ProbeMeter meter(0);
  meter.on_answer(1 << 20, 100'000, true, 100);
  EXPECT_EQ(meter.bytes_per_s(), 0);
}

TEST(NicProbe, MoreBytesThanSentAreAnError) {
  ProbeWindow window;
  const uint32_t bytes = window.next_frame(0);
  EXPECT_FALSE(window.on_answer(bytes + 1, 1).is_ok());
  EXPECT_TRUE(window.on_answer(bytes, 1).is_ok());
  EXPECT_FALSE(window.on_answer(1, 2).is_ok());
}

TEST(NicProbe, FramesAreWholePagesBelowTheirLimit) {
  ProbeWindow window;
  for (int i = 0; i < 100'000; ++i) {
    const uint32_t bytes = window.next_frame(i);
    ASSERT_GT(bytes, 0u);
    ASSERT_LE(bytes, kMaxProbeFrameBytes);
    ASSERT_EQ(bytes % kPageBytes, 0u) << "so that they are a multiple of every element size";
    ASSERT_TRUE(window.on_answer(bytes, i + 1).is_ok());
  }
}

}  // namespace
}  // namespace byteps::protocol
