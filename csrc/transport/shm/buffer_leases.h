// Both ends' records of the leases of a connection. Without sockets: the ends exchange References.
//
// The peer is not trusted: references are checked against the memory and the existing leases.
#pragma once

#include <optional>
#include <unordered_map>

#include "base/bytes.h"
#include "base/status.h"
#include "transport/shm/reference.h"
#include "transport/slots.h"

namespace byteps::transport {

// The connecting end, which owns the memory.
class LeaseOwner {
 public:
  explicit LeaseOwner(MutableBytes memory);

  // Whether `payload` can be leased at all: it is not empty and fits into the memory.
  bool may_lease(const Payload& payload) const;
  // Copies the data to a slot that has room for the answer, too. Returns nullopt if no slot is
  // free.
  std::optional<Reference> lease(const Payload& payload);
  // The answer that a kReturned refers to; valid until take_back(). kDataLoss: no such lease, or
  // the answer exceeds its reply space.
  Result<Bytes> answer(const Reference& returned) const;
  // Returns kDataLoss if there is no such lease.
  Status take_back(LeaseId lease);

 private:
  struct Granted {
    size_t slot_bytes;
    size_t reply_bytes;
  };
  const MutableBytes memory_;
  Slots slots_;
  std::unordered_map<LeaseId, Granted> granted_;
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
