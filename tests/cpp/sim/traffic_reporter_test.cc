// node/traffic_reporter.h in virtual time.
#include "node/traffic_reporter.h"

#include <gtest/gtest.h>

#include <vector>

#include "sim/virtual_time.h"

namespace byteps::sim {
namespace {

using protocol::Flow;
using protocol::Traffic;

constexpr TimeUs kIntervalUs = 1'000'000;

class TrafficReporterTest : public testing::Test {
 protected:
  void pass(TimeUs us) {
    const TimeUs end_us = time_.now_us() + us;
    time_.run_until(end_us, [&] { return time_.now_us() >= end_us; });
  }
  void wake() {
    control_->post([this] { reporter_.wake(); });
  }

  VirtualTime time_{1};
  std::unique_ptr<VirtualLoop> control_ = time_.make_loop("control");
  std::unique_ptr<VirtualLoop> first_ = time_.make_loop("first");
  std::unique_ptr<VirtualLoop> second_ = time_.make_loop("second");
  std::vector<std::vector<Flow>> sent_{{}, {}};  // by loop
  int reads_ = 0;
  std::vector<Traffic> reports_;
  node::TrafficReporter reporter_{*control_,
                                  {first_.get(), second_.get()},
                                  kIntervalUs,
                                  {.read =
                                       [this](size_t loop, std::vector<Flow>& flows) {
                                         flows = sent_[loop];
                                         ++reads_;
                                       },
                                   .send = [this](Traffic traffic) { reports_.push_back(traffic); }}};
};

TEST_F(TrafficReporterTest, ReportsWhatAllConnectionsToANodeHaveSentSinceTheLastReport) {
  wake();
  pass(kIntervalUs / 2);
  EXPECT_TRUE(reports_.empty());
  sent_ = {{{1, false, 100, 10}, {1, true, 7, 3}}, {{1, false, 50, 20}, {2, false, 1, 1}}};
  pass(kIntervalUs);
  const Traffic first{{{1, false, 150, 30}, {1, true, 7, 3}, {2, false, 1, 1}}};
  ASSERT_EQ(reports_, std::vector<Traffic>{first});
  sent_[0][0].bytes += 5;
  pass(kIntervalUs);
  ASSERT_EQ(reports_.size(), 2u);
  EXPECT_EQ(reports_[1], (Traffic{{{1, false, 5, 0}}}));
}

TEST_F(TrafficReporterTest, ANodeWithoutTrafficReadsAtItsHeartbeatsOnly) {
  wake();
  pass(10 * kIntervalUs);
  const int reads = reads_;
  pass(100 * kIntervalUs);
  EXPECT_EQ(reads_, reads);
  wake();
  pass(10 * kIntervalUs);
  EXPECT_EQ(reads_, reads + 2) << "once on each loop";
  sent_[1] = {{3, false, 9, 9}};
  wake();
  pass(kIntervalUs / 2);
  EXPECT_EQ(reports_, (std::vector<Traffic>{{{{3, false, 9, 9}}}}));
  pass(kIntervalUs);
  EXPECT_EQ(reads_, reads + 6) << "it goes on";
}

TEST_F(TrafficReporterTest, AConnectionThatHasBeenReplacedCountsFromNothing) {
  sent_[0] = {{1, false, 100, 10}};
  wake();
  pass(kIntervalUs / 2);
  EXPECT_EQ(reports_.size(), 1u);
  sent_[0] = {{1, false, 40, 5}};
  pass(kIntervalUs);
  EXPECT_EQ(reports_.size(), 1u);
  sent_[0] = {{1, false, 60, 6}};
  pass(kIntervalUs);
  EXPECT_EQ(reports_.back(), (Traffic{{{1, false, 20, 1}}}));
}

TEST_F(TrafficReporterTest, StopsForGood) {
  wake();
  pass(kIntervalUs / 2);
  control_->post([this] { reporter_.stop(); });
  sent_[0] = {{1, false, 100, 10}};
  wake();
  pass(10 * kIntervalUs);
  EXPECT_TRUE(reports_.empty());
}

}  // namespace
}  // namespace byteps::sim
