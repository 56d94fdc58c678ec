// The ring of one direction of an RDMA connection: memory of the receiving end that the sending end
// writes records to. A record has a fixed part, a frame's head, and payload if small. Layout:
// docs/wire-format.md, "RDMA".
//
// Pure. RingWriter and RingReader handle positions, not memory: both ends count alike, so positions
// are not transmitted.
// Positions and sizes are in units. A record is contiguous, so units at the end of the ring may be
// skipped; they count as sent and as consumed. The sending end assembles records in a staging ring
// of the same layout, whose units are free again when the peer has consumed them.
//
// A lease is a number chosen by the sender of a frame for memory involved in it: a receive buffer
// of the peer that the payload was written to (announced by kReserved), or a reply space of the
// sender that the peer may write the answer to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/bytes.h"
#include "base/status.h"
#include "transport/transport.h"

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
  uint32_t sent_ = 0;  // this and consumed_: modulo the mask
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
  uint32_t read_ = 0;
  uint32_t consumed_ = 0;
};

inline constexpr size_t kRecordBytes = 48;
// Largest payload copied through the ring; larger ones are written to memory of their own.
inline constexpr size_t kEagerBytes = 4096;
inline constexpr size_t kMaxRecordBytes = kRecordBytes + kMaxHeadBytes + kEagerBytes;

enum class RecordType : uint8_t {
  kFrame = 1,     // head, and all or the first bytes of the payload
  kMore = 2,      // further bytes of the payload
  kPlaced = 3,    // head; the payload is in the receive buffer `lease`
  kAnswered = 4,  // head; the payload is in the reply space of `returns_lease`
  kReserve = 5,   // requests a receive buffer of `payload_bytes` with the number `lease`
  kReserved = 6,  // grants it at `address`; 0: no memory
  kRelease = 7,   // frees the receive buffer `lease`
  kGiveBack = 8,  // returns `returns_lease`
  kEnd = 9,       // no frame follows
};

struct Record {
  RecordType type = RecordType::kFrame;
  uint16_t head_bytes = 0;
  uint32_t consumed = 0;             // RingReader::consumed of the other direction
  LeaseId lease = kNoLease;          // lease of this record's sender; kReserved: of its receiver
  LeaseId returns_lease = kNoLease;  // lease of the receiver of this record
  uint64_t payload_bytes = 0;        // of the whole frame
  uint32_t inline_bytes = 0;         // bytes of the payload in this record
  // kFrame, kPlaced: where an answer of at most `reply_bytes` goes; kReserved: the receive buffer.
  uint64_t address = 0;
  uint32_t key = 0;
  uint64_t reply_bytes = 0;
  bool operator==(const Record&) const = default;
};

void encode_record(const Record& record, std::span<std::byte, kRecordBytes> out);

// Decodes a record of `in.size()` bytes, padding included. kDataLoss: a field is invalid, or a
// length exceeds `in` or `max_payload_bytes`. Does not check whether leases exist.
Result<Record> decode_record(Bytes in, uint64_t max_payload_bytes);

// The `consumed` field of the record that `in` (at least kRecordBytes) begins with. It takes effect
// on arrival, before the record is processed.
uint32_t consumed_of(Bytes in);

// Immediate data is the number of a record's units or, with this flag, that of consumed units.
constexpr uint32_t kConsumedFlag = 0x80000000;

}  // namespace byteps::transport::rdma
