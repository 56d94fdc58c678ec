#include "protocol/outbox.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <string>

namespace byteps::protocol {
namespace {

using OutboxKind = Outbox::Kind;

class OutboxTest : public testing::Test {
 protected:
  void push(char name, int32_t priority, uint64_t bytes) {
    port_.push(priority, bytes, [this, name] { sent_ += name; });
  }
  std::string sent_;
  Outbox outbox_{100};
  Outbox::Port port_{outbox_, OutboxKind::kContribution};
};

TEST_F(OutboxTest, SendsAtOnceWhileTheCreditLasts) {
  push('a', 0, 60);
  push('b', 0, 40);
  push('c', 0, 1);
  EXPECT_EQ(sent_, "ab");
  port_.sent(40);
  EXPECT_EQ(sent_, "abc");
}

TEST_F(OutboxTest, QueuedFramesGoByPriorityThenInOrder) {
  push('a', 0, 100);
  push('b', 1, 10);
  push('c', 1, 10);
  push('d', 2, 10);
  push('e', 1, 10);
  port_.sent(100);
  EXPECT_EQ(sent_, "adbce");
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
  Outbox::Port other(outbox_, OutboxKind::kContribution);
  bool went = false;
  other.push(0, 100, [&went] { went = true; });
  EXPECT_TRUE(went);
}

TEST_F(OutboxTest, FlushHandsOverAllInOrderWhateverTheCredit) {
  push('a', 0, 100);
  push('b', 0, 100);
  push('c', 5, 100);
  port_.flush();
  EXPECT_EQ(sent_, "acb");
}

TEST_F(OutboxTest, CloseDropsQueuedFramesAndLateReportsDoNotCount) {
  push('a', 0, 100);
  push('b', 0, 100);
  port_.close();
  EXPECT_EQ(sent_, "a");
  port_.sent(100);
  push('c', 0, 60);
  push('d', 0, 60);
  EXPECT_EQ(sent_, "ac") << "the credit is 100, not 200";
}

TEST_F(OutboxTest, ReportsFromInsideASendAreNotLost) {
  for (const char name : {'a', 'b', 'c'}) {
    port_.push(0, 100, [this, name] {
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

TEST_F(OutboxTest, ABatchIsPutInOrderBeforeTheFirstOfItLeaves) {
  {
    const Outbox::Port::Batch batch(port_);
    push('a', 0, 60);
    push('b', 0, 60);
    push('u', 1, 10);
    EXPECT_EQ(sent_, "");
  }
  EXPECT_EQ(sent_, "ua");
}

TEST_F(OutboxTest, ABatchFromInsideASendWaitsForItsTurn) {
  port_.push(0, 10, [this] {
    const Outbox::Port::Batch batch(port_);
    push('a', 0, 10);
    push('u', 1, 10);
    sent_ += '0';
  });
  EXPECT_EQ(sent_, "0ua");
}

TEST(Outbox, KnowsWhenTheContributionsOfAllPortsAreWritten) {
  Outbox outbox(10);
  Outbox::Port one(outbox, OutboxKind::kContribution);
  Outbox::Port other(outbox, OutboxKind::kContribution);
  Outbox::Port answers(outbox, OutboxKind::kAnswer);
  answers.push(0, 10, [] {});
  answers.sent(10);
  EXPECT_FALSE(outbox.has_contributed()) << "there were none";
  one.push(0, 10, [] {});
  one.push(0, 10, [] {});
  other.push(0, 10, [] {});
  answers.push(0, 10, [] {});
  one.sent(10);
  one.sent(10);
  EXPECT_FALSE(outbox.has_contributed()) << "the other port's is not written";
  other.close();
  EXPECT_TRUE(outbox.has_contributed());
}

class TurnsTest : public testing::Test {
 protected:
  TurnsTest() {
    contributions_.take_turns({.node = 7});
    answers_.take_turns({.node = 7});
  }
  void contribute(char name, int32_t priority = 0) { push(contributions_, name, priority); }
  void answer(char name, int32_t priority = 0) { push(answers_, name, priority); }
  void push(Outbox::Port& port, char name, int32_t priority) {
    port.push(priority, 10, [this, name] { sent_ += name; });
  }
  std::string sent_;
  Outbox outbox_{10};
  Outbox::Port contributions_{outbox_, OutboxKind::kContribution};
  Outbox::Port answers_{outbox_, OutboxKind::kAnswer};
};

TEST_F(TurnsTest, AnswersWaitUntilTheContributionsToThePeerAreWritten) {
  answer('x');
  answers_.sent(10);
  contribute('a');
  contribute('b');
  answer('y');
  answer('z');
  EXPECT_EQ(sent_, "xa") << "nothing was to be contributed when the first answer came";
  contributions_.sent(10);
  EXPECT_EQ(sent_, "xab") << "the last one is not written yet";
  contributions_.sent(10);
  EXPECT_EQ(sent_, "xaby");
  answers_.sent(10);
  EXPECT_EQ(sent_, "xabyz");
}

TEST_F(TurnsTest, AContributionDoesNotWait) {
  answer('x');
  contribute('a');
  EXPECT_EQ(sent_, "xa");
}

TEST_F(TurnsTest, AnUrgentAnswerDoesNotWaitForContributionsThatAreLessUrgent) {
  contribute('a', 1);
  contribute('b', 0);
  answer('x', 1);
  EXPECT_EQ(sent_, "a");
  contributions_.sent(10);
  EXPECT_EQ(sent_, "abx");
  contribute('c', 1);
  answers_.sent(10);
  answer('y', 1);
  EXPECT_EQ(sent_, "abx") << "c is as urgent and waits for the credit only";
}

TEST_F(TurnsTest, OtherPeersDoNotWait) {
  Outbox::Port contributions(outbox_, OutboxKind::kContribution);
  Outbox::Port answers(outbox_, OutboxKind::kAnswer);
  contributions.take_turns({.node = 8});
  answers.take_turns({.node = 8});
  contribute('a');
  answer('x');
  push(answers, 'y', 0);
  EXPECT_EQ(sent_, "ay");
}

TEST_F(TurnsTest, ContributionsThatNeverGoHoldUpNoAnswer) {
  contribute('a');
  contribute('b');
  answer('x');
  contributions_.close();
  EXPECT_EQ(sent_, "ax");
}

TEST_F(TurnsTest, AConnectionMayTakeThePlaceOfAnother) {
  std::optional<Outbox::Port> old(std::in_place, outbox_, OutboxKind::kContribution);
  old->take_turns({.node = 9});
  Outbox::Port answers(outbox_, OutboxKind::kAnswer);
  answers.take_turns({.node = 9});
  push(*old, 'a', 0);
  push(answers, 'x', 0);
  EXPECT_EQ(sent_, "a");
  old->close();
  EXPECT_EQ(sent_, "ax");
  old.reset();
  answers.sent(10);
  Outbox::Port replacement(outbox_, OutboxKind::kContribution);
  replacement.take_turns({.node = 9});
  push(replacement, 'b', 0);
  push(answers, 'y', 0);
  EXPECT_EQ(sent_, "axb");
}

TEST_F(TurnsTest, WhatIsFlushedHasNoTurn) {
  contribute('a');
  answer('x');
  answers_.flush();
  EXPECT_EQ(sent_, "ax");
}

// Checks the bytes that a connection sends before an urgent partition, for random pushes: those of
// the same or higher priority, and of lower priority at most the credit, or one partition if
// larger.
TEST(Outbox, AtMostTheCreditOfLessUrgentBytesLeavesBeforeAnUrgentPartition) {
  constexpr uint64_t kCreditBytes = 1000;
  struct Waiting {
    int32_t priority;
    uint64_t less_urgent_bytes = 0;
  };
  uint64_t most_bytes = 0;
  for (uint32_t seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    const uint64_t largest_bytes = seed % 2 == 0 ? kCreditBytes / 8 : 2 * kCreditBytes;
    Outbox outbox(kCreditBytes);
    Outbox::Port port(outbox, OutboxKind::kContribution);
    std::map<int, Waiting> waiting;
    // Ordered as the connection writes.
    std::deque<std::pair<int, uint64_t>> on_the_wire;
    const auto push = [&](int number) {
      const auto priority = static_cast<int32_t>(random() % 4);
      const uint64_t bytes = 1 + random() % largest_bytes;
      waiting[number] = {priority};
      port.push(priority, bytes, [&, number, bytes] { on_the_wire.emplace_back(number, bytes); });
    };
    const auto write_one = [&] {
      const auto [number, bytes] = on_the_wire.front();
      on_the_wire.pop_front();
      const Waiting gone = waiting.extract(number).mapped();
      most_bytes = std::max(most_bytes, gone.less_urgent_bytes);
      EXPECT_LE(gone.less_urgent_bytes, std::max(kCreditBytes, largest_bytes)) << "seed " << seed;
      for (auto& [other, waits] : waiting) {
        if (waits.priority > gone.priority) waits.less_urgent_bytes += bytes;
      }
      port.sent(bytes);
    };
    for (int number = 0; number < 400; ++number) {
      push(number);
      if (random() % 3 == 0 && !on_the_wire.empty()) write_one();
    }
    while (!on_the_wire.empty()) write_one();
    EXPECT_TRUE(waiting.empty());
  }
  EXPECT_GT(most_bytes, kCreditBytes / 2) << "the bound was never tried";
}

}  // namespace
}  // namespace byteps::protocol
