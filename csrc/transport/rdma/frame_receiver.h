// What one end of an RDMA connection receives: records out of its ring, in order, which become frames for the receiver.
//
// Nothing that the other end says is trusted: it has proved the job's secret, but may be broken. What a record names is
// looked up among what this end has agreed to, and sizes are checked against that.
#pragma once

#include <optional>
#include <unordered_map>

#include "transport/rdma/arena.h"
#include "transport/rdma/frame_sender.h"
#include "transport/rdma/record.h"
#include "transport/rdma/ring.h"

namespace byteps::transport::rdma {

// On the connection's loop. The receiver's callbacks may close the connection: nothing follows stop().
class FrameReceiver {
 public:
  // `inbox`: kRingBytes that the other end writes to. All outlive this object.
  FrameReceiver(Connection& connection, FrameSender& outgoing, Arena& arena, MutableBytes inbox,
                uint64_t max_payload_bytes);

  // Frames, and memory for them, only from now on; before it what comes is kept.
  void start(Receiver* receiver) { receiver_ = receiver; }
  // The next record has come, of so many units. An error is for closing.
  Status on_record(uint32_t units);
  // What has come, as far as it may be looked at now.
  Status process();
  void stop() { stopped_ = true; }
  // The other end sends no frame any more.
  bool ended() const { return ended_; }
  uint32_t consumed() const { return ring_.consumed(); }

  // The receiver has done with a lease: where the answer to that frame goes.
  RemoteMemory return_lease(LeaseId lease);

 private:
  // What the other end's number stands for.
  struct Borrowed {
    Arena::Allocation receive_buffer;  // none: the frame came through the ring
    RemoteMemory reply;
    bool is_out = false;  // with the receiver
  };
  // A frame that comes in pieces.
  struct Partial {
    std::array<std::byte, kMaxHeadBytes> head;
    Arrival arrival;
    ReceiveBuffer receive_buffer;
    Bytes landed;
    uint64_t missing_bytes;
  };

  bool may_look_at(const Record& record) const;
  Status handle(const Record& record, Bytes head, Bytes payload);
  Status on_frame(const Record& record, Bytes head, Bytes payload);
  Status begin_pieces(const Arrival& arrival, const ReceiveBuffer& receive_buffer, Bytes payload);
  Status on_more(Bytes payload);
  Status on_placed(const Record& record, Bytes head);
  Status on_answered(const Record& record, Bytes head);
  Status on_reserve(const Record& record);
  Status on_release(const Record& record);
  Status deliver_in_place(const Arrival& arrival);
  Result<LeaseId> lend(const Record& record);

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
  std::deque<RingReader::Place> unread_;
  std::unordered_map<LeaseId, Borrowed> borrowed_;
  std::optional<Partial> partial_;
};

}  // namespace byteps::transport::rdma
