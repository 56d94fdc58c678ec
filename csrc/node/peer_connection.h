// Both ends of a connection between two processes of `byteps doctor`, and what they exchange.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/buffer_pool.h"
#include "base/clock.h"
#include "base/slab.h"
#include "base/status.h"
#include "base/unique_function.h"
#include "transport/transport.h"

namespace byteps::node {

// The heads of the frames. They contain the version, so different versions refuse each other.
// kPeerEcho is answered with the same frame.
inline constexpr std::string_view kPeerAsk = "byteps doctor 1: ask";    // no payload; over TCP only
inline constexpr std::string_view kPeerTell = "byteps doctor 1: tell";  // the answer: PeerFacts
inline constexpr std::string_view kPeerEcho = "byteps doctor 1: echo";

inline constexpr size_t kMaxPeerEchoBytes = size_t{1} << 20;
inline constexpr size_t kMaxPeerFactsBytes = 4096;

// Facts about its machine that a listening doctor sends to the other end.
struct PeerFacts {
  std::string host;
  // Address of the RDMA listener, for parse_address(); empty: none, for the reason below.
  std::string rdma_address;
  std::string why_no_rdma;
  bool has_no_rdma_device = false;  // or RDMA is disabled: not an error
};

// Encodes the facts as lines of text, at most kMaxPeerFactsBytes.
std::string encode(const PeerFacts& facts);
// Replaces characters that are not printable by question marks, because the facts appear in
// messages. kDataLoss: not valid facts.
Result<PeerFacts> decode_peer_facts(const std::string& text);

// The listening end: echoes frames. Used on the thread of the connection's loop.
class PeerEcho final : public transport::Receiver {
 public:
  // `facts`: the answer to kPeerAsk. `closed` is called when the other end has closed; this object
  // must not be destroyed before that call.
  PeerEcho(std::unique_ptr<transport::Connection> connection, std::string facts,
           UniqueFunction<void(const PeerEcho&)> closed);

  void start() { connection_->start(this); }
  // "rdma 10.0.0.2:9000 (mlx5_0 port 1, ...)"
  const std::string& peer() const { return connection_->peer(); }
  uint64_t frames() const { return frames_; }  // number of frames echoed

  Result<transport::ReceiveBuffer> on_head(transport::Connection& connection,
                                           const transport::Arrival& arrival) override;
  Status on_frame(transport::Connection& connection, const transport::Arrival& arrival,
                  Bytes payload) override;
  void on_closed(transport::Connection& connection, const Status& why) override;

 private:
  // Memory of answers that are not sent yet; it may outlive this object.
  struct Answers {
    BufferPool pool;
    size_t unsent_bytes = 0;
  };

  const std::string facts_;
  UniqueFunction<void(const PeerEcho&)> closed_;
  const std::shared_ptr<Answers> answers_ = std::make_shared<Answers>();
  BufferPool::Buffer arriving_;
  uint64_t frames_ = 0;
  std::unique_ptr<transport::Connection> connection_;  // last: its callbacks use the others
};

// A rough measurement: one connection, one thread at each end.
struct PeerSpeed {
  double round_trip_us = 0;  // median of frames of 4 KiB
  double bytes_per_s = 0;    // payload in each direction at the same time, with frames of 1 MiB
};

// The connecting end: measures. Used on the thread of the connection's loop, or after that has
// stopped; the constructor: any thread.
class PeerRun final : public transport::Receiver {
 public:
  struct Outcome {
    std::string facts;  // facts of the other end, if asked for
    PeerSpeed speed;
  };
  using Done = UniqueFunction<void(Result<Outcome>)>;

  // Throws std::bad_alloc.
  explicit PeerRun(std::unique_ptr<transport::Connection> connection);

  // To be called once. `done` is called once. kDeadlineExceeded: at `deadline_us`; kDataLoss: the
  // echo differs from what was sent.
  void start(bool asks_for_facts, TimeUs deadline_us, Done done);
  const std::string& peer() const { return connection_->peer(); }
  void close() { connection_->close(); }

  Result<transport::ReceiveBuffer> on_head(transport::Connection& connection,
                                           const transport::Arrival& arrival) override;
  Status on_frame(transport::Connection& connection, const transport::Arrival& arrival,
                  Bytes payload) override;
  void on_closed(transport::Connection& connection, const Status& why) override;

 private:
  // A frame in flight, in a slot of the memory.
  struct Sent {
    size_t slot;
    size_t bytes;
    TimeUs at_us;
  };

  void send(size_t slot, size_t bytes);
  Status check_echo(const Sent& sent, Bytes payload) const;
  Status on_echo(Bytes payload);
  void on_bulk_echo(const Sent& sent);
  void finish(Result<Outcome> outcome);
  // Constant, because transports may read it at any time.
  MutableBytes out(size_t slot, size_t bytes) const;
  MutableBytes in(size_t slot, size_t bytes) const;

  const Slab memory_;
  std::string facts_;
  Done done_;
  std::deque<Sent> under_way_;  // oldest first
  std::vector<TimeUs> round_trips_us_;
  TimeUs bulk_began_us_ = 0;  // 0: not started
  size_t bulk_frames_ = 0;    // number of large frames that have come back
  transport::EventLoop::TimerId deadline_ = 0;
  std::unique_ptr<transport::Connection> connection_;  // last: its callbacks use the others
};

}  // namespace byteps::node
