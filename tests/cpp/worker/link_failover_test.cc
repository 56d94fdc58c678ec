// Links to servers that may be lost.
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "worker/link_harness.h"

namespace byteps::worker {
namespace {

class LosableLinkTest : public LinkTest {
 protected:
  LosableLinkTest()
      : LinkTest({.rank = 3,
                  .epoch = 1,
                  .service = 5,
                  .service_text = "server 5",
                  .held = &held_,
                  .may_be_lost = true}) {}

  std::optional<HeldResults::Held> held(uint32_t tensor, uint64_t round = 1) const {
    return held_.find({tensor, 0}, round);
  }
};

TEST_F(LosableLinkTest, ResultsAreHeldAsideTheTensor) {
  enqueue({partition(1)});
  answer(received_[1], "abcdefgh");
  EXPECT_EQ(as_text(memory_[1]), "abcdefgh");
  memory_[1].assign(8, std::byte{0});  // the program goes on with the tensor
  ASSERT_TRUE(held(1));
  EXPECT_EQ(as_text(Bytes(held(1)->values.get(), 8)), "abcdefgh");
}

// No payload comes for it.
TEST_F(LosableLinkTest, TheResultOfAnEmptyTensorIsHeldAsWell) {
  enqueue({partition(1, 0, 0)});
  answer(received_[1], "");
  ASSERT_TRUE(completed_.at(1).is_ok());
  EXPECT_TRUE(held(1));
}

TEST_F(LosableLinkTest, ATensorKeepsItsContributionUntilTheResultIsComplete) {
  enqueue({partition(1)});
  on_loop([this] {
    DataHead head = received_[1];
    head.type = DataType::kResult;
    const auto bytes = protocol::encode(head);
    const std::string payload = "abcdefgh";
    transport::Arrival arrival{.head = bytes, .payload_bytes = 8, .payload = {}, .reply_space = {}};
    const auto buffer = link_->on_head(*service_, arrival);
    ASSERT_TRUE(buffer.is_ok());
    EXPECT_NE(buffer->destination().data(), memory_[1].data());
    std::memcpy(buffer->destination().data(), payload.data(), 4);  // half of it, then the server dies
    link_->fail_over();
  });
  drain();
  ASSERT_EQ(moved_.size(), 1u);
  EXPECT_EQ(memory_[1], std::vector<std::byte>(8, std::byte{1}));
  EXPECT_FALSE(held(1));
}

TEST_F(LosableLinkTest, WhatIsNotAnsweredMovesAndOutcomesAreToldFirst) {
  enqueue({partition(1), partition(2, 7, 600), partition(3, 9, 600)});
  answer(received_.back(), "abcdefgh");
  ASSERT_TRUE(completed_.contains(1)) << "the last one that the credit allowed";
  on_loop([this] { link_->fail_over(); });
  drain();
  ASSERT_EQ(outcomes_moved_.size(), 1u);
  EXPECT_EQ(outcomes_moved_[0].key.tensor, 1u);
  ASSERT_EQ(moved_.size(), 2u);
  EXPECT_EQ(moved_[0].handle, 3u) << "the urgent one first";
  EXPECT_EQ(moved_[1].handle, 2u);
  EXPECT_FALSE(completed_.contains(2));
  EXPECT_TRUE(service_closed_);
  enqueue({partition(4)});
  ASSERT_EQ(moved_.size(), 3u) << "also what comes later";
  on_loop([this] { link_->fail_over(); });
  drain();
  EXPECT_EQ(moved_.size(), 3u);
}

TEST_F(LosableLinkTest, TheResultOfTheNextRoundReplacesTheLastOne) {
  enqueue({partition(1)});
  answer(received_.back(), "abcdefgh");
  const std::byte* const memory = held(1)->values.get();
  OutgoingPartition next = partition(1);
  next.head.round = 2;
  enqueue({next});
  answer(received_.back(), "ijklmnop");
  EXPECT_FALSE(held(1, 1));
  ASSERT_TRUE(held(1, 2));
  EXPECT_EQ(held(1, 2)->values.get(), memory) << "in the same memory";
}

class MarkedLinkTest : public LosableLinkTest {
 protected:
  void mark(DataType type, uint64_t number) {
    DataHead head{.type = type, .epoch = 1};
    head.round = number;
    answer(head, "", type);
  }
  void finish(uint64_t tensor) {
    enqueue({partition(static_cast<uint32_t>(tensor))});
    answer(received_.back(), "abcdefgh");
  }
};

TEST_F(MarkedLinkTest, WhatCameBeforeTheMarkBeforeAStableOneIsReleased) {
  finish(1);
  mark(DataType::kMark, 1);
  EXPECT_EQ(received_.back().type, DataType::kConfirmed);
  EXPECT_EQ(received_.back().round, 1u);
  EXPECT_EQ(received_.back().rank, 3u);
  finish(2);
  mark(DataType::kStable, 1);
  EXPECT_TRUE(held(1)) << "the next round may come soon, and use its memory";
  mark(DataType::kMark, 2);
  finish(3);
  EXPECT_TRUE(held(1)) << "not confirmed by all";
  mark(DataType::kStable, 2);
  EXPECT_FALSE(held(1));
  EXPECT_TRUE(held(2));
  EXPECT_TRUE(held(3));
  EXPECT_FALSE(held_.is_empty());
  for (uint64_t number = 3; number <= 4; ++number) {
    mark(DataType::kMark, number);
    mark(DataType::kStable, number);
  }
  EXPECT_TRUE(held_.is_empty());
  on_loop([this] { link_->fail_over(); });
  drain();
  EXPECT_EQ(outcomes_moved_.size(), 3u) << "a successor hears where the rounds are";
}

TEST_F(MarkedLinkTest, ASuccessorHearsThatAResultWasReleased) {
  finish(1);
  const DataHead released = received_.back();
  for (uint64_t number = 1; number <= 2; ++number) {
    mark(DataType::kMark, number);
    mark(DataType::kStable, number);
  }
  finish(2);
  const DataHead held = received_.back();
  on_loop([&] { link_->say_holds({released, held}); });
  drain();
  ASSERT_GE(received_.size(), 2u);
  EXPECT_EQ(received_[received_.size() - 2].type, DataType::kReleased);
  EXPECT_EQ(received_.back().type, DataType::kHolds);
}

TEST_F(MarkedLinkTest, WhatAnotherServiceHasAnsweredStays) {
  DataHead outcome = partition(7).head;
  outcome.type = DataType::kResult;
  held_.keep({.head = outcome, .values = std::make_shared<std::byte[]>(8), .text = {}, .at = nullptr});
  on_loop([&] { link_->say_holds({outcome}); });
  for (uint64_t number = 1; number <= 3; ++number) {
    mark(DataType::kMark, number);
    mark(DataType::kStable, number);
  }
  EXPECT_TRUE(held(7)) << "this service may still have to fetch it for another child";
}

TEST_F(MarkedLinkTest, AnUnknownMarkIsABrokenConnection) {
  finish(1);
  mark(DataType::kMark, 1);
  mark(DataType::kStable, 2);
  EXPECT_EQ(lost_.code(), StatusCode::kDataLoss);
}

TEST_F(LosableLinkTest, AFailureIsHeldBesideTheLastResult) {
  enqueue({partition(1)});
  answer(received_.back(), "abcdefgh");
  OutgoingPartition next = partition(1);
  next.head.round = 2;
  enqueue({next});
  DataHead head = received_.back();
  head.code = StatusCode::kDeadlineExceeded;
  answer(head, "waited for rank 2", DataType::kFailed);
  ASSERT_TRUE(held(1, 1)) << "others may still wait for it";
  ASSERT_TRUE(held(1, 2));
  EXPECT_EQ(held(1, 2)->text, "waited for rank 2");
}

TEST_F(LosableLinkTest, ASuccessorIsToldOfOutcomesAndGetsThem) {
  DataHead outcome = partition(7).head;
  const auto values = std::make_shared<std::byte[]>(8, std::byte{'x'});
  outcome.type = DataType::kResult;
  held_.keep({.head = outcome, .values = values, .text = {}, .at = nullptr});
  on_loop([&] { link_->say_holds({outcome}); });
  drain();
  ASSERT_EQ(received_.size(), 2u);
  EXPECT_EQ(received_[0].type, DataType::kHello);
  EXPECT_EQ(received_[1].type, DataType::kHolds);
  EXPECT_EQ(received_[1].key, outcome.key);
  EXPECT_EQ(received_[1].rank, 3u);
  answer(received_[1], "", DataType::kFetch);
  ASSERT_EQ(received_.size(), 3u);
  EXPECT_EQ(received_[2].type, DataType::kHeld);
  EXPECT_EQ(received_[2].code, StatusCode::kOk);
  DataHead unknown = received_[1];
  unknown.round = 9;
  answer(unknown, "", DataType::kFetch);
  ASSERT_EQ(received_.size(), 4u);
  EXPECT_NE(received_[3].code, StatusCode::kOk);
  on_loop([this] { link_->fail_over(); });
  drain();
  ASSERT_EQ(outcomes_moved_.size(), 1u) << "the next successor is told, too";
}

// ---- stored tensors ----

class StoredLinkTest : public LosableLinkTest {
 protected:
  OutgoingPartition stored(uint64_t round) {
    OutgoingPartition outgoing = partition(1);
    outgoing.head.op = ReduceOp::kAccumulate;
    outgoing.head.round = round;
    return outgoing;
  }
  void answer_with(const std::string& values, const std::string& rounds) {
    answer(received_.back(), rounds, DataType::kIncluded);
    answer(received_.back(), values);
  }
  std::string rounds_of(uint64_t round) const {
    const auto found = held(1, round);
    return found && found->rounds ? std::string(as_text(*found->rounds)) : "";
  }
};

TEST_F(StoredLinkTest, TheLastAnswerIsHeldWithItsRoundsUntilTheNextHasCome) {
  enqueue({stored(1)});
  answer_with("abcdefgh", "11111111");
  EXPECT_EQ(rounds_of(1), "11111111");
  enqueue({stored(2)});
  on_loop([this] {
    DataHead head = received_.back();
    head.type = DataType::kResult;
    const auto bytes = protocol::encode(head);
    const transport::Arrival arrival{.head = bytes, .payload_bytes = 8, .payload = {}, .reply_space = {}};
    const auto buffer = link_->on_head(*service_, arrival);  // half of it comes, then the server dies
    ASSERT_TRUE(buffer.is_ok());
    std::memset(buffer->destination().data(), 0, 4);
  });
  ASSERT_TRUE(held(1, 1));
  EXPECT_EQ(as_text(Bytes(held(1, 1)->values.get(), 8)), "abcdefgh");
}

TEST_F(StoredLinkTest, AnAnswerReplacesTheLastOne) {
  for (uint64_t round = 1; round <= 3; ++round) {
    enqueue({stored(round)});
    answer_with("abcdefgh", std::string(8, static_cast<char>('0' + round)));
    EXPECT_EQ(rounds_of(round), std::string(8, static_cast<char>('0' + round)));
    EXPECT_FALSE(held(1, round - 1));
  }
}

TEST_F(StoredLinkTest, AResultThatDoesNotSayWhatItContainsEndsTheConnection) {
  enqueue({stored(1)});
  answer(received_.back(), "abcdefgh");
  EXPECT_FALSE(held(1));
  EXPECT_TRUE(completed_.empty());
}

TEST_F(StoredLinkTest, ASuccessorIsToldWhatItContainsAndThenThatThisIsAll) {
  DataHead outcome = stored(1).head;
  outcome.type = DataType::kResult;
  const std::string text = "12345678";
  const auto rounds =
      std::make_shared<const std::vector<std::byte>>(as_bytes(text).begin(), as_bytes(text).end());
  held_.keep({.head = outcome,
              .values = std::make_shared<std::byte[]>(8, std::byte{'x'}),
              .text = {},
              .rounds = rounds,
              .at = nullptr});
  on_loop([&] {
    link_->say_holds({outcome});
    link_->say_stated(2);
  });
  drain();
  ASSERT_EQ(received_.size(), 3u);
  EXPECT_EQ(received_[1].type, DataType::kHolds);
  EXPECT_EQ(received_[2].type, DataType::kStated);
  EXPECT_EQ(received_[2].round, 2u);
}

TEST_F(LosableLinkTest, ForgottenNamesAreNotHeld) {
  enqueue({partition(1)});
  answer(received_.back(), "abcdefgh");
  held_.forget({{1, 1}});
  EXPECT_FALSE(held(1));
}

}  // namespace
}  // namespace byteps::worker
