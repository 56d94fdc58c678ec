// Where the records of one direction of a connection lie: a ring in memory of the end that receives, which the end that
// sends writes to, and a copy of it of the same size at the end that sends, where records are put together.
//
// Pure: positions, no memory. Both ends count alike, so that nobody says where a record begins. Positions and sizes are in
// units; a record lies in one piece, so the end of the ring may be skipped, and what is skipped counts as sent and as
// consumed. As the copy has the same layout, a place in it is free again when it is consumed at the other end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/status.h"

namespace byteps::transport::rdma {

inline constexpr size_t kRingBytes = size_t{64} << 10;
inline constexpr size_t kUnitBytes = 256;
inline constexpr uint32_t kRingUnits = kRingBytes / kUnitBytes;
// Of the counts that travel; differences are taken in as many bits.
inline constexpr uint32_t kCountMask = 0x7fffffff;

constexpr uint32_t units_of(size_t bytes) {
  return static_cast<uint32_t>((bytes + kUnitBytes - 1) / kUnitBytes);
}

class RingWriter {
 public:
  // Where the next record of so many units (at least 1, at most half a ring) begins; none: no room until more is consumed.
  std::optional<uint32_t> place(uint32_t units);
  // The other end has consumed so many units in all, modulo the mask. kDataLoss: more than was sent.
  Status on_consumed(uint32_t total);
  uint32_t outstanding() const { return (sent_ - consumed_) & kCountMask; }

 private:
  uint32_t next_ = 0;  // position
  uint32_t sent_ = 0;
  uint32_t consumed_ = 0;
};

class RingReader {
 public:
  struct Place {
    uint32_t position = 0;
    uint32_t units = 0;
    uint32_t total = 0;  // consumed when this record is, modulo the mask
  };
  // Where the record of so many units is that has come. kDataLoss: no record has that size.
  Result<Place> next(uint32_t units);
  // That record, and all before it, are not needed any more.
  void consume(const Place& place) { consumed_ = place.total; }
  // In all, modulo the mask.
  uint32_t consumed() const { return consumed_; }

 private:
  uint32_t next_ = 0;
  uint32_t read_ = 0;
  uint32_t consumed_ = 0;
};

}  // namespace byteps::transport::rdma
