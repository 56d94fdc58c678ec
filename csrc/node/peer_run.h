// The connecting end of a check (peer_check.h): measures one connection to another machine's
// doctor.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/slab.h"
#include "base/unique_function.h"
#include "transport/transport.h"

namespace byteps::node {

// A rough measurement: one connection, one thread at each end.
struct PeerSpeed {
  double round_trip_us = 0;  // median of frames of 4 KiB
  double bytes_per_s = 0;    // payload in each direction at the same time, with frames of 1 MiB
};

// Used on the thread of the connection's loop, or after that has stopped; the constructor: any
// thread.
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
