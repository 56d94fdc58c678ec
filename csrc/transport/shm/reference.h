// The bytes before the head of every shared-memory frame, which say where the payload is. Layout:
// docs/wire-format.md, "Shared memory".
//
// Pure. The memory of a lease begins at byte (lease - 1) * kLeaseUnitBytes of the segment.
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
  kInline = 1,  // the payload follows the head; may return `lease`
  // From the owner: a payload of `data_bytes` at `lease`, with room for an answer of `reply_bytes`.
  kLent = 2,
  // From the holder: an answer of `data_bytes` at `lease`, which is returned once it has been read.
  kReturned = 3,
  kGivenBack = 4,  // from the holder, without head: returns `lease`
  kStarving = 5,   // from the owner, without head: frames wait for a free slot
};

struct Reference {
  ReferenceType type = ReferenceType::kInline;
  LeaseId lease = kNoLease;
  uint32_t data_bytes = 0;
  uint32_t reply_bytes = 0;
  bool operator==(const Reference&) const = default;
};

void encode_reference(const Reference& reference, std::span<std::byte, kReferenceBytes> out);

// Decodes the reference that `in` begins with. kDataLoss: a field is invalid. Does not check
// whether the lease exists.
Result<Reference> decode_reference(Bytes in);

constexpr LeaseId lease_at(size_t offset) { return static_cast<LeaseId>(offset / kLeaseUnitBytes + 1); }
constexpr size_t offset_of(LeaseId lease) { return (size_t{lease} - 1) * kLeaseUnitBytes; }

}  // namespace byteps::transport
