#include "protocol/outbox.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace byteps::protocol {
namespace {

using Kind = Outbox::Kind;

class OutboxTest : public testing::Test {
 protected:
  void push(char name, int32_t priority, uint64_t bytes, Kind kind = Kind::kContribution) {
    port_.push(priority, kind, bytes, [this, name] { sent_ += name; });
  }
  std::string sent_;
  Outbox outbox_{100};
  Outbox::Port port_{outbox_};
};

TEST_F(OutboxTest, SendsAtOnceWhileTheCreditLasts) {
  push('a', 0, 60);
  push('b', 0, 40);
  push('c', 0, 1);
  EXPECT_EQ(sent_, "ab");
  port_.sent(40);
  EXPECT_EQ(sent_, "abc");
}

TEST_F(OutboxTest, WhatWaitsGoesByPriorityThenByKindThenInOrder) {
  push('a', 0, 100);
  push('b', 1, 10);
  push('c', 1, 10);
  push('d', 2, 10);
  push('e', 1, 10, Kind::kAnswer);
  port_.sent(100);
  EXPECT_EQ(sent_, "adebc");
}

TEST_F(OutboxTest, TheFirstIsNotOvertakenByOneThatWouldFit) {
  push('a', 0, 80);
  push('b', 1, 50);
  push('c', 0, 10);
  EXPECT_EQ(sent_, "a");
  port_.sent(80);
  EXPECT_EQ(sent_, "abc");
}

TEST_F(OutboxTest, MoreThanTheCreditGoesAlone) {
  push('a', 0, 1000);
  push('b', 0, 1);
  EXPECT_EQ(sent_, "a");
  port_.sent(1000);
  EXPECT_EQ(sent_, "ab");
}

TEST_F(OutboxTest, PortsDoNotWaitForEachOther) {
  push('a', 0, 100);
  Outbox::Port other(outbox_);
  bool went = false;
  other.push(0, Kind::kContribution, 100, [&went] { went = true; });
  EXPECT_TRUE(went);
}

TEST_F(OutboxTest, FlushHandsOverAllInOrderWhateverTheCredit) {
  push('a', 0, 100);
  push('b', 0, 100);
  push('c', 5, 100);
  port_.flush();
  EXPECT_EQ(sent_, "acb");
}

TEST_F(OutboxTest, CloseDropsWhatWaitsAndLateReportsDoNotCount) {
  push('a', 0, 100);
  push('b', 0, 100);
  port_.close();
  EXPECT_EQ(sent_, "a");
  port_.sent(100);
  push('c', 0, 60);
  push('d', 0, 60);
  EXPECT_EQ(sent_, "ac") << "the credit is 100, not 200";
}

TEST_F(OutboxTest, WhatIsReportedFromInsideASendIsNotLost) {
  for (const char name : {'a', 'b', 'c'}) {
    port_.push(0, Kind::kContribution, 100, [this, name] {
      sent_ += name;
      port_.sent(100);
    });
  }
  EXPECT_EQ(sent_, "abc");
}

TEST_F(OutboxTest, ANewCreditHoldsFromTheNextEventOn) {
  push('a', 0, 100);
  push('b', 0, 100);
  outbox_.set_credit(300);
  push('c', 0, 100);
  EXPECT_EQ(sent_, "abc");
}

}  // namespace
}  // namespace byteps::protocol
