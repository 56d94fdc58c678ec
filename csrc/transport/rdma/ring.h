// Positions of the records of one direction of a connection. The ring is memory of the receiving
// end that the sending end writes to. The sending end assembles records in a staging ring of the
// same size.
//
// Pure: handles positions, not memory. Both ends count alike, so positions are not transmitted.
// Positions and sizes are in units. A record is contiguous, so units at the end of the ring may be
// skipped; they count as sent and as consumed. As the staging ring has the same layout, its units
// are free again when the peer has consumed them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/status.h"

namespace byteps::transport::rdma {

inline constexpr size_t kRingBytes = size_t{64} << 10;
inline constexpr size_t kUnitBytes = 256;
inline constexpr uint32_t kRingUnits = kRingBytes / kUnitBytes;
// Mask of transmitted counts, which wrap.
inline constexpr uint32_t kCountMask = 0x7fffffff;

constexpr uint32_t units_of(size_t bytes) {
  return static_cast<uint32_t>((bytes + kUnitBytes - 1) / kUnitBytes);
}

class RingWriter {
 public:
  // Allocates the next record of `units` (1 to half a ring). Returns its position, or nullopt if
  // there is no room until the peer consumes more.
  std::optional<uint32_t> allocate(uint32_t units);
  // The peer has consumed `total` units so far, modulo the mask. kDataLoss: more than were sent.
  Status on_consumed(uint32_t total);
  uint32_t outstanding() const { return (sent_ - consumed_) & kCountMask; }

 private:
  uint32_t next_ = 0;  // position
  uint32_t sent_ = 0;
  uint32_t consumed_ = 0;
};

class RingReader {
 public:
  struct Extent {
    uint32_t position = 0;
    uint32_t units = 0;
    uint32_t total = 0;  // consumed units including this record, modulo the mask
  };
  // Returns where the next record, of that many units, is. kDataLoss: invalid size.
  Result<Extent> next(uint32_t units);
  // This record and all before it are no longer needed.
  void consume(const Extent& extent) { consumed_ = extent.total; }
  // Total consumed units, modulo the mask.
  uint32_t consumed() const { return consumed_; }

 private:
  uint32_t next_ = 0;
  uint32_t read_ = 0;
  uint32_t consumed_ = 0;
};

}  // namespace byteps::transport::rdma
