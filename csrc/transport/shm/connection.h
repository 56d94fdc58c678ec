// A connection between two processes of one machine: heads go through a Unix socket, payloads lie in memory that both
// have mapped. Contract: transport.h. Frames: docs/wire-format.md, "Shared memory".
//
// The connecting end lends, the accepting end borrows. What has no lease (an answer that is not in its reply space, a
// payload larger than the memory, whatever the accepting end sends of its own) goes through the socket. Frames of the
// connecting end that find no room wait, in order, until the other end gives leases back (before start(): until then).
#pragma once

#include <array>
#include <deque>
#include <optional>
#include <string>

#include "transport/authenticate.h"
#include "transport/shm/buffer_leases.h"
#include "transport/shm/segment.h"
#include "transport/stream/connection.h"
#include "transport/transport.h"

namespace byteps::transport {

class ShmConnection final : public Connection, private Receiver {
 public:
  // `socket`: connected, non-blocking, nothing but frames to come. `segment`: the memory, mapped by both sides.
  ShmConnection(EventLoop& loop, UniqueFd socket, std::string peer, Side side, Segment segment,
                size_t max_payload_bytes);
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

  // A frame that waits for room.
  struct Waiting {
    Waiting(Bytes head, const Payload& payload, OnSent on_sent);
    std::array<std::byte, kMaxHeadBytes> head;
    size_t head_bytes;
    Payload payload;
    OnSent on_sent;
  };

  // From the socket.
  Result<ReceiveBuffer> on_head(Connection& stream, const Arrival& arrival) override;
  Status on_frame(Connection& stream, const Arrival& arrival, Bytes payload) override;
  void on_closed(Connection& stream, const Status& why) override;

  Status on_lender_frame(const Reference& reference, const Arrival& frame, Bytes payload);
  Status on_borrower_frame(const Reference& reference, const Arrival& frame, Bytes payload);
  Status deliver_lent(const Arrival& arrival);
  Status take_back(LeaseId lease);
  bool lend_and_send(Bytes head, const Payload& payload, OnSent& on_sent);
  void send_answer(Bytes head, const Payload& payload, OnSent on_sent);
  void send_waiting();
  void fail_waiting(const Status& why);
  void go_on_closing();
  void write(const Reference& reference, Bytes head, Bytes payload, OnSent on_sent);

  const Segment segment_;
  std::optional<LeaseOwner> lease_owner_;    // of the connecting end
  std::optional<LeaseHolder> lease_holder_;  // of the accepting end
  StreamConnection stream_;
  Receiver* receiver_ = nullptr;
  std::deque<Waiting> waiting_;
  bool told_ = false;     // the other end knows that frames wait
  bool closing_ = false;  // no further frames are taken
  GracePeriod grace_{kNever};
  std::optional<GraceWait> waiting_for_room_;  // frames, while this end closes
  EventLoop::TimerId deadline_ = 0;            // of frames that wait while this end closes
};

}  // namespace byteps::transport
