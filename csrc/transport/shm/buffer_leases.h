// Both ends' records of the leases of a connection, and the references that they exchange: bytes
// before the head of every frame, which say where the payload is. Layout: docs/wire-format.md,
// "Shared memory".
//
// Without sockets or threads. The memory of a lease begins at byte (lease - 1) * kLeaseUnitBytes of
// the segment. A payload that is in the segment already is lent where it is. The peer is not trusted: LeaseOwner and LeaseHolder check references against the
// memory and the existing leases.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>

#include "base/bytes.h"
#include "base/status.h"
#include "transport/slots.h"
#include "transport/transport.h"

namespace byteps::transport {

inline constexpr size_t kReferenceBytes = 16;
inline constexpr size_t kLeaseUnitBytes = 64;
// Of large payloads that are answered soon, a connection leases no more than this at a time, or two
// payloads if that is more. Four ranks have twelve connections, whose leases share a cache. With
// tensors of 64 MiB and leases of up to 2 MiB for each connection, a push_pull took 1.2 times as
// long between two ranks, 1.3 times between four and 1.4 times between eight (two cores of an AMD
// EPYC with 8 MiB of cache). Small payloads may fill all memory: to let them wait costs more than
// the cache saves. Many of those that wait for the network have to be under way at once.
inline constexpr size_t kMostLeasedBytes = 512 << 10;
inline constexpr size_t kLargePayloadBytes = 64 << 10;

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

// Decodes the reference that `in` begins with. kDataLoss: a field is invalid. Does not check whether
// the lease exists.
Result<Reference> decode_reference(Bytes in);

constexpr LeaseId lease_at(size_t offset) { return static_cast<LeaseId>(offset / kLeaseUnitBytes + 1); }
constexpr size_t offset_of(LeaseId lease) { return (size_t{lease} - 1) * kLeaseUnitBytes; }

// The connecting end, which owns the memory.
class LeaseOwner {
 public:
  // `arena`: the part of the segment for payloads that have to be copied.
  LeaseOwner(MutableBytes segment, MutableBytes arena);
  explicit LeaseOwner(MutableBytes memory) : LeaseOwner(memory, memory) {}

  // Whether `payload` can be leased at all: it is not empty, and is in the segment or fits into the
  // arena.
  bool may_lease(const Payload& payload) const;
  // Copies the data to a slot with room for the answer, too, or lends it where it is. Returns nullopt
  // if no slot is free, or
  // so much is leased that it would not stay in the cache (kMostLeasedBytes).
  std::optional<Reference> lease(const Payload& payload);
  // The answer that a kReturned refers to; valid until take_back(). kDataLoss: no such lease, or
  // the answer exceeds its reply space.
  Result<Bytes> answer(const Reference& returned) const;
  // Returns kDataLoss if there is no such lease.
  Status take_back(LeaseId lease);

 private:
  struct Granted {
    size_t slot_bytes;  // 0: not in the arena
    size_t reply_bytes;
  };
  // Where the payload is in the segment outside of the arena, if it can be lent there.
  std::optional<LeaseId> place_of(const Payload& payload) const;
  const MutableBytes memory_;
  const size_t arena_offset_;
  const size_t arena_bytes_;
  Slots slots_;  // in the arena
  std::unordered_map<LeaseId, Granted> granted_;
  size_t granted_bytes_ = 0;
};

// The accepting end.
class LeaseHolder {
 public:
  struct LeasedMemory {
    Bytes data;
    MutableBytes reply_space;
  };
  explicit LeaseHolder(MutableBytes memory) : memory_(memory) {}

  // The memory that a kLent refers to. kDataLoss: outside of the segment, or leased already.
  Result<LeasedMemory> accept(const Reference& granted);
  // Returns `lease`, which must be held. The result is of type kReturned if `answer` begins at its
  // reply space, and kInline if the answer has to be sent.
  Reference return_lease(LeaseId lease, Bytes answer);

 private:
  const MutableBytes memory_;
  std::unordered_map<LeaseId, MutableBytes> reply_spaces_;  // of the held leases
};

}  // namespace byteps::transport
