// One end of a connection over the simulated network, and the wire between two ends.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/sim_leases.h"
#include "sim/sim_network.h"
#include "transport/transport.h"

namespace byteps::sim {

class SimConnection;

// Some bytes of one frame in flight, or a message of the transport itself. The head of a frame and
// its leases are in the first chunk.
struct Chunk {
  enum class Kind {
    kFrame,
    kEnd,        // no frame follows
    kStarving,   // the lending end has frames, but all its memory is leased
    kGivenBack,  // `returns` is returned without an answer
  };
  Kind kind = Kind::kFrame;
  bool is_first = false;
  std::vector<std::byte> head = {};
  size_t frame_bytes = 0;  // bytes of payload of the whole frame
  std::vector<std::byte> bytes = {};
  transport::LeaseId lends = transport::kNoLease;  // where the payload is, if it is leased
  transport::LeaseId returns = transport::kNoLease;
  std::optional<LentBlock> answer = std::nullopt;  // the payload, if it was in leased memory
};

// The bytes in flight between two ends. Lives while an end or something in flight refers to it.
class Wire : public std::enable_shared_from_this<Wire> {
 public:
  // `arena_bytes`, `is_resumed`: see SimTransportOptions.
  Wire(SimNetwork& network, std::array<std::string, 2> hosts, size_t arena_bytes, bool is_resumed);

  void attach(int side, SimConnection& end) { ends_[side] = &end; }
  // The end is gone. The other end is told after it has received all bytes sent before.
  void detach(int side);

  bool is_open() const { return ends_[0] != nullptr && ends_[1] != nullptr; }
  // Both ends get a reset; bytes in flight are lost.
  void reset();

  // Number of bytes that `side` may send now.
  size_t room(int side) const;
  // Number of bytes from `side` that the other end has not read.
  size_t unread(int side) const { return directions_[side].unread; }
  void send(int side, Chunk chunk);
  // The end of `side` has read `bytes` bytes from the other end.
  void on_read(int side, size_t bytes);
  // As Connection::sent_traffic(): bytes are acknowledged when they are read.
  transport::SentTraffic sent_traffic(int side) const;

  SimNetwork& network() { return network_; }
  bool is_resumed() const { return is_resumed_; }
  // Null if this connection lends no memory.
  SimLeases* leases() { return leases_ ? &*leases_ : nullptr; }
  const std::string& host(int side) const { return hosts_[side]; }
  // Time since which either direction is cut; kNever: neither is.
  TimeUs cut_since_us() const;

 private:
  struct OnItsWay {
    TimeUs arrival_us;
    Chunk chunk;
  };
  struct Direction {
    std::deque<OnItsWay> chunks;
    size_t unread = 0;
    uint64_t read_bytes = 0;
    TimeUs busy_us = 0;             // until `busy_since_us`
    TimeUs busy_since_us = kNever;  // kNever: nothing is unread
    bool is_due = false;            // arrive() is scheduled
  };

  void schedule(int side, TimeUs at_us);
  void arrive(int side);
  void deliver(int side, Chunk chunk);
  // Calls `message` with the end of `side`, on its loop, if it still exists then.
  template <typename Message>
  void tell(int side, Message message);

  SimNetwork& network_;
  const std::array<std::string, 2> hosts_;
  const bool is_resumed_;
  std::optional<SimLeases> leases_;
  std::array<SimConnection*, 2> ends_{};
  std::array<Direction, 2> directions_;  // indexed by the sending side
};

class SimConnection final : public transport::Connection, transport::TurnHandler {
 public:
  using OnSent = UniqueFunction<void(const Status&)>;

  SimConnection(transport::EventLoop& loop, std::shared_ptr<Wire> wire, int side, std::string peer);
  ~SimConnection() override;

  void start(transport::Receiver* receiver) override;
  void send(Bytes head, const transport::Payload& payload, OnSent on_sent) override;
  void return_lease(transport::LeaseId lease) override;
  std::optional<transport::SentTraffic> sent_traffic() override {
    if (is_local()) return std::nullopt;
    return wire_->sent_traffic(side_);
  }
  void limit_silence(TimeUs limit_us) override;
  void close_when_sent(GracePeriod grace_period) override;
  void close() override;
  transport::EventLoop& loop() override { return loop_; }
  const std::string& peer() const override { return peer_; }
  bool is_local() const override { return wire_->host(0) == wire_->host(1); }
  bool was_reset() const override { return was_reset_; }

  // Called by the wire on this end's loop.
  void on_chunk(Chunk chunk);
  void on_room() { request_pump(); }
  // The other end is gone, and bytes sent to it are lost.
  void on_reset();

  // Tasks posted to the loop for this end check first that it has not expired.
  std::weak_ptr<const int> alive() const { return alive_; }

 private:
  struct Frame {
    Chunk first;                      // without `bytes`
    transport::Payload payload = {};  // empty if the first chunk contains it as `answer`
    size_t payload_digest = 0;        // of the payload in send()
    size_t sent = 0;                  // bytes of the payload sent so far
    bool begun = false;
    OnSent on_sent = nullptr;
  };
  // The frame that is being received.
  struct Incoming {
    Chunk first;
    size_t received = 0;
    std::optional<transport::ReceiveBuffer> buffer;
  };

  void on_turn() override;
  void request_pump();
  bool lease_for(Frame& frame);
  Chunk next_chunk(Frame& frame);
  void check_unchanged(const Frame& frame);
  bool holds_leases() const { return side_ == 1 && wire_->leases() != nullptr; }
  void take_back(transport::LeaseId lease);
  void read_inbox();
  void handle(Chunk chunk);
  void read(Chunk chunk);
  Status begin_frame(Chunk chunk);
  Status finish_frame();
  transport::Arrival arrival_of(const Incoming& frame) const;
  void look_for_silence();
  void go_on_closing();
  // Ends the connection and tells the receiver.
  void end(const Status& why);
  void shut(const Status& why_unsent);
  void complete(OnSent on_sent, const Status& status);

  transport::EventLoop& loop_;
  const std::shared_ptr<Wire> wire_;
  const int side_;
  const std::string peer_;
  transport::Receiver* receiver_ = nullptr;
  bool open_ = true;
  bool closing_ = false;
  bool was_reset_ = false;
  bool end_sent_ = false;
  bool starving_sent_ = false;  // the other end has been told that frames wait for a lease
  bool turn_requested_ = false;
  std::deque<Frame> queue_;
  std::deque<Chunk> inbox_;  // received before start()
  Incoming incoming_;
  TimeUs silence_us_ = kNever;
  transport::EventLoop::TimerId silence_timer_ = 0;
  std::optional<GraceWait> closing_wait_;
  transport::EventLoop::TimerId closing_timer_ = 0;
  const std::shared_ptr<const int> alive_ = std::make_shared<const int>(0);
};

}  // namespace byteps::sim
