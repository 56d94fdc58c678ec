// One end of a connection over the simulated network, and the wire between two ends.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/sim_network.h"
#include "transport/transport.h"

namespace byteps::sim {

class SimConnection;

// Some bytes of one frame on their way, or the end of all frames. The first chunk of a frame carries its head.
struct Chunk {
  bool is_first = false;
  bool is_end = false;
  std::vector<std::byte> head;
  size_t frame_bytes = 0;  // payload of the whole frame
  std::vector<std::byte> bytes;
};

// What lies between two ends: the bytes on their way each way. Lives as long as an end, or something on its way.
class Wire : public std::enable_shared_from_this<Wire> {
 public:
  Wire(SimNetwork& network, std::array<std::string, 2> hosts) : network_(network), hosts_(std::move(hosts)) {}

  void attach(int side, SimConnection& end) { ends_[side] = &end; }
  // The end is gone. The other end hears of it after what has left before.
  void detach(int side);

  // Bytes that `side` may send now.
  size_t room(int side) const;
  // Bytes from `side` that the other end has not read.
  size_t unread(int side) const { return ways_[side].unread; }
  void send(int side, Chunk chunk);
  // The end of `side` has read so many bytes of the other's.
  void on_read(int side, size_t bytes);

  SimNetwork& network() { return network_; }
  const std::string& host(int side) const { return hosts_[side]; }
  // Since when either way is cut; kNever: neither is.
  TimeUs cut_since_us() const;

 private:
  struct OnItsWay {
    TimeUs arrival_us;
    Chunk chunk;
  };
  struct Way {
    std::deque<OnItsWay> chunks;
    size_t unread = 0;
    bool is_due = false;  // arrive() is scheduled
  };

  void schedule(int side, TimeUs at_us);
  void arrive(int side);
  void deliver(int side, Chunk chunk);

  SimNetwork& network_;
  const std::array<std::string, 2> hosts_;
  std::array<SimConnection*, 2> ends_{};
  std::array<Way, 2> ways_;  // by the side that sends
};

class SimConnection final : public transport::Connection, transport::TurnHandler {
 public:
  using OnSent = UniqueFunction<void(const Status&)>;

  SimConnection(transport::EventLoop& loop, std::shared_ptr<Wire> wire, int side, std::string peer);
  ~SimConnection() override;

  void start(transport::Receiver* receiver) override;
  void send(Bytes head, const transport::Payload& payload, OnSent on_sent) override;
  void limit_silence(TimeUs limit_us) override;
  void close_when_sent(GracePeriod grace_period) override;
  void close() override;
  transport::EventLoop& loop() override { return loop_; }
  const std::string& peer() const override { return peer_; }
  bool is_local() const override { return wire_->host(0) == wire_->host(1); }

  // By the wire, on this end's loop.
  void on_chunk(Chunk chunk);
  void on_room();
  // The other end is gone, and what was sent to it is lost.
  void on_reset();

  // Whoever posts to the loop for this end asks first whether it still is there.
  std::weak_ptr<const int> alive() const { return alive_; }

 private:
  struct Frame {
    std::vector<std::byte> head;
    Bytes payload;
    size_t sent = 0;  // bytes of the payload
    bool begun = false;
    OnSent on_sent;
  };
  // A frame that comes in.
  struct Incoming {
    std::vector<std::byte> head;
    size_t frame_bytes = 0;
    size_t received = 0;
    std::optional<transport::ReceiveBuffer> buffer;
  };

  void on_turn() override;
  void request_pump();
  void pump();
  Chunk next_chunk(Frame& frame);
  void read_inbox();
  void read(Chunk chunk);
  Status begin_frame(Chunk& chunk);
  Status finish_frame();
  void on_end();
  void look_for_silence();
  void go_on_closing();
  // Ends the connection, and tells the receiver.
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
  bool end_sent_ = false;
  bool turn_requested_ = false;
  std::deque<Frame> queue_;
  std::deque<Chunk> inbox_;  // until start()
  Incoming incoming_;
  TimeUs silence_us_ = kNever;
  transport::EventLoop::TimerId silence_timer_ = 0;
  std::optional<GraceWait> closing_wait_;
  transport::EventLoop::TimerId closing_timer_ = 0;
  const std::shared_ptr<const int> alive_ = std::make_shared<const int>(0);
};

}  // namespace byteps::sim
