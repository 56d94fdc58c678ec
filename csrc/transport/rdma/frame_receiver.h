// The receiving half of one end of an RDMA connection: reads records from its ring in order and
// delivers frames.
//
// The peer is authenticated, but not trusted to be correct: what its records refer to is looked up
// in this end's own state, and sizes are checked against it.
#pragma once

#include <optional>
#include <unordered_map>

#include "transport/rdma/arena.h"
#include "transport/rdma/frame_sender.h"
#include "transport/rdma/ring.h"

namespace byteps::transport::rdma {

// Use on the connection's loop. The receiver's callbacks may close the connection; no callback
// follows stop().
class FrameReceiver {
 public:
  // `inbox`: the ring of kRingBytes that the peer writes to. All arguments must outlive this.
  FrameReceiver(Connection& connection, FrameSender& sender, Arena& arena, MutableBytes inbox,
                uint64_t max_payload_bytes);

  // Starts delivery of frames and allocation of memory for them. Keeps earlier records until then.
  void start(Receiver* receiver) { receiver_ = receiver; }
  // The next record, of that many units, has arrived. The caller closes the connection on an error.
  Status on_record(uint32_t units);
  // Processes received records as far as currently possible.
  Status process();
  void stop() { stopped_ = true; }
  // The peer sends no more frames.
  bool ended() const { return ended_; }
  uint32_t consumed() const { return ring_.consumed(); }

  // Returns a lease. The result says where the answer to that frame may be written.
  RemoteMemory return_lease(LeaseId lease);

 private:
  // A lease of the peer.
  struct PeerLease {
    Arena::Allocation receive_buffer;  // empty if the frame came through the ring
    RemoteMemory reply;
    bool is_held = false;  // held by the receiver
  };
  // A frame that arrives in several records.
  struct Partial {
    std::array<std::byte, kMaxHeadBytes> head;
    Arrival arrival;  // of its head only the size is valid: the bytes are in `head`
    ReceiveBuffer receive_buffer;
    uint64_t missing_bytes;
  };

  bool can_process(const Record& record) const;
  Status handle(const Record& record, Bytes head, Bytes payload);
  Status on_frame(const Record& record, Bytes head, Bytes payload);
  Status on_more(Bytes payload);
  Status on_placed(const Record& record, Bytes head);
  Status on_answered(const Record& record, Bytes head);
  Status on_reserve(const Record& record);
  Status on_release(const Record& record);
  Status deliver_in_place(const Arrival& arrival);

  Connection& connection_;
  FrameSender& sender_;
  Arena& arena_;
  const MutableBytes inbox_;
  const uint64_t max_payload_bytes_;
  Receiver* receiver_ = nullptr;
  bool stopped_ = false;
  bool ended_ = false;
  bool warned_ = false;
  RingReader ring_;
  std::deque<RingReader::Extent> unread_;
  std::unordered_map<LeaseId, PeerLease> peer_leases_;
  std::optional<Partial> partial_;
};

}  // namespace byteps::transport::rdma
