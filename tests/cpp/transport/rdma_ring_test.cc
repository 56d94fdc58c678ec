#include "transport/rdma/ring.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <vector>

namespace byteps::transport::rdma {
namespace {

// ---- Positions ----

struct Sent {
  uint32_t position;
  uint32_t units;
};

// A writer, a reader, and a record of the units in use.
class Ring {
 public:
  bool write(uint32_t units) {
    const auto position = writer.allocate(units);
    if (!position) return false;
    EXPECT_LE(*position + units, kRingUnits) << "a record lies in one piece";
    for (uint32_t i = 0; i < units; ++i) {
      EXPECT_FALSE(used_[*position + i]) << "overwritten before it was read: " << *position + i;
      used_[*position + i] = true;
    }
    sent.push_back({*position, units});
    return true;
  }
  void read() {
    const Sent expected = sent.front();
    sent.pop_front();
    const auto extent = reader.next(expected.units);
    ASSERT_TRUE(extent.is_ok()) << extent.status();
    EXPECT_EQ(extent->position, expected.position);
    for (uint32_t i = 0; i < expected.units; ++i) used_[extent->position + i] = false;
    reader.consume(*extent);
  }
  void tell() { EXPECT_TRUE(writer.on_consumed(reader.consumed()).is_ok()); }

  RingWriter writer;
  RingReader reader;
  std::deque<Sent> sent;

 private:
  std::vector<bool> used_ = std::vector<bool>(kRingUnits);
};

TEST(RdmaRingTest, BothEndsAgreeWhateverTheSizesAndNothingIsOverwritten) {
  for (const uint32_t largest : {1u, 2u, 18u, 19u, kRingUnits / 2}) {
    std::mt19937 random(largest);
    Ring ring;
    for (int step = 0; step < 50'000; ++step) {
      const bool went = random() % 2 != 0 && ring.write(1 + random() % largest);
      if (!went && !ring.sent.empty()) ring.read();
      if (random() % 3 == 0) ring.tell();
      if (HasFailure()) return;
    }
  }
}

TEST(RdmaRingTest, AWriterThatWaitsForRoomIsNeverStuckOnceAllWasConsumed) {
  for (uint32_t offset = 0; offset < kRingUnits; ++offset) {
    Ring ring;
    for (uint32_t i = 0; i < offset; ++i) {
      ASSERT_TRUE(ring.write(1));
      ring.read();
    }
    ring.tell();
    ASSERT_EQ(ring.writer.outstanding(), 0u);
    EXPECT_TRUE(ring.write(kRingUnits / 2)) << offset;
  }
}

TEST(RdmaRingTest, IsFullWhenAllUnitsAreTakenAndNotBefore) {
  Ring ring;
  for (uint32_t i = 0; i < kRingUnits; ++i) ASSERT_TRUE(ring.write(1)) << i;
  EXPECT_FALSE(ring.write(1));
  ring.read();
  EXPECT_FALSE(ring.write(1)) << "the writer has not been told";
  ring.tell();
  EXPECT_TRUE(ring.write(1));
  EXPECT_FALSE(ring.write(1));
}

// 2^31 units in large records, some of which skip the end, so that the counts wrap.
TEST(RdmaRingTest, CountsWrap) {
  uint64_t units = 0;
  const uint64_t wanted = uint64_t{kCountMask} + 1 + 5 * kRingUnits;
  uint32_t consumed_before = 0;
  bool wrapped = false;
  RingWriter writer;
  RingReader reader;
  while (units < wanted) {
    const auto position = writer.allocate(kRingUnits / 2);
    const auto extent = reader.next(kRingUnits / 2);
    ASSERT_TRUE(position && extent.is_ok() && *position == extent->position);
    reader.consume(*extent);
    ASSERT_TRUE(writer.on_consumed(reader.consumed()).is_ok());
    wrapped |= reader.consumed() < consumed_before;
    consumed_before = reader.consumed();
    units += kRingUnits / 2;
  }
  EXPECT_TRUE(wrapped);
  EXPECT_LE(reader.consumed(), kCountMask);
  EXPECT_EQ(writer.outstanding(), 0u);
}

TEST(RdmaRingTest, MoreConsumedThanSentIsRefusedAndChangesNothing) {
  for (const uint32_t lie : {6u, 7u, 0x40000000u, kCountMask}) {
    RingWriter writer;
    ASSERT_EQ(writer.allocate(5), 0u);
    EXPECT_EQ(writer.on_consumed(lie).code(), StatusCode::kDataLoss) << lie;
    EXPECT_EQ(writer.outstanding(), 5u);
    EXPECT_TRUE(writer.on_consumed(3).is_ok());
    EXPECT_EQ(writer.on_consumed(2).code(), StatusCode::kDataLoss) << "less than before";
    EXPECT_EQ(writer.outstanding(), 2u);
    EXPECT_TRUE(writer.on_consumed(5).is_ok());
  }
}

TEST(RdmaRingTest, NoRecordIsEmptyOrLargerThanHalfARing) {
  for (const uint32_t units : {0u, kRingUnits / 2 + 1, kRingUnits, 0x7fffffffu, 0xffffffffu}) {
    EXPECT_EQ(RingReader().next(units).status().code(), StatusCode::kDataLoss) << units;
  }
  EXPECT_TRUE(RingReader().next(kRingUnits / 2));
  EXPECT_LE(units_of(kMaxRecordBytes), kRingUnits / 2);
  EXPECT_EQ(units_of(1), 1u);
  EXPECT_EQ(units_of(kUnitBytes), 1u);
  EXPECT_EQ(units_of(kUnitBytes + 1), 2u);
}

// ---- Records ----

constexpr uint64_t kMaxPayloadBytes = 1 << 20;

// At least one record of each type and form.
std::vector<Record> good_records() {
  return {
      {.type = RecordType::kFrame, .head_bytes = 256, .consumed = kCountMask},
      {.type = RecordType::kFrame},
      {.type = RecordType::kFrame,
       .head_bytes = 3,
       .returns_lease = 9,
       .payload_bytes = 10,
       .inline_bytes = 10},
      {.type = RecordType::kFrame,
       .head_bytes = 40,
       .lease = 7,
       .payload_bytes = kMaxPayloadBytes,
       .inline_bytes = 4096,
       .address = 0x7f0000001000,
       .key = 0x1234,
       .reply_bytes = 70'000},
      {.type = RecordType::kMore, .inline_bytes = 4096},
      {.type = RecordType::kPlaced, .head_bytes = 8, .lease = 1, .payload_bytes = 65'536},
      {.type = RecordType::kPlaced,
       .head_bytes = 8,
       .lease = 0xffffffff,
       .returns_lease = 3,
       .payload_bytes = 65'536,
       .address = UINT64_MAX,
       .key = 0xffffffff,
       .reply_bytes = kMaxPayloadBytes},
      {.type = RecordType::kAnswered, .head_bytes = 8, .returns_lease = 5, .payload_bytes = 65'536},
      {.type = RecordType::kReserve, .lease = 2, .payload_bytes = 65'536},
      {.type = RecordType::kReserved, .lease = 2, .address = 0x7f0000001000, .key = 77},
      {.type = RecordType::kReserved, .lease = 2},
      {.type = RecordType::kRelease, .lease = 2},
      {.type = RecordType::kGiveBack, .returns_lease = 2},
      {.type = RecordType::kEnd},
  };
}

// The record as it is in the ring, in whole units.
std::vector<std::byte> in_ring(const Record& record) {
  const size_t bytes = kRecordBytes + record.head_bytes + record.inline_bytes;
  std::vector<std::byte> ring(units_of(bytes) * kUnitBytes);
  encode_record(record, std::span(ring).first<kRecordBytes>());
  return ring;
}

void expect_within_limits(const Record& record, size_t bytes) {
  EXPECT_LE(kRecordBytes + record.head_bytes + record.inline_bytes, bytes);
  EXPECT_LE(record.head_bytes, kMaxHeadBytes);
  EXPECT_LE(record.inline_bytes, kEagerBytes);
  EXPECT_LE(record.payload_bytes, kMaxPayloadBytes);
  EXPECT_LE(record.reply_bytes, kMaxPayloadBytes);
  EXPECT_LE(record.consumed, kCountMask);
  EXPECT_GE(static_cast<int>(record.type), 1);
  EXPECT_LE(static_cast<int>(record.type), 9);
}

TEST(RdmaRecordTest, EveryTypeArrivesAsItWasSent) {
  for (const Record& record : good_records()) {
    const auto bytes = in_ring(record);
    const auto decoded = decode_record(bytes, kMaxPayloadBytes);
    ASSERT_TRUE(decoded.is_ok()) << decoded.status();
    EXPECT_EQ(*decoded, record) << static_cast<int>(record.type);
    EXPECT_EQ(consumed_of(bytes), record.consumed);
  }
}

TEST(RdmaRecordTest, EveryChangedByteIsRefusedOrStaysWithinTheLimits) {
  for (const Record& record : good_records()) {
    const auto good = in_ring(record);
    for (size_t at = 0; at < kRecordBytes; ++at) {
      for (int value = 0; value < 256; ++value) {
        auto bytes = good;
        bytes[at] = static_cast<std::byte>(value);
        const auto decoded = decode_record(bytes, kMaxPayloadBytes);
        if (decoded) {
          expect_within_limits(*decoded, bytes.size());
        } else {
          EXPECT_EQ(decoded.status().code(), StatusCode::kDataLoss);
        }
      }
      if (HasFailure()) return;
    }
  }
}

TEST(RdmaRecordTest, NoiseIsRefusedOrStaysWithinTheLimits) {
  std::mt19937_64 random(1);
  int accepted = 0;
  for (int i = 0; i < 200'000; ++i) {
    // Small values in most fields, as uniformly random bytes would hardly ever be close to a valid
    // record.
    std::array<std::byte, kRecordBytes> bytes{};
    for (const size_t at : {0, 2, 4, 8, 12, 16, 24, 28, 32, 40}) {
      if (random() % 2 != 0) bytes[at] = static_cast<std::byte>(random() % 12);
      if (random() % 8 == 0) bytes[at + 1] = static_cast<std::byte>(random());
    }
    const auto decoded = decode_record(bytes, kMaxPayloadBytes);
    if (!decoded) continue;
    ++accepted;
    expect_within_limits(*decoded, bytes.size());
    if (HasFailure()) return;
  }
  EXPECT_GT(accepted, 0);
}

TEST(RdmaRecordTest, OneThatIsCutShortIsRefused) {
  const auto bytes =
      in_ring({.type = RecordType::kFrame, .head_bytes = 200, .payload_bytes = 100, .inline_bytes = 100});
  for (size_t size = 0; size < kRecordBytes + 300; ++size) {
    EXPECT_EQ(decode_record(Bytes(bytes).first(size), kMaxPayloadBytes).status().code(),
              StatusCode::kDataLoss);
  }
  EXPECT_TRUE(decode_record(Bytes(bytes).first(kRecordBytes + 300), kMaxPayloadBytes));
}

TEST(RdmaRecordTest, FieldsThatDoNotFitTogetherAreRefused) {
  const std::vector<Record> bad{
      {.type = static_cast<RecordType>(0)},
      {.type = static_cast<RecordType>(10)},
      {.type = RecordType::kFrame, .payload_bytes = 1},
      {.type = RecordType::kFrame, .payload_bytes = 1, .inline_bytes = 2},
      {.type = RecordType::kFrame, .payload_bytes = kMaxPayloadBytes + 1, .inline_bytes = 1},
      {.type = RecordType::kFrame, .lease = 1},
      {.type = RecordType::kFrame, .lease = 1, .reply_bytes = 5},
      {.type = RecordType::kFrame, .lease = 1, .address = 5},
      {.type = RecordType::kFrame, .address = 5, .reply_bytes = 5},
      {.type = RecordType::kFrame, .lease = 1, .address = 5, .reply_bytes = kMaxPayloadBytes + 1},
      {.type = RecordType::kFrame, .head_bytes = 257},
      {.type = RecordType::kFrame, .consumed = kCountMask + 1},
      {.type = RecordType::kMore},
      {.type = RecordType::kMore, .inline_bytes = 4097},
      {.type = RecordType::kMore, .head_bytes = 1, .inline_bytes = 1},
      {.type = RecordType::kPlaced, .payload_bytes = 1},
      {.type = RecordType::kPlaced, .lease = 1},
      {.type = RecordType::kPlaced, .lease = 1, .payload_bytes = 1, .inline_bytes = 1},
      {.type = RecordType::kAnswered, .payload_bytes = 1},
      {.type = RecordType::kAnswered, .lease = 1, .returns_lease = 1, .payload_bytes = 1},
      {.type = RecordType::kReserve, .lease = 1},
      {.type = RecordType::kReserve, .payload_bytes = 1},
      {.type = RecordType::kReserve, .lease = 1, .payload_bytes = kMaxPayloadBytes + 1},
      {.type = RecordType::kReserved, .lease = 1, .payload_bytes = 1},
      {.type = RecordType::kReserved},
      {.type = RecordType::kRelease},
      {.type = RecordType::kGiveBack},
      {.type = RecordType::kGiveBack, .lease = 1, .returns_lease = 1},
      {.type = RecordType::kEnd, .lease = 1},
      {.type = RecordType::kEnd, .head_bytes = 1},
  };
  for (const Record& record : bad) {
    EXPECT_EQ(decode_record(in_ring(record), kMaxPayloadBytes).status().code(), StatusCode::kDataLoss)
        << static_cast<int>(record.type) << " " << &record - bad.data();
  }
}

}  // namespace
}  // namespace byteps::transport::rdma
