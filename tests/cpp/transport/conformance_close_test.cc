// Requirements on the end of a connection: see conformance_test.cc.
#include "transport/conformance.h"

namespace byteps::transport {
namespace {

TEST_P(Conformance, CloseReportsToTheOtherEndOnly) {
  start_both();
  run_on(loop(kA), [&] { end(kA).close(); });
  EXPECT_EQ(recorders_[kB].why_closed().code(), StatusCode::kUnavailable);
  destroy(kA);
  EXPECT_TRUE(recorders_[kA].seen.get().closed.empty());
}

TEST_P(Conformance, DestroyingReportsToTheOtherEnd) {
  start(kB);
  destroy(kA);
  EXPECT_EQ(recorders_[kB].why_closed().code(), StatusCode::kUnavailable);
}

TEST_P(Conformance, AnEndThatStartsAfterTheOtherHasGoneIsTold) {
  destroy(kB);
  start(kA);
  EXPECT_EQ(recorders_[kA].why_closed().code(), StatusCode::kUnavailable);
}

TEST_P(Conformance, AnEndThatSendsToAGoneOneBeforeItStartsIsTold) {
  destroy(kB);
  for (int i = 0; i < 3; ++i) send(kA, "to nobody", "x");
  sent_.all();
  start(kA);
  EXPECT_EQ(recorders_[kA].why_closed().code(), StatusCode::kUnavailable);
}

TEST_P(Conformance, CloseFromInsideACallbackEndsTheCallbacks) {
  recorders_[kB].frame = [](Connection& connection, const Arrival&, Bytes) {
    connection.close();
    return Status::ok();
  };
  start_both();
  run_on(loop(kA), [&] {
    for (int i = 0; i < 10; ++i) end(kA).send({}, payload_of("some payload"), sent_.expect_one());
  });
  EXPECT_EQ(recorders_[kA].why_closed().code(), StatusCode::kUnavailable);
  run_on(loop(kB), [] {});
  EXPECT_EQ(recorders_[kB].seen.get().frames.size(), 1u);
  EXPECT_TRUE(recorders_[kB].seen.get().closed.empty());
  sent_.all();
}

TEST_P(Conformance, CloseFromInsideOnHeadEndsTheCallbacks) {
  recorders_[kB].head = [](Connection& connection, const Arrival&) -> Result<ReceiveBuffer> {
    connection.close();
    return ReceiveBuffer::discard();
  };
  start_both();
  const std::string payload = pattern(100'000, 1);
  send(kA, "one", payload);
  EXPECT_EQ(recorders_[kA].why_closed().code(), StatusCode::kUnavailable);
  EXPECT_EQ(recorders_[kB].seen.get().frames.size(), 0u);
  sent_.all();
}

TEST_P(Conformance, CloseFromInsideOnSentFailsTheRest) {
  start_both();
  run_on(loop(kA), [&] { end(kA).send({}, payload_of("x"), [&](const Status&) { end(kA).close(); }); });
  EXPECT_EQ(recorders_[kB].why_closed().code(), StatusCode::kUnavailable);
  send(kA, "late");
  EXPECT_EQ(sent_.all().at(0).code(), StatusCode::kAborted);
}

TEST_P(Conformance, WhatIsNotSentWhenThisEndClosesIsAborted) {
  // More than any kernel buffers; B does not read.
  const std::string payload = std::string(64 << 20, 'x');
  send(kA, "stuck", payload);
  send(kA, "behind");
  run_on(loop(kA), [&] { end(kA).close(); });
  for (const Status& status : sent_.all()) EXPECT_EQ(status.code(), StatusCode::kAborted) << status;
}

TEST_P(Conformance, CloseWhenSentDeliversAllThatWasQueued) {
  start_both();
  const std::string payload = pattern(3'000'000, 4);
  run_on(loop(kA), [&] {
    for (int i = 0; i < 5; ++i)
      end(kA).send(as_bytes(std::to_string(i)), payload_of(payload), sent_.expect_one());
    end(kA).close_when_sent(soon_us());
  });
  EXPECT_TRUE(recorders_[kA].why_closed().is_ok()) << recorders_[kA].why_closed();
  EXPECT_EQ(recorders_[kB].why_closed().code(), StatusCode::kUnavailable);
  EXPECT_EQ(recorders_[kB].seen.get().frames.size(), 5u);
  expect_all_sent();
}

// The last frames must reach the peer although it is writing, as they may say why this end closes.
TEST_P(Conformance, CloseWhenSentGetsThroughWhileTheOtherEndSends) {
  const std::string bulk = pattern(1 << 20, 4);
  start_both();
  run_on(loop(kA), [&] {
    for (int i = 0; i < 40; ++i) end(kA).send(as_bytes("bulk"), payload_of(bulk), sent_.expect_one());
  });
  run_on(loop(kB), [&] {
    end(kB).send(as_bytes("because"), {}, sent_.expect_one());
    end(kB).close_when_sent(soon_us(1.0));
  });
  ASSERT_TRUE(recorders_[kA].wait_for_frames(1));
  EXPECT_EQ(recorders_[kA].seen.get().frames[0].head, "because");
  EXPECT_EQ(recorders_[kA].why_closed().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(recorders_[kB].why_closed().is_ok()) << recorders_[kB].why_closed();
  sent_.all();
}

TEST_P(Conformance, CloseWhenSentEndsAtItsDeadline) {
  start(kA);  // B never reads
  const std::string payload = std::string(64 << 20, 'x');
  send(kA, "stuck", payload);
  const TimeUs before = now_us();
  run_on(loop(kA), [&] { end(kA).close_when_sent(now_us() + 50'000); });
  EXPECT_TRUE(recorders_[kA].why_closed().is_ok());
  EXPECT_GE(now_us() - before, 50'000);
  EXPECT_EQ(sent_.all().at(0).code(), StatusCode::kAborted);
}

TEST_P(Conformance, CloseWhenSentWaitsBeyondItsDeadlineWhileSomethingIsOutstanding) {
  start(kA);
  const std::string payload = pattern(16 << 20, 4);
  run_on(loop(kA), [&] {
    for (int i = 0; i < 4; ++i) end(kA).send(as_bytes("slowly"), payload_of(payload), sent_.expect_one());
    end(kA).close_when_sent({now_us(), soon_us() - now_us()});
  });
  for (int i = 0; i < 10; ++i) run_on(loop(kA), [] {});
  start(kB);
  EXPECT_TRUE(recorders_[kA].why_closed().is_ok()) << recorders_[kA].why_closed();
  EXPECT_EQ(recorders_[kB].why_closed().code(), StatusCode::kUnavailable);
  EXPECT_EQ(recorders_[kB].seen.get().frames.size(), 4u);
  expect_all_sent();
}

TEST_P(Conformance, CloseWhenSentEndsWhenNothingHasMovedForItsStallLimit) {
  start(kA);  // B never reads
  const std::string payload = std::string(64 << 20, 'x');
  send(kA, "stuck", payload);
  run_on(loop(kA), [&] { end(kA).close_when_sent({now_us(), 50'000}); });
  EXPECT_TRUE(recorders_[kA].why_closed().is_ok());
  EXPECT_EQ(sent_.all().at(0).code(), StatusCode::kAborted);
}

TEST_P(Conformance, NothingIsAcceptedAfterCloseWhenSent) {
  start_both();
  run_on(loop(kA), [&] {
    end(kA).close_when_sent(soon_us());
    end(kA).send(as_bytes("late"), {}, sent_.expect_one());
  });
  EXPECT_EQ(sent_.all().at(0).code(), StatusCode::kAborted);
  EXPECT_TRUE(recorders_[kA].why_closed().is_ok());
  EXPECT_EQ(recorders_[kB].seen.get().frames.size(), 0u);
}

TEST_P(Conformance, BothEndsMayCloseWhenSentAtOnce) {
  start_both();
  const auto say_goodbye = [&](int side) {
    end(side).send(as_bytes("bye"), {}, sent_.expect_one());
    end(side).close_when_sent(soon_us());
  };
  run_on(loop(kB), [&] {  // B starts to read only afterwards
    if (loops_[kB]) {
      run_on(loop(kA), [&] { say_goodbye(kA); });
    } else {
      say_goodbye(kA);
    }
    say_goodbye(kB);
  });
  for (int side : {kA, kB}) {
    EXPECT_TRUE(recorders_[side].why_closed().is_ok()) << recorders_[side].why_closed();
    EXPECT_EQ(recorders_[side].seen.get().frames.size(), 1u);
  }
}

}  // namespace
}  // namespace byteps::transport
