// Requirements on every transport, tested with the transports that conformance.h's suite is
// instantiated with.
#include "transport/conformance.h"

#include <algorithm>
#include <random>

namespace byteps::transport {
namespace {

TEST_P(Conformance, FramesOfEverySizeArriveWholeAndInOrder) {
  start_both();
  const std::vector<size_t> sizes{
      0,   1,    2,     15,    16,    17,    255,           256,           257,   271,     272,
      273, 4095, 4096,  8191,  8192,  8193,  65535,         65536,         65537, 100'003, 0,
      1,   0,    1'000, 9'000, 1'000, 3'000, (1 << 20) + 3, (5 << 20) - 1, 7,     70'000};
  std::vector<std::string> heads;
  std::vector<std::string> payloads;
  for (size_t i = 0; i < sizes.size(); ++i) {
    heads.push_back(pattern((i * 37) % (kMaxHeadBytes + 1), 900 + i));
    payloads.push_back(pattern(sizes[i], i));
  }
  heads.front() = pattern(kMaxHeadBytes, 1);
  run_on(loop(kA), [&] {
    for (size_t i = 0; i < sizes.size(); ++i) {
      end(kA).send(as_bytes(heads[i]), payload_of(payloads[i]), sent_.expect_one());
    }
  });
  ASSERT_TRUE(recorders_[kB].wait_for_frames(sizes.size()));
  const Seen seen = recorders_[kB].seen.get();
  for (size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(seen.frames[i].head, heads[i]) << i;
    EXPECT_TRUE(seen.frames[i].payload == payloads[i]) << "payload " << i << " of " << sizes[i] << " bytes";
  }
  EXPECT_EQ(seen.heads,
            static_cast<size_t>(std::count_if(sizes.begin(), sizes.end(), [](size_t s) { return s > 0; })))
      << "on_head is for frames with a payload";
  expect_all_sent();
}

TEST_P(Conformance, ManyFramesBothWaysAtOnce) {
  start_both();
  constexpr int kFrames = 2000;
  std::array<std::vector<std::string>, 2> payloads;
  for (int side : {kA, kB}) {
    std::mt19937 random(side + 1);
    for (int i = 0; i < kFrames; ++i) {
      const size_t bytes = i % 100 == 99 ? 200'000 : random() % (i % 7 == 0 ? 20'000 : 300);
      payloads[side].push_back(pattern(bytes, random()));
    }
  }
  for (int first = 0; first < kFrames; first += 50) {
    for (int side : {kA, kB}) {
      run_on(loop(side), [&] {
        for (int i = first; i < first + 50; ++i) {
          end(side).send(as_bytes(std::to_string(i)), payload_of(payloads[side][i]), sent_.expect_one());
        }
      });
    }
  }
  for (int side : {kA, kB}) {
    ASSERT_TRUE(recorders_[1 - side].wait_for_frames(kFrames));
    const Seen seen = recorders_[1 - side].seen.get();
    for (int i = 0; i < kFrames; ++i) {
      ASSERT_EQ(seen.frames[i].head, std::to_string(i));
      ASSERT_TRUE(seen.frames[i].payload == payloads[side][i]) << i;
    }
  }
  expect_all_sent();
}

TEST_P(Conformance, PayloadsLandWhereTheReceiverSays) {
  const std::string payload = pattern(300'001, 5);
  std::vector<std::byte> memory(payload.size() + 2, std::byte{0x5a});
  const void* given = nullptr;
  recorders_[kB].head = [&](Connection&, const Arrival&) -> Result<ReceiveBuffer> {
    return ReceiveBuffer::at(MutableBytes(memory).subspan(1, payload.size()));
  };
  recorders_[kB].frame = [&](Connection&, const Arrival&, Bytes received) {
    given = received.data();
    return Status::ok();
  };
  start_both();
  send(kA, "head", payload);
  ASSERT_TRUE(recorders_[kB].wait_for_frames(1));
  EXPECT_EQ(given, memory.data() + 1);
  EXPECT_TRUE(as_text(Bytes(memory).subspan(1, payload.size())) == payload);
  EXPECT_EQ(memory.front(), std::byte{0x5a});
  EXPECT_EQ(memory.back(), std::byte{0x5a});
  expect_all_sent();
}

TEST_P(Conformance, LeasesAreMemoryOfTheSenders) {
  const std::string payload = pattern(70'000, 6);
  std::vector<std::byte> reply_space(payload.size());
  std::optional<Arrival> asked;
  const void* received_at = nullptr;
  std::string received_as;
  recorders_[kB].head = [&](Connection&, const Arrival& arrival) -> Result<ReceiveBuffer> {
    asked = arrival;
    EXPECT_EQ(arrival.payload_bytes, payload.size());
    EXPECT_EQ(GetParam().lends, !arrival.payload.empty());
    return arrival.payload.empty() ? ReceiveBuffer::discard() : ReceiveBuffer::in_place();
  };
  recorders_[kB].frame = [&](Connection&, const Arrival&, Bytes received) {
    received_at = received.data();
    received_as = as_text(received);
    return Status::ok();
  };
  start_both();
  run_on(loop(kA), [&] { end(kA).send({}, {as_bytes(payload), reply_space}, sent_.expect_one()); });
  ASSERT_TRUE(recorders_[kB].wait_for_frames(1));
  expect_all_sent();
  EXPECT_EQ(received_at, asked->payload.data());
  EXPECT_EQ(asked->reply_space.size(), GetParam().shares_reply_space ? reply_space.size() : 0);
  EXPECT_TRUE(received_as == (GetParam().lends ? payload : ""));
  if (!transports_[kA]) {
    EXPECT_EQ(received_at, static_cast<const void*>(payload.data())) << "its own: nothing is copied";
    EXPECT_EQ(asked->reply_space.data(), reply_space.data());
  }
  EXPECT_EQ(end(kB).is_local(), GetParam().shares_reply_space);
}

// Requests whose answers are written to the reply space, if there is one, or sent otherwise.
TEST_P(Conformance, AnswersArriveWholeWhereverTheyWereWritten) {
  const std::vector<size_t> sizes{1, 63, 64, 65, 4096, 100'000, 0, 262'144, 300'000, 3'000'000, 7};
  std::vector<std::vector<std::byte>> memory;
  std::vector<std::byte> elsewhere;
  for (const size_t bytes : sizes) memory.emplace_back(bytes);
  recorders_[kB].keeps_leases = true;
  recorders_[kB].frame = [&](Connection& connection, const Arrival& arrival, Bytes) {
    const size_t index = std::stoul(std::string(as_text(arrival.head)));
    const std::string answer = pattern(sizes[index], index);
    elsewhere.assign(as_bytes(answer).begin(), as_bytes(answer).end());
    Payload payload{elsewhere, {}, arrival.lease};
    if (!arrival.reply_space.empty()) {
      std::copy(elsewhere.begin(), elsewhere.end(), arrival.reply_space.begin());
      payload.data = arrival.reply_space;
    }
    connection.send(arrival.head, payload, sent_.expect_one());
    return Status::ok();
  };
  recorders_[kA].head = [&](Connection&, const Arrival& arrival) -> Result<ReceiveBuffer> {
    return ReceiveBuffer::at(memory[std::stoul(std::string(as_text(arrival.head)))]);
  };
  start_both();
  for (size_t i = 0; i < sizes.size(); ++i) {
    const std::string head = std::to_string(i);
    const Bytes data =
        i % 2 ? Bytes(memory[i]) : Bytes();  // every other request has reply space and no payload
    run_on(loop(kA), [&] { end(kA).send(as_bytes(head), {data, memory[i]}, {}); });
    ASSERT_TRUE(recorders_[kA].wait_for_frames(i + 1));
    EXPECT_EQ(recorders_[kA].seen.get().frames[i].head, head);
    EXPECT_TRUE(as_text(memory[i]) == pattern(sizes[i], i)) << sizes[i];
  }
  expect_all_sent();
}

TEST_P(Conformance, DiscardedPayloadsAreSkipped) {
  recorders_[kB].head = [](Connection&, const Arrival&) -> Result<ReceiveBuffer> {
    return ReceiveBuffer::discard();
  };
  start_both();
  const std::string small = pattern(100, 1);
  const std::string large = pattern(3'000'000, 2);
  for (int i = 0; i < 3; ++i) {
    send(kA, "small", small);
    send(kA, "large", large);
    send(kA, "none");
  }
  ASSERT_TRUE(recorders_[kB].wait_for_frames(9));
  const Seen seen = recorders_[kB].seen.get();
  for (size_t i = 0; i < 9; ++i) {
    EXPECT_EQ(seen.frames[i].head, (std::array{"small", "large", "none"}[i % 3]));
    EXPECT_EQ(seen.frames[i].payload, "");
  }
  expect_all_sent();
}

TEST_P(Conformance, FramesThatCameBeforeStartAreKept) {
  start(kA);
  const std::string payload = pattern(50'000, 3);
  for (int i = 0; i < 20; ++i) send(kA, std::to_string(i), payload);
  EXPECT_EQ(recorders_[kB].seen.get().frames.size(), 0u);
  start(kB);
  ASSERT_TRUE(recorders_[kB].wait_for_frames(20));
  EXPECT_EQ(recorders_[kB].seen.get().frames[19].head, "19");
  expect_all_sent();
}

TEST_P(Conformance, SendingIsPossibleBeforeStart) {
  start(kB);
  const std::string payload = pattern(10'000'000, 3);
  send(kA, "early", payload);
  ASSERT_TRUE(recorders_[kB].wait_for_frames(1));
  EXPECT_TRUE(recorders_[kB].seen.get().frames[0].payload == payload);
  expect_all_sent();
}

TEST_P(Conformance, AReceiverMayAnswerFromItsCallbacks) {
  constexpr int kRounds = 500;
  const std::string payload = pattern(1000, 3);
  for (int side : {kA, kB}) {
    recorders_[side].frame = [&](Connection& connection, const Arrival& arrival, Bytes) {
      const int round = std::stoi(std::string(as_text(arrival.head)));
      if (round < kRounds) connection.send(as_bytes(std::to_string(round + 1)), payload_of(payload), {});
      return Status::ok();
    };
  }
  start_both();
  send(kA, "1");
  ASSERT_TRUE(recorders_[kB].wait_for_frames(kRounds / 2));
  ASSERT_TRUE(recorders_[kA].wait_for_frames(kRounds / 2));
  destroy(kA);
  destroy(kB);
}

TEST_P(Conformance, OnSentIsNeverCalledFromInsideSend) {
  start_both();
  bool inside = false;
  bool called_inside = false;
  Watched<int> calls;
  const auto send_watched = [&] {
    run_on(loop(kA), [&] {
      inside = true;
      end(kA).send({}, {}, [&](const Status&) {
        called_inside |= inside;
        calls.update([](int& n) { ++n; });
      });
      inside = false;
    });
  };
  send_watched();
  ASSERT_TRUE(calls.wait([](int n) { return n == 1; }));
  run_on(loop(kA), [&] { end(kA).close(); });
  send_watched();
  ASSERT_TRUE(calls.wait([](int n) { return n == 2; }));
  EXPECT_FALSE(called_inside);
}

TEST_P(Conformance, AnErrorOfOnHeadClosesBothEnds) {
  recorders_[kB].head = [](Connection&, const Arrival&) -> Result<ReceiveBuffer> {
    return data_loss("unknown key");
  };
  start_both();
  send(kA, "bad", "payload");
  EXPECT_EQ(recorders_[kB].why_closed().code(), StatusCode::kDataLoss);
  EXPECT_EQ(recorders_[kB].why_closed().message(), "unknown key");
  EXPECT_EQ(recorders_[kA].why_closed().code(), StatusCode::kUnavailable);
  EXPECT_EQ(recorders_[kB].seen.get().frames.size(), 0u);
  sent_.all();
}

TEST_P(Conformance, AnErrorOfOnFrameClosesBothEnds) {
  recorders_[kB].frame = [](Connection&, const Arrival& arrival, Bytes) {
    return as_text(arrival.head) == "bad" ? internal("no") : Status::ok();
  };
  start_both();
  run_on(loop(kA), [&] {
    for (const char* head : {"good", "bad", "late"}) end(kA).send(as_bytes(head), {}, sent_.expect_one());
  });
  EXPECT_EQ(recorders_[kB].why_closed().code(), StatusCode::kInternal);
  EXPECT_EQ(recorders_[kA].why_closed().code(), StatusCode::kUnavailable);
  EXPECT_EQ(recorders_[kB].seen.get().frames.size(), 2u);
  sent_.all();
}

TEST_P(Conformance, DestroyedWhileBusyEveryFrameCompletesOnce) {
  destroy(kA);
  destroy(kB);
  for (int round = 0; round < 12; ++round) {
    SCOPED_TRACE(round);
    Ends ends;
    connect(ends);
    SentLog sent;
    std::array<Recorder, 2> recorders;
    const std::string payload = pattern(round % 2 ? 700'000 : 900, 1);
    for (int side : {kA, kB}) {
      run_on(loop(side), [&] {
        ends[side]->start(&recorders[side]);
        for (int i = 0; i < 20; ++i) ends[side]->send({}, payload_of(payload), sent.expect_one());
      });
    }
    recorders[round % 3 ? kA : kB].wait_for_frames(round % 4);
    for (int side : order(round)) run_on(loop(side), [&] { ends[side].reset(); });
    sent.all();
  }
}

TEST_P(Conformance, ACallbackMayDestroyAnotherConnection) {
  Ends others;
  connect(others);
  Recorder unheard;
  run_on(loop(kB), [&] { others[kB]->start(&unheard); });
  recorders_[kB].frame = [&](Connection&, const Arrival&, Bytes) {
    others[kB].reset();
    return Status::ok();
  };
  start_both();
  // Both connections have something to read, usually in the same pass of the loop.
  run_on(loop(kA), [&] {
    end(kA).send(as_bytes("kill"), {}, sent_.expect_one());
    others[kA]->send(as_bytes("to the dead"), {}, sent_.expect_one());
  });
  ASSERT_TRUE(recorders_[kB].wait_for_frames(1));
  sent_.all();
  run_on(loop(kA), [&] { others[kA].reset(); });
  run_on(loop(kB), [&] { others[kB].reset(); });
}

TEST_P(Conformance, ASlowReaderStopsTheSenderAndNothingElse) {
  start(kA);
  const std::string payload = pattern(1 << 20, 1);
  constexpr size_t kFrames = 64;
  run_on(loop(kA), [&] {
    for (size_t i = 0; i < kFrames; ++i) end(kA).send({}, payload_of(payload), sent_.expect_one());
  });
  Ends others;
  connect(others);
  Recorder quick;
  run_on(loop(kB), [&] { others[kB]->start(&quick); });
  run_on(loop(kA), [&] { others[kA]->send(as_bytes("past the jam"), {}, {}); });
  ASSERT_TRUE(quick.wait_for_frames(1));
  EXPECT_LT(sent_.done(), kFrames);
  start(kB);
  ASSERT_TRUE(recorders_[kB].wait_for_frames(kFrames));
  expect_all_sent();
  run_on(loop(kA), [&] { others[kA].reset(); });
  run_on(loop(kB), [&] { others[kB].reset(); });
}

TEST_P(Conformance, ManyConnectionsShareTheLoops) {
  constexpr size_t kConnections = 60;
  std::vector<Ends> all(kConnections);
  std::vector<Recorder> recorders(kConnections);
  const std::string payload = pattern(20'000, 8);
  for (size_t i = 0; i < kConnections; ++i) {
    connect(all[i]);
    run_on(loop(kB), [&] { all[i][kB]->start(&recorders[i]); });
  }
  run_on(loop(kA), [&] {
    for (int round = 0; round < 10; ++round) {
      for (size_t i = 0; i < kConnections; ++i) {
        all[i][kA]->send(as_bytes(std::to_string(i)), payload_of(payload), sent_.expect_one());
      }
    }
  });
  for (size_t i = 0; i < kConnections; ++i) {
    ASSERT_TRUE(recorders[i].wait_for_frames(10));
    for (const Received& frame : recorders[i].seen.get().frames) {
      EXPECT_EQ(frame.head, std::to_string(i));
      EXPECT_TRUE(frame.payload == payload);
    }
  }
  expect_all_sent();
  for (int side : {kA, kB}) {
    run_on(loop(side), [&] {
      for (Ends& ends : all) ends[side].reset();
    });
  }
}

TEST_P(Conformance, ManyConnectionsLeaveNothingBehind) {
  const std::string payload = pattern(20'000, 9);
  size_t descriptors = 0;
  size_t pinned = 0;
  for (int i = 0; i <= GetParam().many; ++i) {
    Ends ends;
    Recorder recorder;
    ASSERT_NO_FATAL_FAILURE(connect(ends));
    if (i % 20 == 0) {
      run_on(loop(kB), [&] { ends[kB]->start(&recorder); });
      run_on(loop(kA), [&] { ends[kA]->send({}, payload_of(payload), sent_.expect_one()); });
      ASSERT_TRUE(recorder.wait_for_frames(1)) << i;
      expect_all_sent();
    }
    for (const int side : {i % 2, 1 - i % 2}) run_on(loop(side), [&] { ends[side].reset(); });
    if (i != 20) continue;
    descriptors = open_descriptors();
    pinned = pinned_bytes();
  }
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= descriptors; }))
      << open_descriptors() << " were " << descriptors;
  EXPECT_TRUE(eventually([&] { return pinned_bytes() <= pinned; })) << pinned_bytes() << " were " << pinned;
}

TEST_P(Conformance, ConnectionsMayBeDestroyedAfterTheirLoopHasStopped) {
  start_both();
  const std::string payload = std::string(8 << 20, 'x');
  send(kA, "busy", payload);
  if (acceptor_) acceptor_.reset();
  loop(kA).stop();
  loop(kB).stop();
  ends_[kA].reset();
  ends_[kB].reset();
  loops_[kA] = new_loop();
  loops_[kB] = new_loop();
}

}  // namespace
}  // namespace byteps::transport
