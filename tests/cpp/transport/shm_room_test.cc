// Specific to shared memory: lack of room.
#include "transport/shm_harness.h"

namespace byteps::transport {
namespace {

TEST_F(Shm, FramesWaitInOrderForRoomAndTheOtherEndIsTold) {
  connect();
  const std::string half = pattern(kLendBytes / 2, 1);
  const std::string small = "small";
  for (const char* head : {"1", "2", "3"}) send(head, half);
  send("4", small);
  send("5", {});  // needs no room, but must not overtake
  ASSERT_TRUE(lease_holder_.calls.wait([](int n) { return n == 1; }));
  drain();
  EXPECT_EQ(lease_holder_.seen.get().frames.size(), 2u);
  EXPECT_EQ(lease_holder_.calls.get(), 1) << "told once, until a lease comes back";
  give_one_back();
  ASSERT_TRUE(lease_holder_.wait_for_frames(3));
  ASSERT_TRUE(lease_holder_.calls.wait([](int n) { return n == 2; }));
  give_one_back();
  ASSERT_TRUE(lease_holder_.wait_for_frames(5));
  drain();
  EXPECT_EQ(lease_holder_.calls.get(), 2);
  const Seen seen = lease_holder_.seen.get();
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(seen.frames[i].head, std::to_string(i + 1));
  EXPECT_TRUE(seen.frames[2].payload == half);
  for (const Status& status : sent_.all()) EXPECT_TRUE(status.is_ok()) << status;
}

TEST_F(Shm, ALargerPayloadThanTheMemoryGoesThroughTheSocket) {
  connect();
  const std::string large = pattern(kLendBytes + 1, 1);
  std::vector<std::byte> receive_buffer(large.size());
  run_on(*loop_, [&] {
    lease_holder_.head = [&](Connection&, const Arrival& arrival) -> Result<ReceiveBuffer> {
      EXPECT_EQ(arrival.lease, kNoLease);
      EXPECT_TRUE(arrival.payload.empty() && arrival.reply_space.empty());
      return ReceiveBuffer::at(receive_buffer);
    };
  });
  send("large", large);
  ASSERT_TRUE(lease_holder_.wait_for_frames(1));
  EXPECT_TRUE(lease_holder_.seen.get().frames[0].payload == large);
}

TEST_F(Shm, AFailureThatAnswersALeaseReturnsIt) {
  connect();
  const std::string all = pattern(kLendBytes, 1);
  send("1", all);
  send("2", all);
  ASSERT_TRUE(lease_holder_.calls.wait([](int n) { return n == 1; }));
  const std::string text = "no such tensor";
  run_on(*loop_, [&] {
    other_->send(as_bytes("failed"), {as_bytes(text), {}, leases_.front()}, sent_.expect_one());
  });
  ASSERT_TRUE(asker_.wait_for_frames(1));
  EXPECT_EQ(asker_.seen.get().frames[0].payload, text);
  ASSERT_TRUE(lease_holder_.wait_for_frames(2));
}

TEST_F(Shm, ClosingWhenSentAlsoSendsWhatWaitsForRoom) {
  connect();
  const std::string all = pattern(kLendBytes, 1);
  for (const char* head : {"1", "2", "3"}) send(head, all);
  run_on(*loop_, [&] { mine_->close_when_sent(soon_us()); });
  for (size_t frames : {1, 2, 3}) {
    ASSERT_TRUE(lease_holder_.wait_for_frames(frames));
    if (frames < 3) give_one_back();
  }
  EXPECT_EQ(lease_holder_.why_closed().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(asker_.why_closed().is_ok()) << asker_.why_closed();
  for (const Status& status : sent_.all()) EXPECT_TRUE(status.is_ok()) << status;
}

TEST_F(Shm, ClosingWhenSentWaitsForRoomUntilItsDeadlineOnly) {
  connect();
  const std::string all = pattern(kLendBytes, 1);
  for (const char* head : {"1", "2"}) send(head, all);
  run_on(*loop_, [&] { mine_->close_when_sent(now_us() + 20'000); });
  EXPECT_TRUE(asker_.why_closed().is_ok()) << asker_.why_closed();
  EXPECT_EQ(sent_.all().back().code(), StatusCode::kAborted);
}

TEST_F(Shm, WhatWaitsForRoomIsAbortedWhenThisEndCloses) {
  connect();
  const std::string all = pattern(kLendBytes, 1);
  for (const char* head : {"1", "2"}) send(head, all);
  run_on(*loop_, [this] { mine_->close(); });
  EXPECT_EQ(sent_.all().back().code(), StatusCode::kAborted);
}

TEST_F(Shm, WhatWaitsForRoomFailsWhenTheOtherEndCloses) {
  connect();
  const std::string all = pattern(kLendBytes, 1);
  for (const char* head : {"1", "2"}) send(head, all);
  ASSERT_TRUE(lease_holder_.wait_for_frames(1));
  run_on(*loop_, [this] { other_->close(); });
  EXPECT_EQ(asker_.why_closed().code(), StatusCode::kUnavailable);
  EXPECT_EQ(sent_.all().back().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace byteps::transport
