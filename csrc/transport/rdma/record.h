// What travels through the ring of an RDMA connection (ring.h): a fixed part, a frame's head, and perhaps payload. Layout:
// docs/wire-format.md, "RDMA".
//
// Pure. Words: who sends a frame has a number for it, the lease, if the other end keeps something for it: memory that the
// payload was written to (a receive_buffer, announced by kReserved), or the right to write the answer into the sender's memory.
#pragma once

#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "base/status.h"
#include "transport/transport.h"

namespace byteps::transport::rdma {

inline constexpr size_t kRecordBytes = 48;
// Payload that is copied through the ring at a time; the least that is worth memory of its own.
inline constexpr size_t kEagerBytes = 4096;
inline constexpr size_t kMaxRecordBytes = kRecordBytes + kMaxHeadBytes + kEagerBytes;

enum class RecordType : uint8_t {
  kFrame = 1,     // head and, of the payload, the first bytes or all
  kMore = 2,      // further bytes of the payload
  kPlaced = 3,    // head; the payload lies in the receive_buffer `lease`
  kAnswered = 4,  // head; the payload lies in the reply space of `returns_lease`
  kReserve = 5,   // a receive_buffer of `payload_bytes` is wanted, to be called `lease`
  kReserved = 6,  // it is at `address`; 0: there is none
  kRelease = 7,   // the receive_buffer `lease` is not wanted any more
  kGiveBack = 8,  // `returns_lease` is not needed any more
  kEnd = 9,       // no frame follows
};

struct Record {
  RecordType type = RecordType::kFrame;
  uint16_t head_bytes = 0;
  uint32_t consumed = 0;             // of the ring of the other direction, RingReader::consumed
  LeaseId lease = kNoLease;          // of the end that sends this record, but for kReserved
  LeaseId returns_lease = kNoLease;  // of the end that receives it
  uint64_t payload_bytes = 0;        // of the whole frame
  uint32_t inline_bytes = 0;         // of them, in this record
  // kFrame, kPlaced: where the answer goes, if it has at most `reply_bytes`; kReserved: the receive_buffer.
  uint64_t address = 0;
  uint32_t key = 0;
  uint64_t reply_bytes = 0;
  bool operator==(const Record&) const = default;
};

void encode_record(const Record& record, std::span<std::byte, kRecordBytes> out);

// Of the record of `in.size()` bytes, padding included, that begins with `in`. kDataLoss: a field breaks a rule; lengths
// are within `in` and `max_payload_bytes`. Whether leases exist is not known here.
Result<Record> decode_record(Bytes in, uint64_t max_payload_bytes);

// What `consumed` is of the record that begins with `in`, at least kRecordBytes. It counts when the record comes.
uint32_t consumed_of(Bytes in);

// The immediate of a write: how many units the record has, or how many have been consumed.
constexpr uint32_t kConsumedFlag = 0x80000000;

}  // namespace byteps::transport::rdma
