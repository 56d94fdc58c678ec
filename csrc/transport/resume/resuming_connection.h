// A connection over carriers that replace each other. Contract: transport.h.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/resume/resume_head.h"
#include "transport/resume/resuming_transport.h"

namespace byteps::transport {

class ResumingConnection;

// The sessions of one listener. On the listener's loop.
struct SessionTable {
  // Null: it has ended here. The other end may believe that the network has reset it, and if it has
  // received nothing yet, it would begin anew.
  std::map<SessionId, ResumingConnection*> sessions;
  std::deque<SessionId> ended;  // the last ones, in this order; older ones are forgotten

  void end(const SessionId& session);
};

class ResumingConnection final : public Connection {
 public:
  // How the connecting end gets another carrier; called on the loop.
  using Connector = UniqueFunction<void(ConnectLimits limits, ConnectCallback on_done)>;

  // The connecting end.
  ResumingConnection(std::unique_ptr<Connection> carrier, SessionId session, Connector connector,
                     TimeUs limit_us);
  // The accepting end. Its first frame says whether it is new, or the carrier is for another one:
  // then that takes it, and this connection ends.
  ResumingConnection(std::unique_ptr<Connection> carrier, std::shared_ptr<SessionTable> table,
                     TimeUs limit_us);
  ~ResumingConnection() override;

  void start(Receiver* receiver) override;
  void send(Bytes head, const Payload& payload, UniqueFunction<void(const Status&)> on_sent) override;
  void pace(uint64_t bytes_per_s) override;
  std::optional<SentTraffic> sent_traffic() override;
  void limit_silence(TimeUs limit_us) override;
  void close_when_sent(GracePeriod grace_period) override;
  void close() override;
  EventLoop& loop() override { return loop_; }
  bool is_interrupted() const override { return !broken_.is_ok() && !closed_; }
  const std::string& peer() const override { return peer_; }
  bool is_local() const override { return is_local_; }

 private:
  // A connection of the carrying transport, which may move from one session to another.
  struct Carrier final : Receiver {
    Carrier(ResumingConnection* session, std::unique_ptr<Connection> carrying)
        : owner(session), connection(std::move(carrying)) {}
    Result<ReceiveBuffer> on_head(Connection&, const Arrival& arrival) override {
      return owner->on_head(arrival);
    }
    Status on_frame(Connection&, const Arrival& arrival, Bytes payload) override {
      return owner->on_frame(arrival, payload);
    }
    void on_closed(Connection& closed, const Status& why) override {
      owner->on_carrier_closed(why, closed.was_reset());
    }
    ResumingConnection* owner;
    std::unique_ptr<Connection> connection;
  };
  struct Frame {
    std::vector<std::byte> head;
    Payload payload;
    UniqueFunction<void(const Status&)> on_sent;  // empty: reported, or nobody wants to know
  };

  bool is_connecting_end() const { return table_ == nullptr; }
  Result<ReceiveBuffer> on_head(const Arrival& arrival);
  Status on_frame(const Arrival& arrival, Bytes payload);
  Status on_open(const ResumeHead& open);
  void on_carrier_closed(const Status& why, bool was_reset);
  void limit_interruption();
  void reconnect();
  // Ends an interruption that no carrier has ended.
  void give_up(const std::string& why);
  void use(std::unique_ptr<Carrier> carrier);
  // The other end has received so many frames, modulo 2^32, of all that were sent.
  Status confirm(uint32_t received);
  // The carrier is ready for frames.
  void resume();
  void transmit(uint64_t number);
  void transmit(const ResumeHead& head);
  void on_transmitted(uint64_t number);
  void drop_carrier();
  void end(const Status& why);
  // Nothing happens any more; reports unsent frames with `why`.
  void shut(const Status& why);
  void fail_frames(const Status& why);

  EventLoop& loop_;
  const std::string peer_;
  const bool is_local_;
  const TimeUs limit_us_;
  SessionId session_;
  Connector connector_;                  // of the connecting end
  std::shared_ptr<SessionTable> table_;  // of the accepting end
  std::unique_ptr<Carrier> carrier_;     // null: broken, or closed
  Receiver* receiver_ = nullptr;
  bool is_known_ = false;  // accepting end: in the table
  bool is_ready_ = false;  // the other end takes frames from this carrier
  bool closed_ = false;
  bool has_failed_ = false;             // frames have been given up
  Status broken_;                       // why the last carrier has ended
  EventLoop::TimerId limit_timer_ = 0;  // of an interruption, or of a connection that closes unopened
  TimeUs broken_since_us_ = 0;

  uint64_t received_ = 0;
  uint64_t oldest_ = 0;           // number of the first of frames_
  std::deque<Frame> frames_;      // not confirmed
  std::optional<uint64_t> pace_;  // as last told
  TimeUs silence_us_ = 0;
  std::optional<GracePeriod> closing_;
  SentTraffic earlier_;  // over carriers that have ended
  SentTraffic latest_;   // as last read from this carrier
  const std::shared_ptr<const int> alive_ = std::make_shared<const int>(0);
};

}  // namespace byteps::transport
