#include "transport/rdma/record.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "transport/rdma/ring.h"

namespace byteps::transport::rdma {
namespace {

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
