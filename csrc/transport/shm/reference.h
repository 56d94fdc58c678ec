// What stands in front of the head of every shared-memory frame: where the payload is. Layout: docs/wire-format.md,
// "Shared memory".
//
// Pure. A lease's number says where it lies: it begins at byte (lease - 1) * kLeaseUnitBytes of the segment.
#pragma once

#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "base/status.h"
#include "transport/transport.h"

namespace byteps::transport {

inline constexpr size_t kReferenceBytes = 16;
inline constexpr size_t kLeaseUnitBytes = 64;

enum class ReferenceType : uint8_t {
  kInline = 1,     // the payload follows the head; may give `lease` back
  kLent = 2,       // lease_owner only: `data_bytes` lie at `lease`, and room for an answer of `reply_bytes`
  kReturned = 3,   // lease_holder only: `data_bytes` lie at `lease`, which is given back when they were read
  kGivenBack = 4,  // lease_holder only, without head: `lease` is not needed any more
  kStarving = 5,   // lease_owner only, without head: frames wait for room
};

struct Reference {
  ReferenceType type = ReferenceType::kInline;
  LeaseId lease = kNoLease;
  uint32_t data_bytes = 0;
  uint32_t reply_bytes = 0;
  bool operator==(const Reference&) const = default;
};

void encode_reference(const Reference& reference, std::span<std::byte, kReferenceBytes> out);

// Of the frame that begins with `in`. kDataLoss: a field breaks a rule. Whether the lease exists is not known here.
Result<Reference> decode_reference(Bytes in);

constexpr LeaseId lease_at(size_t offset) { return static_cast<LeaseId>(offset / kLeaseUnitBytes + 1); }
constexpr size_t offset_of(LeaseId lease) { return (size_t{lease} - 1) * kLeaseUnitBytes; }

}  // namespace byteps::transport
