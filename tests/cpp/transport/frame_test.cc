// The bytes of frames, and SendQueue and FrameReader, which write and read them.
#include "transport/frame.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "transport/harness.h"
#include "transport/stream/frame_reader.h"
#include "transport/stream/send_queue.h"

namespace byteps::transport {
namespace {

using PrefixBytes = std::array<std::byte, kFramePrefixBytes>;
constexpr size_t kLimit = 1 << 30;

PrefixBytes encode(const FramePrefix& prefix) {
  PrefixBytes bytes;
  encode_prefix(prefix, bytes);
  return bytes;
}

TEST(FramePrefix, IsLaidOutAsDocumented) {
  const PrefixBytes bytes = encode({0x0102, 0x0807060504030201});
  const unsigned char expected[] = {'B', 'P', 'F', 1, 2, 1, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(std::memcmp(bytes.data(), expected, sizeof expected), 0);
}

TEST(FramePrefix, LengthsUpToTheirLimitsComeBack) {
  for (const size_t head : {size_t{0}, size_t{1}, size_t{255}, kMaxHeadBytes}) {
    for (const size_t payload : {size_t{0}, size_t{1}, size_t{65536}, kLimit}) {
      const auto decoded = decode_prefix(encode({head, payload}), {kLimit});
      ASSERT_TRUE(decoded.is_ok()) << decoded.status();
      EXPECT_EQ(*decoded, (FramePrefix{head, payload}));
    }
  }
}

TEST(FramePrefix, LengthsAboveTheirLimitsAreDataLoss) {
  EXPECT_EQ(decode_prefix(encode({kMaxHeadBytes + 1, 0}), {kLimit}).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(decode_prefix(encode({0, kLimit + 1}), {kLimit}).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(decode_prefix(encode({0, SIZE_MAX}), {kLimit}).status().code(), StatusCode::kDataLoss);
}

TEST(FramePrefix, EveryChangedByteIsRejectedOrIsAnotherLength) {
  const FramePrefix original{40, 1000};
  for (size_t at = 0; at < kFramePrefixBytes; ++at) {
    for (int change = 1; change < 256; ++change) {
      PrefixBytes bytes = encode(original);
      bytes[at] ^= static_cast<std::byte>(change);
      const auto decoded = decode_prefix(bytes, {kLimit});
      const bool is_length = at == 4 || at == 5 || at >= 8;
      EXPECT_TRUE(is_length || !decoded.is_ok()) << at;
      if (!decoded) continue;
      EXPECT_NE(*decoded, original);
      EXPECT_LE(decoded->head_bytes, kMaxHeadBytes);
      EXPECT_LE(decoded->payload_bytes, kLimit);
    }
  }
}

// A connection that FrameReader passes to its receiver; only its name is used.
class NoConnection final : public Connection {
 public:
  void start(Receiver*) override {}
  void send(Bytes, const Payload&, UniqueFunction<void(const Status&)>) override {}
  void close_when_sent(GracePeriod) override {}
  void close() override {}
  EventLoop& loop() override { std::abort(); }
  const std::string& peer() const override { return peer_; }
  bool is_local() const override { return false; }

 private:
  const std::string peer_ = "test";
};

std::string stream_of(const std::vector<Received>& frames) {
  SendQueue queue;
  for (const Received& frame : frames) queue.push(as_bytes(frame.head), as_bytes(frame.payload), {});
  std::string stream;
  while (!queue.empty()) {
    std::array<iovec, 7> ranges;
    const auto gathered = queue.gather(ranges, 100'000);
    for (int i = 0; i < gathered.count; ++i) {
      stream.append(static_cast<const char*>(ranges[i].iov_base), ranges[i].iov_len);
    }
    queue.advance(gathered.bytes);
  }
  return stream;
}

// Feeds `stream` in reads of at most `most_bytes()`. Adds the bytes that went through the window to
// `*copied`.
Status read_stream(std::string_view stream, FrameReader& reader, Receiver& receiver,
                   const std::function<size_t()>& most_bytes, size_t* window_bytes = nullptr) {
  while (!stream.empty()) {
    const FrameReader::Space space = reader.space(1 << 20);
    size_t left = std::min({stream.size(), space.bytes, most_bytes()});
    const size_t got = left;
    for (int i = 0; i < space.count && left > 0; ++i) {
      const size_t part = std::min(left, space.parts[i].iov_len);
      std::memcpy(space.parts[i].iov_base, stream.data(), part);
      stream.remove_prefix(part);
      left -= part;
      if (window_bytes && i == space.count - 1) *window_bytes += part;
    }
    BPS_RETURN_IF_ERROR(reader.advance(got, receiver));
  }
  return Status::ok();
}

std::vector<Received> random_frames(std::mt19937& random, int count, size_t most_bytes) {
  std::vector<Received> frames;
  for (int i = 0; i < count; ++i) {
    const size_t bytes[] = {0, random() % 50, random() % 3000, random() % most_bytes, random() % most_bytes};
    frames.push_back(
        {pattern(random() % (kMaxHeadBytes + 1), random()), pattern(bytes[random() % 5], random())});
  }
  return frames;
}

TEST(FrameReader, CutsAStreamRightHoweverItIsDividedIntoReads) {
  NoConnection connection;
  for (int seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const size_t most = std::array<size_t, 5>{1, 20, 3000, 70'000, SIZE_MAX}[seed % 5];
    const std::vector<Received> frames = random_frames(random, 20, most < 100 ? 4000 : 200'000);
    Recorder recorder;
    if (seed % 7 == 6) {
      recorder.head = [](Connection&, const Arrival&) -> Result<ReceiveBuffer> {
        return ReceiveBuffer::discard();
      };
    }
    FrameReader reader(connection, {kLimit});
    const Status status = read_stream(stream_of(frames), reader, recorder,
                                      [&] { return most == SIZE_MAX ? most : 1 + random() % most; });
    ASSERT_TRUE(status.is_ok()) << status;
    EXPECT_FALSE(reader.in_frame());
    const Seen seen = recorder.seen.get();
    ASSERT_EQ(seen.frames.size(), frames.size());
    for (size_t i = 0; i < frames.size(); ++i) {
      EXPECT_TRUE(seen.frames[i].head == frames[i].head);
      EXPECT_TRUE(seen.frames[i].payload == (recorder.head ? "" : frames[i].payload)) << i;
    }
  }
}

TEST(FrameReader, EveryTruncationLeavesItInsideAFrame) {
  NoConnection connection;
  const std::string stream = stream_of({{"head", pattern(100, 1)}});
  for (size_t bytes = 1; bytes < stream.size(); ++bytes) {
    Recorder recorder;
    FrameReader reader(connection, {kLimit});
    EXPECT_TRUE(read_stream(stream.substr(0, bytes), reader, recorder, [] { return SIZE_MAX; }).is_ok());
    EXPECT_TRUE(reader.in_frame()) << bytes;
    EXPECT_EQ(recorder.seen.get().frames.size(), 0u);
  }
}

TEST(FrameReader, MutatedStreamsEndInDataLossOrInFramesWithinTheLimits) {
  NoConnection connection;
  constexpr size_t kSmallLimit = 5000;
  int rejected = 0;
  for (int seed = 0; seed < 4000; ++seed) {
    std::mt19937 random(seed);
    std::string stream =
        stream_of({{"one", "payload"}, {"two", ""}, {"three", pattern(1 + random() % 600, 5)}});
    for (unsigned i = 0; i < 1 + random() % 3; ++i)
      stream[random() % stream.size()] = static_cast<char>(random());
    Recorder recorder;
    recorder.head = [&](Connection&, const Arrival& arrival) -> Result<ReceiveBuffer> {
      EXPECT_LE(arrival.payload_bytes, kSmallLimit);
      return ReceiveBuffer::discard();
    };
    FrameReader reader(connection, {kSmallLimit});
    const Status status = read_stream(stream, reader, recorder, [&] { return 1 + random() % 900; });
    if (status.is_ok()) continue;
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    ++rejected;
  }
  EXPECT_GT(rejected, 200);
}

TEST(FrameReader, LargePayloadsAreReadStraightIntoTheirLanding) {
  NoConnection connection;
  std::vector<Received> frames(10, {"head", std::string(500'000, 'x')});
  Recorder recorder;
  FrameReader reader(connection, {kLimit});
  size_t window_bytes = 0;
  ASSERT_TRUE(
      read_stream(stream_of(frames), reader, recorder, [] { return SIZE_MAX; }, &window_bytes).is_ok());
  EXPECT_LE(window_bytes, frames.size() * FrameReader::kMinWindowBytes + FrameReader::kMinWindowBytes);
}

TEST(FrameReader, ManySmallFramesTakeFewReads) {
  NoConnection connection;
  const std::string stream = stream_of(std::vector<Received>(5000, {"head", "a small payload"}));
  Recorder recorder;
  FrameReader reader(connection, {kLimit});
  int reads = 0;
  ASSERT_TRUE(read_stream(stream, reader, recorder, [&] { return ++reads, SIZE_MAX; }).is_ok());
  EXPECT_EQ(recorder.seen.get().frames.size(), 5000u);
  EXPECT_LT(reads, 20) << stream.size() << " bytes";
}

TEST(SendQueue, GathersManyFramesAndKeepsWithinItsLimits) {
  SendQueue queue;
  const std::string payload(1000, 'x');
  for (int i = 0; i < 100; ++i) queue.push(as_bytes("head"), as_bytes(payload), {});
  std::array<iovec, 512> ranges;
  EXPECT_EQ(queue.gather(ranges, SIZE_MAX).count, 200);
  EXPECT_EQ(queue.gather(ranges, SIZE_MAX).bytes, 100 * (kFramePrefixBytes + 4 + 1000));
  EXPECT_EQ(queue.gather(ranges, 1500).bytes, 1500u);
  EXPECT_EQ(queue.gather(std::span(ranges).first(6), SIZE_MAX).count, 6);
  EXPECT_EQ(ranges[1].iov_base, payload.data()) << "payloads are not copied";
}

TEST(SendQueue, CompletesEachFrameWhenItsLastByteIsWritten) {
  SendQueue queue;
  SentLog sent;
  const std::string payload(10, 'x');
  const size_t frame_bytes = kFramePrefixBytes + 1 + payload.size();
  for (int i = 0; i < 3; ++i) queue.push(as_bytes("h"), as_bytes(payload), sent.expect_one());
  queue.advance(frame_bytes - 1);
  EXPECT_EQ(sent.done(), 0u);
  queue.advance(1);
  EXPECT_EQ(sent.done(), 1u);
  queue.advance(frame_bytes + 5);
  EXPECT_EQ(sent.done(), 2u);
  std::array<iovec, 8> ranges;
  EXPECT_EQ(queue.gather(ranges, SIZE_MAX).bytes, frame_bytes - 5);
  queue.fail(aborted("enough"));
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(sent.all().back().code(), StatusCode::kAborted);
}

}  // namespace
}  // namespace byteps::transport
