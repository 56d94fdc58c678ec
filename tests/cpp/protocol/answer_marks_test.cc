#include "protocol/answer_marks.h"

#include <gtest/gtest.h>

namespace byteps::protocol {
namespace {

constexpr TimeUs kPeriodUs = 1000;

class AnswerMarksTest : public testing::Test {
 protected:
  AnswerMarks marks_{kPeriodUs};
};

TEST_F(AnswerMarksTest, ASilentJobHasNoMarks) { EXPECT_EQ(marks_.next_us(), kNever); }

TEST_F(AnswerMarksTest, AMarkIsStableWhenEveryChildHasConfirmedIt) {
  marks_.on_answer(50);
  marks_.on_answer(60);
  EXPECT_EQ(marks_.next_us(), 50 + kPeriodUs);
  EXPECT_EQ(marks_.begin({3, 5}, 1100), 1u);
  EXPECT_EQ(marks_.next_us(), kNever) << "one at a time";
  EXPECT_FALSE(marks_.on_confirmed(3, 1));
  EXPECT_FALSE(marks_.on_confirmed(3, 1)) << "again";
  EXPECT_FALSE(marks_.on_confirmed(5, 2)) << "of another mark";
  EXPECT_TRUE(marks_.on_confirmed(5, 1));
}

TEST_F(AnswerMarksTest, TwoMarksFollowTheLastAnswer) {
  marks_.on_answer(0);
  EXPECT_EQ(marks_.begin({3}, 1000), 1u);
  marks_.on_answer(1500);
  EXPECT_TRUE(marks_.on_confirmed(3, 1));
  for (uint64_t mark = 2; mark <= 3; ++mark) {
    ASSERT_EQ(marks_.next_us(), static_cast<TimeUs>(mark) * kPeriodUs);
    EXPECT_EQ(marks_.begin({3}, marks_.next_us()), mark);
    EXPECT_TRUE(marks_.on_confirmed(3, mark));
  }
  EXPECT_EQ(marks_.next_us(), kNever);
  marks_.on_answer(9000);
  EXPECT_EQ(marks_.next_us(), 9000 + kPeriodUs);
}

TEST_F(AnswerMarksTest, AChildThatLeavesNeedsNoAnswers) {
  marks_.on_answer(0);
  marks_.begin({3, 5}, 1000);
  EXPECT_FALSE(marks_.on_left(4)) << "it had no mark";
  EXPECT_FALSE(marks_.on_confirmed(3, 1));
  EXPECT_TRUE(marks_.on_left(5));
  EXPECT_FALSE(marks_.on_left(5)) << "once";
}

TEST_F(AnswerMarksTest, NothingIsStableAfterTheLossOfAChild) {
  marks_.on_answer(0);
  marks_.begin({3, 5}, 1000);
  marks_.on_lost();
  EXPECT_FALSE(marks_.on_confirmed(3, 1));
  EXPECT_FALSE(marks_.on_confirmed(5, 1));
  marks_.on_answer(2000);
  EXPECT_EQ(marks_.next_us(), kNever);
}

TEST_F(AnswerMarksTest, WithoutChildrenItEnds) {
  marks_.on_answer(0);
  marks_.begin({}, 1000);
  marks_.begin({}, 2000);
  EXPECT_EQ(marks_.next_us(), kNever);
}

TEST(AnswerMarks, NoPeriodMeansNoMarks) {
  AnswerMarks marks(kNever);
  marks.on_answer(0);
  EXPECT_EQ(marks.next_us(), kNever);
}

}  // namespace
}  // namespace byteps::protocol
