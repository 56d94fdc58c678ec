// The leases of one end of an RDMA connection: receive buffers that it uses in the peer's memory,
// and its own memory that the peer may write answers to. Pure: handles numbers and records. The
// peer's side is in frame_receiver.h.
//
// Receive buffers with a reuse key are kept at the peer while they are used again and again. Those
// that are idle are given back, least recently used first, when there are more than a limit. The
// limit is as much as was ever in flight at the same time, and grows with keys that come back after
// they were given back. So the peer's memory is bounded by what is in flight and what this end
// really uses again: buffers of tensors that were used once, and of partition sizes that the tuner
// has tried, make room for others.
//
// Lease numbers are chosen by this end. A frame that is written to a receive buffer uses that
// buffer's number also for its reply space.
#pragma once

#include <deque>
#include <list>
#include <string>
#include <unordered_map>

#include "base/recently_dropped.h"
#include "transport/rdma/registrations.h"
#include "transport/rdma/ring.h"

namespace byteps::transport::rdma {

// Memory of the peer. `bytes` is 0 if there is none.
struct RemoteMemory {
  uint64_t address = 0;
  uint32_t key = 0;
  uint64_t bytes = 0;
};

// Memory that the peer may write its answer to. `registration` is empty if it may not.
struct LeasedReplySpace {
  MutableBytes reply_space;
  Registrations::Ref registration;
};

class BufferLeases {
 public:
  // Idle receive buffers of fewer bytes are not given back.
  static constexpr uint64_t kLeastKeptBytes = uint64_t{4} << 20;

  // `controls`: queue for records that the peer has to receive. `peer`: name for messages.
  BufferLeases(std::deque<Record>& controls, std::string peer)
      : controls_(controls), peer_(std::move(peer)) {}

  // Returns an unused number.
  LeaseId next();

  // Reserves a receive buffer for one frame of `bytes`: the buffer of that reuse key
  // (Payload::reuse_key) if it is large enough and free, else a new one requested from the peer.
  LeaseId reserve(uint64_t reuse_key, uint64_t bytes);
  // The peer has answered a request. kDataLoss: there was no such request.
  Status on_reserved(const Record& reserved);
  bool is_answered(LeaseId receive_buffer) const { return remote_buffers_.at(receive_buffer).answered; }
  // The granted memory, once answered; address 0: the peer has no memory for it.
  const RemoteMemory& target(LeaseId receive_buffer) const {
    return remote_buffers_.at(receive_buffer).target;
  }
  // Gives up a receive buffer, whose content is no longer needed.
  void release(LeaseId receive_buffer);

  // The frame with this lease has been posted: from now on the peer may use the number.
  void grant(LeaseId lease, LeasedReplySpace space) { granted_[lease] = std::move(space); }
  // Where the peer's answer of `bytes` is. kDataLoss: there is no such lease or it is too small.
  Result<MutableBytes> reply_space(LeaseId lease, uint64_t bytes) const;
  // The peer has returned the lease. kDataLoss: there is no such lease.
  Status take_back(LeaseId lease);
  void clear();
  // Bytes of all receive buffers with a reuse key.
  uint64_t kept_bytes() const { return kept_bytes_; }

 private:
  struct RemoteBuffer {
    uint64_t capacity_bytes = 0;
    uint64_t reuse_key = 0;  // 0: used for one frame only
    bool busy = true;
    bool answered = false;
    RemoteMemory target;
    std::list<LeaseId>::iterator idle = {};  // in idle_, if it has a reuse key and is not busy
  };

  // The free receive buffer of that reuse key, or kNoLease.
  LeaseId find_free(uint64_t& reuse_key, uint64_t bytes);
  void note_busy(uint64_t bytes);
  void drop(LeaseId idle_buffer);
  void drop_idle();

  std::deque<Record>& controls_;
  const std::string peer_;
  LeaseId last_ = kNoLease;
  std::unordered_map<LeaseId, RemoteBuffer> remote_buffers_;
  std::unordered_map<uint64_t, LeaseId> reusable_;
  std::list<LeaseId> idle_;  // least recently used first
  uint64_t kept_bytes_ = 0;  // of all with a reuse key
  uint64_t busy_bytes_ = 0;  // of those, of the ones in use
  uint64_t limit_bytes_ = kLeastKeptBytes;
  RecentlyDropped dropped_{1 << 12};
  std::unordered_map<LeaseId, LeasedReplySpace> granted_;
};

}  // namespace byteps::transport::rdma
