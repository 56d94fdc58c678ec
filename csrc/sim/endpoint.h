// One end of a simulated connection, with the guarantees of transport/transport.h and no more.
//
// Frames arrive in order, head before payload. A connection buffers a bounded number of bytes, so a receiver that is
// stopped stalls its senders. A process that dies, or a cut, lets the other side see an end after some of what was under
// way; the rest is lost.
//
// Between processes of one machine a connection may lend: payloads lie in an arena of the connecting end, of limited
// size, until the accepting end gives their leases back; frames that find no room wait, and the other end is told.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/grace_period.h"
#include "base/status.h"
#include "base/unique_function.h"
#include "sim/memory.h"
#include "sim/virtual_process.h"

namespace byteps::sim {

// How payloads get to the other end.
enum class Carriage : uint8_t {
  kCopy,   // over the network
  kLocal,  // inside one process: the sender's own memory is lent, for as long as both agree
  kShare,  // between processes of one machine: through the connecting end's arena
};

using LeaseId = uint32_t;
inline constexpr LeaseId kNoLease = 0;

struct Frame {
  std::vector<std::byte> head;
  View payload;      // a copy, or memory that is lent
  View reply_space;  // only where the connection lends
  LeaseId returns_lease = kNoLease;
  uint64_t digest = 0;  // of an answer's payload when it was sent
  // Set by the network.
  LeaseId lease = kNoLease;   // of payload and reply space
  bool by_reference = false;  // the payload lies in an arena
};

class Endpoint;

class Receiver {
 public:
  virtual ~Receiver() = default;
  virtual void on_head(Endpoint& endpoint, const Frame& frame) = 0;
  virtual void on_frame(Endpoint& endpoint, const Frame& frame) = 0;
  // Once, unless this side closed first.
  virtual void on_closed(Endpoint& endpoint, const Status& why) = 0;
  // The other end waits for leases to be given back.
  virtual void on_starving(Endpoint& endpoint) { static_cast<void>(endpoint); }
};

// Never from inside send(). The payload's memory is not needed any more: ok if it was written, else kAborted.
using SentCallback = UniqueFunction<void(const Status&)>;

class VirtualNetwork;

// One end of a connection.
class Endpoint {
 public:
  Endpoint(VirtualNetwork& network, VirtualProcess& process, Carriage carriage)
      : network_(network), process_(process), carriage_(carriage) {}
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  // Begins to deliver; frames that came earlier are kept.
  void start(Receiver* receiver);
  void send(Frame frame, SentCallback on_sent);
  // Of a frame that this end has got, once; kNoLease does nothing.
  void return_lease(LeaseId lease);
  // After all that was sent; the other end's frames are delivered until it closes, too. Then, or when `grace_period`
  // is over, on_closed comes with ok.
  void close_when_sent(GracePeriod grace_period);
  // The connection ends when the other end has been cut off for so long.
  void limit_silence(TimeUs limit_us) { silence_us_ = limit_us; }
  // Now: what was not yet written is dropped, of what was written some may never arrive.
  void close();

  bool open() const { return state_ == State::kOpen; }
  bool lends() const { return carriage_ != Carriage::kCopy; }
  Carriage carriage() const { return carriage_; }
  VirtualProcess& process() { return process_; }
  const VirtualProcess& peer() const { return other_->process_; }

 private:
  friend class VirtualNetwork;
  enum class State : uint8_t { kOpen, kClosing, kClosed };
  enum class Stage : uint8_t { kHead, kComplete, kGiveBack, kStarving, kEnd };
  struct Outgoing {
    Frame frame;
    SentCallback on_sent;
  };
  struct Incoming {
    Stage stage;
    std::shared_ptr<const Frame> frame;
    Status why = {};
    LeaseId lease = kNoLease;
  };

  // What goes through the window.
  static uint64_t bytes_of(const Frame& frame) {
    return frame.head.size() + (frame.by_reference ? 0 : frame.payload.size);
  }
  bool travels(const Frame& frame) const {
    return carriage_ != Carriage::kLocal && !frame.by_reference && frame.payload.size > 0;
  }
  // False: there is no room in the arena now.
  bool lend(Frame& frame);
  void refer_to_lease(Frame& frame);
  void take_back(LeaseId lease);
  // This end is closed for good: what it has borrowed is not its to use any more.
  void end_borrowing();
  void hand_over();
  void depart(const std::shared_ptr<Outgoing>& outgoing);
  void report_sent(SentCallback on_sent, bool written);
  void deliver(TimeUs when, Incoming incoming);
  void tell(Incoming incoming);
  void receive(Incoming incoming);
  void dispatch(const Incoming& incoming);
  void drop_queue();
  void shut();
  void lose_some();
  void end_if_sent();
  void go_on_closing();
  // Nothing comes from the other end any more, or goes there, and nobody is told.
  void cut_off();
  void send_end(const std::string& why);

  VirtualNetwork& network_;
  VirtualProcess& process_;
  Endpoint* other_ = nullptr;
  const Carriage carriage_;
  Receiver* receiver_ = nullptr;
  State state_ = State::kOpen;
  bool end_sent_ = false;
  bool cut_off_ = false;  // nothing gets to the other end
  TimeUs silence_us_ = kNever;
  std::optional<GraceWait> closing_wait_;

  std::deque<Outgoing> queue_;  // waits for the window
  uint64_t window_used_ = 0;
  size_t departing_ = 0;  // in the window, but not yet written
  TimeUs last_departure_us_ = 0;
  TimeUs last_arrival_us_ = 0;
  uint64_t delivery_count_ = 0;  // towards the other end
  uint64_t arrived_count_ = 0;
  uint64_t taken_count_ = 0;              // frames from the other end that this one has read
  uint64_t delivery_limit_ = UINT64_MAX;  // later ones are lost

  std::deque<Incoming> early_;  // came before start()

  bool is_lender_ = false;  // the connecting end, if memory is shared
  uint64_t arena_free_bytes_ = 0;
  std::map<LeaseId, View> lent_;  // the whole blocks
  LeaseId last_loan_ = kNoLease;
  bool told_starving_ = false;  // since the last lease came back
};

}  // namespace byteps::sim
