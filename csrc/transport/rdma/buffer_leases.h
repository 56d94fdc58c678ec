// What one end of an RDMA connection has agreed with the other about memory: the receive_buffers that it has there, and what it
// has lent of its own for answers. Pure: numbers and records; the other end's view is in incoming.h.
//
// Every receive_buffer and everything lent has a number, a lease, of this end. A frame that goes to a receive_buffer lends its reply
// space, if it has one, under the receive_buffer's number.
#pragma once

#include <deque>
#include <string>
#include <unordered_map>

#include "transport/rdma/record.h"
#include "transport/rdma/registrations.h"

namespace byteps::transport::rdma {

// Memory of the other end. `bytes` 0: none.
struct RemoteMemory {
  uint64_t address = 0;
  uint32_t key = 0;
  uint64_t bytes = 0;
};

// What the other end may write its answer to. `registration`: none where it may not.
struct LentReplySpace {
  MutableBytes reply_space;
  Registrations::Ref registration;
};

class BufferLeases {
 public:
  // `controls`: gets what the other end has to be told. `peer`: for messages.
  BufferLeases(std::deque<Record>& controls, std::string peer)
      : controls_(controls), peer_(std::move(peer)) {}

  // A number that is not in use.
  LeaseId next();

  // A receive_buffer for one frame of so many bytes: the one of that place (Payload::place), if it is large enough and not in
  // use; else the other end is asked for one.
  LeaseId reserve(uint64_t reuse_key, uint64_t bytes);
  // Whether the other end has answered. kDataLoss: it was not asked.
  Status on_reserved(const Record& reserved);
  bool is_answered(LeaseId receive_buffer) const { return remote_buffers_.at(receive_buffer).answered; }
  // Of one that is answered; address 0: the other end has no memory for it.
  const RemoteMemory& target(LeaseId receive_buffer) const {
    return remote_buffers_.at(receive_buffer).target;
  }
  // Nothing is written there any more, and nothing in it is needed.
  void release(LeaseId receive_buffer);

  // From now on the other end may use this number: the frame of that receive_buffer, or of a number of its own, is posted.
  void lend(LeaseId lease, LentReplySpace lent) { lent_[lease] = std::move(lent); }
  // Where its answer of so many bytes lies. kDataLoss: there is no such room.
  Result<MutableBytes> reply_space(LeaseId lease, uint64_t bytes) const;
  // The other end gives it back. kDataLoss: it has no such lease.
  Status take_back(LeaseId lease);
  void clear();

 private:
  struct RemoteBuffer {
    uint64_t capacity_bytes = 0;
    uint64_t reuse_key = 0;  // 0: for one frame
    bool busy = true;
    bool answered = false;
    RemoteMemory target;
  };

  // The receive_buffer of that place that may be used now, or none.
  LeaseId find_free(uint64_t& reuse_key, uint64_t bytes);

  std::deque<Record>& controls_;
  const std::string peer_;
  LeaseId last_ = kNoLease;
  std::unordered_map<LeaseId, RemoteBuffer> remote_buffers_;
  std::unordered_map<uint64_t, LeaseId> reusable_;
  std::unordered_map<LeaseId, LentReplySpace> lent_;
};

}  // namespace byteps::transport::rdma
