// What one end of an RDMA connection sends: frames in order, and in between what both ends agree on memory with.
//
// A frame of few bytes goes through the ring (ring.h). A larger payload is written straight from where it is to where it
// shall be: into the reply space of the frame that it answers, or else into a receive_buffer at the other end, which is asked for
// as soon as the frame is queued, and kept for all frames of the same place (Payload::place). Where memory cannot be made
// known to the card the payload goes through the ring, too, in pieces.
//
// Flow control: nothing is written that the other end has no room for. It has posted an arrival for each unit of the
// ring, so that no card ever finds its receiver not ready.
#pragma once

#include <array>
#include <deque>
#include <string>
#include <vector>

#include "transport/rdma/buffer_leases.h"
#include "transport/rdma/nic.h"
#include "transport/rdma/record.h"
#include "transport/rdma/registrations.h"
#include "transport/rdma/ring.h"

namespace byteps::transport::rdma {

// On the connection's loop. Calls on_sent from pump(), on_written(), stop() and fail() only.
class FrameSender {
 public:
  using OnSent = UniqueFunction<void(const Status&)>;

  // Writes posted and not completed.
  static constexpr uint32_t kMaxWrites = 256;

  // `staging`: kRingBytes under `staging_key`. `peer`: for messages.
  FrameSender(Registrations& registrations, uint64_t max_message_bytes, MutableBytes staging,
              uint32_t staging_key, std::string peer);

  // The queue pair is connected; `ring`: at the other end. Before that nothing is posted.
  void open(QueuePair& queue_pair, const RemoteMemory& ring);

  // `answer_to`: where the frame that this one answers wants its answer, or none.
  void send(Bytes head, const Payload& payload, const RemoteMemory& answer_to, OnSent on_sent);
  // No frame follows.
  void send_end();
  // The end was posted; all frames before it were.
  bool ended() const { return end_id_ > 0; }
  // It has arrived.
  bool end_is_written() const { return ended() && (posted_.empty() || posted_.front().id > end_id_); }
  // Nothing is under way.
  bool all_written() const { return posted_.empty(); }
  // Goes before frames that wait.
  void send_control(const Record& record) { controls_.push_back(record); }

  // What has come from the other end. kDataLoss: it makes no sense.
  Status on_consumed(uint32_t total) { return ring_.on_consumed(total); }
  BufferLeases& leases() { return leases_; }

  // Posts what can go now. `consumed`: RingReader's, for the other end to know.
  Status pump(uint32_t consumed);
  // Tells the other end what was consumed, without a record, if it will want to know.
  Status tell_consumed(uint32_t consumed, bool in_any_case = false);
  // Writes up to that of this id are done.
  void on_written(uint64_t id);
  // The queue pair is gone, but not what has come of it: answers to what was lent may still be read. Everything that is
  // not done ends with `why`; what has been written, if `written_is_sent`, with ok.
  void stop(const Status& why, bool written_is_sent = false);
  // stop(), and nothing is lent any more.
  void fail(const Status& why, bool written_is_sent = false);

 private:
  struct Frame {
    std::array<std::byte, kMaxHeadBytes> head;
    size_t head_bytes = 0;
    Payload payload;
    OnSent on_sent;
    RemoteMemory answer_to;
    LeaseId receive_buffer = kNoLease;  // where the payload goes, if not to `answer_to`
    bool is_end = false;
    bool inlined = false;           // decided: through the ring
    uint64_t moved_bytes = 0;       // of the payload, posted already
    Registrations::Ref data_lease;  // of a payload that is written from where it is
    LeaseId lease = kNoLease;       // under which the reply space is lent
    Registrations::Ref reply_lease;
    Record record;  // once begun
    bool begun = false;
  };
  // What ends with a completion.
  struct Posted {
    uint64_t id;
    uint32_t writes;
    Registrations::Ref data_lease;
    OnSent on_sent;
  };

  bool is_waiting_for_landing(Frame& frame);
  void go_through_ring(Frame& frame);
  void begin(Frame& frame);
  void lend_reply_space(Frame& frame);
  // False: no room now.
  bool post_next();
  bool post_control(const Record& record);
  bool post_frame(Frame& frame);
  bool post_payload(Frame& frame);
  bool post_pieces(Frame& frame);
  bool post_record(Record record, Bytes head, Bytes payload, bool completes);
  bool has_room_for_write() const { return unfinished_writes_ < kMaxWrites; }
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
  uint32_t consumed_ = 0;  // of the other direction, as of this pump
  uint32_t told_ = 0;      // of it, that the other end knows

  std::deque<Record> controls_;
  std::deque<Frame> frames_;
  uint64_t end_id_ = 0;  // of the end's write; 0: not yet posted
  BufferLeases leases_;

  std::vector<Write> batch_;
  std::deque<OnSent> sent_;  // to be called at the end of this pump
  std::deque<Posted> posted_;
  uint64_t last_id_ = 0;
  uint32_t unfinished_writes_ = 0;
  uint32_t unmarked_writes_ = 0;  // since the last one that completes
  bool warned_ = false;
};

}  // namespace byteps::transport::rdma
