#include "transport/rdma/ring.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <vector>

#include "transport/rdma/record.h"

namespace byteps::transport::rdma {
namespace {

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

}  // namespace
}  // namespace byteps::transport::rdma
