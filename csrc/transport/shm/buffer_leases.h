// Both ends' view of the leases of one connection. No socket: what is sent between the two is a Reference.
//
// Nothing that the other end says is trusted: references are checked against the memory and against what is lent.
#pragma once

#include <optional>
#include <unordered_map>

#include "base/bytes.h"
#include "base/status.h"
#include "transport/shm/reference.h"
#include "transport/slots.h"

namespace byteps::transport {

// The connecting end, whose memory it is.
class LeaseOwner {
 public:
  explicit LeaseOwner(MutableBytes memory);

  // Whether `payload` is ever lent: not if it has nothing to lend, or is larger than the memory.
  bool may_lend(const Payload& payload) const;
  // Copies the data to a slot that has room for the answer, too; nothing if there is no such slot now.
  std::optional<Reference> lend(const Payload& payload);
  // The answer that kReturned refers to; valid until take_back(). kDataLoss: no such lease, or more than there is room for.
  Result<Bytes> answer(const Reference& returned) const;
  // kDataLoss: no such lease.
  Status take_back(LeaseId lease);
  size_t lent() const { return lent_.size(); }

 private:
  struct Lent {
    size_t slot_bytes;
    size_t reply_bytes;
  };
  const MutableBytes memory_;
  Slots slots_;
  std::unordered_map<LeaseId, Lent> lent_;
};

// The accepting end.
class LeaseHolder {
 public:
  struct Borrowed {
    Bytes data;
    MutableBytes reply_space;
  };
  explicit LeaseHolder(MutableBytes memory) : memory_(memory) {}

  // What kLent refers to. kDataLoss: outside of the memory, or lent already.
  Result<Borrowed> borrow(const Reference& lent);
  // The reference that gives `lease` back: kReturned if `answer` begins where its reply space does, kInline if it
  // has to be sent. The lease has to be out.
  Reference return_lease(LeaseId lease, Bytes answer);
  size_t borrowed() const { return reply_spaces_.size(); }

 private:
  const MutableBytes memory_;
  std::unordered_map<LeaseId, MutableBytes> reply_spaces_;  // of what is borrowed
};

}  // namespace byteps::transport
