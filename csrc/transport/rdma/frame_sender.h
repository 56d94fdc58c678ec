// The sending half of one end of an RDMA connection: frames in order, interleaved with control
// records about memory.
//
// A small frame goes through the ring (ring.h). A larger payload is written directly from the
// sender's memory to its destination: the reply space of the frame that it answers, or a receive
// buffer of the peer. The buffer is requested when the frame is queued and kept for all frames with
// the same Payload::reuse_key. If memory cannot be registered with the NIC, the payload goes
// through the ring in pieces.
//
// Flow control: nothing is written unless the peer has room for it. The peer has posted a receive
// request for each unit of the ring, so a NIC never finds its receiver not ready.
#pragma once

#include <array>
#include <deque>
#include <string>
#include <vector>

#include "transport/rdma/buffer_leases.h"
#include "transport/rdma/nic.h"
#include "transport/rdma/registrations.h"
#include "transport/rdma/ring.h"

namespace byteps::transport::rdma {

// Use on the connection's loop. Calls on_sent only from pump(), on_written(), renew(), stop() and
// fail().
class FrameSender {
 public:
  using OnSent = UniqueFunction<void(const Status&)>;

  // Limit of writes posted but not completed.
  static constexpr uint32_t kMaxWrites = 256;

  // `staging`: kRingBytes, registered under `staging_key`. `peer`: name for messages.
  FrameSender(Registrations& registrations, uint64_t max_message_bytes, MutableBytes staging,
              uint32_t staging_key, std::string peer);

  // The queue pair is connected and `ring` is the peer's inbox. Nothing is posted before.
  void open(QueuePair& queue_pair, const RemoteMemory& ring);

  // `answer_to`: where the peer wants the answer to its frame, if this is one.
  void send(Bytes head, const Payload& payload, const RemoteMemory& answer_to, OnSent on_sent);
  // No frame follows.
  void send_end();
  // The end and all frames before it have been posted.
  bool ended() const { return end_id_ > 0; }
  // The end has arrived at the peer.
  bool end_is_written() const { return ended() && (posted_.empty() || posted_.front().id > end_id_); }
  // The queue pair has failed: nothing is posted until renew().
  void pause() { queue_pair_ = nullptr; }
  // Goes on with another queue pair to the same ring. The peer has received `arrivals` of all
  // immediates so far, modulo 2^32, and with them all earlier writes; the other writes are posted
  // again. kDataLoss: more than were posted, or fewer than are known to be received.
  Status renew(QueuePair& queue_pair, uint32_t arrivals);

  // No writes are in flight.
  bool all_written() const { return posted_.empty(); }
  // Queues a record that is sent before waiting frames.
  void send_control(const Record& record) { controls_.push_back(record); }

  // Input from the peer. Returns kDataLoss if it is invalid.
  Status on_consumed(uint32_t total) { return ring_.on_consumed(total); }
  BufferLeases& leases() { return leases_; }

  // Posts whatever is possible now and reports `consumed` (of RingReader) to the peer.
  Status pump(uint32_t consumed);
  // Reports consumed units to the peer in a write of its own, if they are many or `in_any_case`.
  Status report_consumed(uint32_t consumed, bool in_any_case = false);
  // All writes up to this id have completed.
  void on_written(uint64_t id);
  // The queue pair is gone. Unfinished frames complete with `why`; those whose writes were posted
  // with ok if `written_is_sent`. Leases stay valid, as received answers may still be read.
  void stop(const Status& why, bool written_is_sent = false);
  // Like stop(), and also ends all leases.
  void fail(const Status& why, bool written_is_sent = false);

 private:
  struct Frame {
    std::array<std::byte, kMaxHeadBytes> head;
    size_t head_bytes = 0;
    Payload payload;
    OnSent on_sent;
    RemoteMemory answer_to;
    LeaseId receive_buffer = kNoLease;  // where the payload goes, unless to `answer_to`
    bool is_end = false;
    bool inlined = false;                  // the payload goes through the ring
    uint64_t posted_bytes = 0;             // bytes of the payload that are posted
    Registrations::Ref data_registration;  // set if the payload is written directly
    Registrations::Ref reply_registration;
    Record record;  // valid once begun; its lease is also that of the reply space
    bool begun = false;
  };
  // Resources to release on a completion.
  struct Posted {
    uint64_t id;
    Registrations::Ref data_registration;
    OnSent on_sent;
  };

  bool is_waiting_for_receive_buffer(Frame& frame);
  void go_through_ring(Frame& frame);
  void begin(Frame& frame);
  void lease_reply_space(Frame& frame);
  // The post functions return false if there is no room now, nothing to post, or the first frame
  // waits for its receive buffer.
  bool post_next();
  bool post_frame(Frame& frame);
  bool post_payload(Frame& frame);
  bool post_pieces(Frame& frame);
  bool post_record(Record record, Bytes head, Bytes payload, bool completes);
  bool has_room_for_write() const { return unfinished_.size() < kMaxWrites; }
  void add_write(Write write);
  void finish(Frame& frame);
  Status flush();

  Registrations& registrations_;
  const uint64_t max_message_bytes_;
  const MutableBytes staging_;
  const uint32_t staging_key_;
  const std::string peer_;
  QueuePair* queue_pair_ = nullptr;
  RemoteMemory remote_ring_;
  RingWriter ring_;
  uint32_t consumed_ = 0;  // consumed units of the other direction, as of this pump
  uint32_t reported_ = 0;  // consumed units reported to the peer

  std::deque<Record> controls_;
  std::deque<Frame> frames_;
  uint64_t end_id_ = 0;  // id of the end's write; 0: not posted yet
  BufferLeases leases_;

  std::vector<Write> batch_;
  std::deque<OnSent> sent_;  // callbacks to run at the end of this pump
  std::deque<Posted> posted_;
  std::deque<Write> unfinished_;  // posted, in this order, and not known to be done
  uint32_t immediates_ = 0;       // of writes that are done, modulo 2^32
  uint64_t last_id_ = 0;
  uint32_t unmarked_writes_ = 0;  // since the last write with a completion
  bool warned_ = false;
};

}  // namespace byteps::transport::rdma
