// A connection between two processes of one machine: heads go through a Unix socket, payloads
// through memory that both have mapped. Contract: transport.h. Frames: docs/wire-format.md, "Shared
// memory".
//
// The connecting end owns the memory and leases parts of it to the accepting end. Data without a
// lease goes through the socket: answers outside of their reply space, payloads larger than the
// memory, and frames that the accepting end initiates. If the connecting end finds no free slot,
// its frames wait in order until the peer returns leases (which it does not before start()).
#pragma once

#include <array>
#include <deque>
#include <optional>
#include <string>

#include "transport/authenticate.h"
#include "transport/shm/buffer_leases.h"
#include "transport/shm/segment.h"
#include "transport/shm/shared_pool.h"
#include "transport/stream/connection.h"
#include "transport/transport.h"

namespace byteps::transport {

class ShmConnection final : public Connection, private Receiver {
 public:
  // `socket` is connected, non-blocking, and from here on carries only frames. `segment` is mapped
  // by both ends.
  ShmConnection(EventLoop& loop, UniqueFd socket, std::string peer, Side side, Segment segment,
                size_t max_payload_bytes);
  // The connecting end, whose segment is `pool`, with an arena that was taken from it.
  ShmConnection(EventLoop& loop, UniqueFd socket, std::string peer, std::shared_ptr<SharedPool> pool,
                MutableBytes arena, size_t max_payload_bytes);
  ~ShmConnection() override { close(); }

  void start(Receiver* receiver) override;
  void send(Bytes head, const Payload& payload, UniqueFunction<void(const Status&)> on_sent) override;
  void return_lease(LeaseId lease) override;
  void close_when_sent(GracePeriod grace_period) override;
  void close() override;
  EventLoop& loop() override { return stream_.loop(); }
  const std::string& peer() const override { return stream_.peer(); }
  bool is_local() const override { return true; }

 private:
  using OnSent = UniqueFunction<void(const Status&)>;

  // A frame that waits for a free slot.
  struct Waiting {
    Waiting(Bytes head, const Payload& payload, OnSent on_sent);
    std::array<std::byte, kMaxHeadBytes> head;
    size_t head_bytes;
    Payload payload;
    OnSent on_sent;
  };

  // Called by the socket's connection.
  Result<ReceiveBuffer> on_head(Connection& stream, const Arrival& arrival) override;
  Status on_frame(Connection& stream, const Arrival& arrival, Bytes payload) override;
  void on_closed(Connection& stream, const Status& why) override;

  Status on_owner_frame(const Reference& reference, const Arrival& frame, Bytes payload);
  Status on_holder_frame(const Reference& reference, const Arrival& frame, Bytes payload);
  Status deliver_in_place(const Arrival& arrival);
  Status take_back(LeaseId lease);
  bool lease_and_send(Bytes head, const Payload& payload, OnSent& on_sent);
  void send_answer(Bytes head, const Payload& payload, OnSent on_sent);
  void send_waiting();
  void fail_waiting(const Status& why);
  void continue_closing();
  void write(const Reference& reference, Bytes head, Bytes payload, OnSent on_sent);

  const std::optional<Segment> segment_;  // its own one
  const std::shared_ptr<SharedPool> pool_;
  std::optional<LeaseOwner> lease_owner_;    // set at the connecting end
  std::optional<LeaseHolder> lease_holder_;  // set at the accepting end
  StreamConnection stream_;
  Receiver* receiver_ = nullptr;
  std::deque<Waiting> waiting_;
  bool starving_sent_ = false;  // the peer has been told that frames wait
  bool closing_ = false;        // no further frames are accepted
  GracePeriod grace_{kNever};
  std::optional<GraceWait> closing_wait_;  // set while waiting frames delay closing
  EventLoop::TimerId deadline_ = 0;        // timer of closing_wait_
};

}  // namespace byteps::transport
