// Leases, reuse keys, and the order of events at the start and end of an RDMA connection.
#include <algorithm>
#include <cstring>

#include "base/slab.h"
#include "transport/rdma_harness.h"

namespace byteps::transport::rdma {
namespace {

class RdmaFramesTest : public RdmaTest {
 protected:
  RdmaFramesTest() {
    for (size_t i = 0; i < 100; ++i) {
      std::memcpy(memory_.bytes().data() + i * 40'000, pattern(40'000, i).data(), 40'000);
    }
  }
  // A prefix of pattern(40'000, index).
  Payload part(size_t index, size_t bytes = 30'000) {
    return {.data = memory_.bytes().subspan(index * 40'000, bytes), .reply_space = {}};
  }
  void keep_leases(int side) {
    recorders_[side].keeps_leases = true;
    recorders_[side].frame = [this](Connection&, const Arrival& arrival, Bytes) {
      leases_.update([&](auto& leases) { leases.push_back(arrival.lease); });
      return Status::ok();
    };
  }

  Slab memory_{4 << 20};
  Watched<std::vector<LeaseId>> leases_;
};

TEST_F(RdmaFramesTest, LeasesAreGivenBackByBothWaysAndTheBufferIsFreeAgain) {
  keep_leases(kB);
  set_up_and_connect();
  start_both();
  for (size_t i = 0; i < 20; ++i) {
    Payload payload = part(0);
    payload.reuse_key = 5;
    send(kA, "question", payload);
    ASSERT_TRUE(leases_.wait([&](const auto& leases) { return leases.size() == i + 1; }));
    const LeaseId lease = leases_.get().back();
    EXPECT_NE(lease, kNoLease);
    EXPECT_EQ(lease, leases_.get().front()) << "the same memory each time";
    if (i % 2 == 0) {
      run_on(loop(kB), [&] { end(kB).return_lease(lease); });
      send(kB, "given back");
    } else {
      send(kB, "given back", {.data = {}, .reply_space = {}, .returns_lease = lease});
    }
    ASSERT_TRUE(recorders_[kA].wait_for_frames(i + 1));
  }
  expect_all_sent();
}

// The frames break the rule of reuse_key; each arrives intact all the same.
TEST_F(RdmaFramesTest, FramesWithOneReuseKeyThatDoNotWaitForEachOther) {
  keep_leases(kB);
  set_up_and_connect();
  start_both();
  for (int round = 0; round < 3; ++round) {
    run_on(loop(kA), [&] {
      for (size_t i = 0; i < 20; ++i) {
        Payload payload = part(i);
        payload.reuse_key = 5;
        end(kA).send(as_bytes("frame"), payload, sent_.expect_one());
      }
    });
    ASSERT_TRUE(leases_.wait([&](const auto& leases) { return leases.size() == 20; }));
    std::vector<LeaseId> leases = leases_.get();
    leases_.update([](auto& all) { all.clear(); });
    run_on(loop(kB), [&] {
      for (const LeaseId lease : leases) end(kB).return_lease(lease);
    });
    std::sort(leases.begin(), leases.end());
    EXPECT_EQ(std::unique(leases.begin(), leases.end()), leases.end());
  }
  const Seen seen = recorders_[kB].seen.get();
  for (size_t i = 0; i < 60; ++i) EXPECT_TRUE(seen.frames[i].payload == pattern(30'000, i % 20)) << i;
  expect_all_sent();
}

TEST_F(RdmaFramesTest, WhatIsGivenBackAfterTheEndIsOfNoEffect) {
  keep_leases(kB);
  set_up_and_connect();
  start_both();
  send(kA, "frame", part(0));
  ASSERT_TRUE(leases_.wait([](const auto& leases) { return leases.size() == 1; }));
  destroy(kA);
  ASSERT_TRUE(recorders_[kB].wait_until_closed());
  run_on(loop(kB), [&] { end(kB).return_lease(leases_.get().front()); });
}

// The peer sends nothing that would make this end check the waiting frames again.
TEST_F(RdmaFramesTest, AFrameThatHasToBeCopiedAfterAllDoesNotHoldUpWhatFollows) {
  set_up_and_connect();
  start_both();
  const std::string others_memory = pattern(8'000, 1);
  Payload payload = payload_of(others_memory);
  payload.reuse_key = 5;
  for (size_t i = 0; i < 5; ++i) {
    send(kA, "first", payload);
    ASSERT_TRUE(recorders_[kB].wait_for_frames(3 * i + 1));
    send(kB, "the lease was given back");
    ASSERT_TRUE(recorders_[kA].wait_for_frames(i + 1));
    card(kA).fail_next_registration(unavailable("not this time"));
    run_on(loop(kA), [&] {
      end(kA).send(as_bytes("second"), payload, sent_.expect_one());
      end(kA).send(as_bytes("third"), {}, sent_.expect_one());
    });
    ASSERT_TRUE(recorders_[kB].wait_for_frames(3 * i + 3));
  }
  expect_all_sent();
}

// More than the ring holds, and more than may be posted at a time.
TEST_F(RdmaFramesTest, ABacklogIsWrittenBeforeTheEnd) {
  set_up_and_connect();
  start(kA);
  constexpr size_t kFrames = 600;
  const std::string small = pattern(3'000, 1);
  run_on(loop(kA), [&] {
    for (size_t i = 0; i < kFrames; ++i) {
      end(kA).send(as_bytes(std::to_string(i)), i % 10 == 0 ? part(i % 100) : payload_of(small),
                   sent_.expect_one());
    }
    end(kA).close_when_sent(soon_us());
    end(kA).send(as_bytes("too late"), {},
                 [](const Status& why) { EXPECT_EQ(why.code(), StatusCode::kAborted); });
  });
  start(kB);
  EXPECT_EQ(recorders_[kB].why_closed().code(), StatusCode::kUnavailable);
  const Seen seen = recorders_[kB].seen.get();
  ASSERT_EQ(seen.frames.size(), kFrames);
  for (size_t i = 0; i < kFrames; ++i) ASSERT_EQ(seen.frames[i].head, std::to_string(i));
  destroy(kB);
  EXPECT_TRUE(recorders_[kA].why_closed().is_ok());
  expect_all_sent();
}

TEST_F(RdmaFramesTest, ABacklogThatNobodyReadsEndsAtTheDeadline) {
  set_up_and_connect();
  start(kA);
  const std::string small = pattern(3'000, 1);
  run_on(loop(kA), [&] {
    for (int i = 0; i < 200; ++i) end(kA).send(as_bytes("frame"), payload_of(small), sent_.expect_one());
    end(kA).close_when_sent(now_us() + 50'000);
  });
  EXPECT_TRUE(recorders_[kA].why_closed().is_ok());
  const auto all = sent_.all();
  EXPECT_TRUE(all.front().is_ok());
  EXPECT_EQ(all.back().code(), StatusCode::kAborted);
}

TEST_F(RdmaFramesTest, AnswersThatCameBeforeStartAreDeliveredThoughTheOtherEndHasGone) {
  recorders_[kB].keeps_leases = true;
  recorders_[kB].frame = [this](Connection& connection, const Arrival& arrival, Bytes payload) {
    Payload answer = part(9, payload.size());
    answer.returns_lease = arrival.lease;
    connection.send(as_bytes("answer"), answer, sent_.expect_one());
    connection.send(as_bytes("last words"), {}, sent_.expect_one());
    connection.close_when_sent(soon_us());
    return Status::ok();
  };
  set_up_and_connect();
  const uint64_t before = fabric_.statistics().immediates;
  start(kB);
  Payload question = part(0);
  question.reply_space = memory_.bytes().subspan(2 << 20, 30'000);
  question.reuse_key = 1;
  send(kA, "question", question);
  ASSERT_TRUE(recorders_[kB].wait_for_frames(1));
  // Requested and granted receive buffer, the question; the answer, the last frame, and the end.
  ASSERT_TRUE(eventually([&] { return fabric_.statistics().immediates >= before + 6; }));
  expect_all_sent();
  destroy(kB);
  ASSERT_TRUE(no_queue_pair_is_left(kA)) << "it knows that the other end has gone";
  start(kA);
  const Status why = recorders_[kA].why_closed();
  EXPECT_EQ(why.code(), StatusCode::kUnavailable) << why;
  const Seen seen = recorders_[kA].seen.get();
  ASSERT_EQ(seen.frames.size(), 2u);
  EXPECT_TRUE(seen.frames[0].payload == pattern(30'000, 9));
  EXPECT_EQ(seen.frames[1].head, "last words");
}

TEST_F(RdmaFramesTest, NoFrameIsSaidToBeSentAfterOneWhoseCallbackCloses) {
  set_up_and_connect();
  start_both();
  std::vector<int> after;
  Watched<int> told;
  run_on(loop(kA), [&] {
    for (int i = 0; i < 10; ++i) {
      end(kA).send(as_bytes("frame"), {}, [&, i](const Status&) {
        if (i == 0) {
          end(kA).close();
          after.push_back(-1);
        } else if (!after.empty()) {
          after.push_back(i);
        }
        told.update([](int& count) { ++count; });
      });
    }
  });
  ASSERT_TRUE(told.wait([](const int& count) { return count == 10; }));
  EXPECT_EQ(after, std::vector<int>{-1}) << "all were told inside close()";
}

// Each callback does what is most likely to cause trouble.
TEST_F(RdmaFramesTest, CallbacksMaySendAndGiveBackAndClose) {
  set_up_and_connect();
  int left = 300;
  recorders_[kB].keeps_leases = true;
  recorders_[kB].frame = [&](Connection& connection, const Arrival& arrival, Bytes) {
    connection.return_lease(arrival.lease);
    for (int i = 0; i < 3; ++i) connection.send(as_bytes("echo"), part(i, 5'000), sent_.expect_one());
    if (--left == 0) connection.close();
    return Status::ok();
  };
  start_both();
  std::function<void(const Status&)> again = [&](const Status& status) {
    if (status.is_ok()) end(kA).send(as_bytes("more"), part(50, 6'000), again);
  };
  run_on(loop(kA), [&] { end(kA).send(as_bytes("first"), part(50, 6'000), again); });
  EXPECT_EQ(recorders_[kA].why_closed().code(), StatusCode::kUnavailable);
  EXPECT_GE(recorders_[kB].seen.get().frames.size(), 300u);
  EXPECT_TRUE(recorders_[kB].seen.get().closed.empty()) << "who closes is not told";
  sent_.all();
}

}  // namespace
}  // namespace byteps::transport::rdma
