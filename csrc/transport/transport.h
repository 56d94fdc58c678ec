// The interface of transports, which move frames between two processes or within one.
//
// A connection carries frames in order in both directions. A frame consists of a head (small,
// copied, interpreted by protocol/) and a payload (of any size, not copied by the sender). The
// receiver is asked for a receive buffer before the payload is read, so it goes directly to where
// it is summed or used.
//
// Threads: a connection or listener belongs to one EventLoop; all methods and callbacks run on that
// loop's thread unless stated otherwise. A Transport may be used from any thread. Errors: the first
// error closes the connection, completes all unsent frames, and is reported once.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/grace_period.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "base/unique_function.h"
#include "transport/address.h"
#include "transport/event_loop.h"

namespace byteps::transport {

inline constexpr size_t kMaxHeadBytes = 256;

// Identifies a lease: the receiver's right to use memory that the sender provided with a frame. The
// receiver returns it with a frame (Payload::returns_lease) or Connection::return_lease. Unique per
// connection.
using LeaseId = uint32_t;
inline constexpr LeaseId kNoLease = 0;

// The payload of a frame. `data` must stay valid and unchanged until on_sent or, on transports that
// pass it by reference (inproc), until the receiver's protocol says that it has finished.
struct Payload {
  Bytes data;
  // Where the sender wants an answer of the same size, or empty. Must stay valid until the answer
  // has come or the lease is returned. Depending on the transport, the receiver gets this very
  // memory (inproc) or shared memory (shm) as Arrival::reply_space, or the answer is written here
  // from the receiver's memory (rdma). tcp ignores it.
  MutableBytes reply_space;
  // The lease of the frame that this one answers, or kNoLease. If `data` begins at that frame's
  // Arrival::reply_space, it is passed by reference without a copy, and may not be touched any
  // more.
  LeaseId returns_lease = kNoLease;
  // Frames with the same non-zero reuse_key are sequential: each is answered or its lease returned
  // before the next is sent. Transports that write into the receiver's memory (rdma) use the same
  // memory for all of them.
  uint64_t reuse_key = 0;
  // Nobody else reads `data` soon, so a transport that copies it (shm) leaves the caches to others.
  bool is_cold = false;
  // Owns `data`, and lets a transport send it again after on_sent. Null: `data` stays valid until the
  // receiver's protocol says that it has finished, or the connection is closed.
  std::shared_ptr<const void> keep = {};
  // The answer needs no network, so a transport that copies payloads for the receiver (shm) may let
  // frames wait for answers, to copy less at a time than the caches hold.
  bool is_answered_soon = false;
};

// A received head. `head` is valid during the callback only. `payload` and `reply_space` are valid
// until the lease is returned; without a lease during the callback (inproc: see Payload).
struct Arrival {
  Bytes head;
  size_t payload_bytes;
  // The payload if it is in memory already: the sender's (inproc), shared (shm) or the transport's
  // (rdma). Else empty.
  Bytes payload;
  // Where the answer can be written; set on transports with leases, also for frames without
  // payload.
  MutableBytes reply_space;
  // Must be returned exactly once, also after an error, unless the connection is closed before.
  LeaseId lease = kNoLease;
};

// The receiver's decision where a payload goes.
class ReceiveBuffer {
 public:
  static ReceiveBuffer at(MutableBytes destination) { return ReceiveBuffer(Kind::kAt, destination); }
  // As at(); nobody reads the destination soon, so a transport that copies to it (shm) leaves the
  // caches to others.
  static ReceiveBuffer at_cold(MutableBytes destination) { return ReceiveBuffer(Kind::kAtCold, destination); }
  // Allowed only if Arrival::payload is not empty.
  static ReceiveBuffer in_place() { return ReceiveBuffer(Kind::kInPlace, {}); }
  // Reads the payload and drops it.
  static ReceiveBuffer discard() { return ReceiveBuffer(Kind::kDiscard, {}); }

  bool is_discard() const { return kind_ == Kind::kDiscard; }
  bool is_in_place() const { return kind_ == Kind::kInPlace; }
  bool is_cold() const { return kind_ == Kind::kAtCold; }
  MutableBytes destination() const { return destination_; }

 private:
  enum class Kind { kAt, kAtCold, kInPlace, kDiscard };
  ReceiveBuffer(Kind kind, MutableBytes destination) : kind_(kind), destination_(destination) {}
  Kind kind_;
  MutableBytes destination_;
};

// What a connection has sent since its start.
struct SentTraffic {
  uint64_t bytes = 0;         // acknowledged by the other end
  TimeUs busy_us = 0;         // time with bytes to be sent or acknowledged
  uint64_t resent_bytes = 0;  // that the network has lost; 0 also where that is unknown
  TimeUs min_rtt_us = 0;      // the shortest round trip of a packet; 0: unknown

  // That of several connections, with the longest of their round trips.
  SentTraffic& operator+=(const SentTraffic& other) {
    bytes += other.bytes;
    busy_us += other.busy_us;
    resent_bytes += other.resent_bytes;
    min_rtt_us = std::max(min_rtt_us, other.min_rtt_us);
    return *this;
  }
};

class Connection;

// Callbacks for received frames. Must outlive the connection.
class Receiver {
 public:
  virtual ~Receiver() = default;
  // Not called for frames without payload. The buffer must have exactly payload_bytes. An error
  // closes the connection.
  virtual Result<ReceiveBuffer> on_head(Connection& connection, const Arrival& arrival) = 0;
  // The frame is complete. `payload`: the receive buffer, or Arrival::payload if in place; empty if
  // discarded. An error closes the connection.
  virtual Status on_frame(Connection& connection, const Arrival& arrival, Bytes payload) = 0;
  // The network has reset the connection, and it is being made anew (transport/resume): see
  // Connection::is_interrupted. on_closed follows if that fails.
  virtual void on_interrupted(Connection& connection) { static_cast<void>(connection); }
  // Called once, unless this side called close() before; the last callback. `why`: ok after
  // close_when_sent(), kUnavailable for end-of-file or a socket error, kDataLoss for malformed
  // bytes. The connection may be destroyed only after this call has returned (EventLoop::post).
  virtual void on_closed(Connection& connection, const Status& why) = 0;
  // The peer has frames to send, but all its memory is leased. A receiver that holds leases until
  // other peers have made progress must return some now, as those peers might in turn wait for this
  // one. Called again only after a lease was returned.
  virtual void on_starving(Connection& connection) { static_cast<void>(connection); }
};

class Connection {
 public:
  // Calls close(). Not allowed inside a callback of this connection.
  virtual ~Connection() = default;

  // Starts delivery. Frames received earlier are kept until then. Call once.
  virtual void start(Receiver* receiver) = 0;

  // Queues one frame. `head` (at most kMaxHeadBytes) is copied. `on_sent` (may be empty) is called
  // on the loop, never inside send(), when the transport no longer needs `payload.data` or has
  // failed.
  virtual void send(Bytes head, const Payload& payload, UniqueFunction<void(const Status&)> on_sent) = 0;

  // Returns a lease without an answer.
  virtual void return_lease(LeaseId lease) { static_cast<void>(lease); }

  // Limits the sending rate, spread evenly; 0: no limit. No effect on transports that cannot.
  virtual void pace(uint64_t bytes_per_s) { static_cast<void>(bytes_per_s); }

  // Nullopt on transports that do not know, and within a machine.
  virtual std::optional<SentTraffic> sent_traffic() { return std::nullopt; }

  // Ends the connection (kUnavailable) when the peer's machine has not acknowledged data or probes
  // for this long, or has had no room for data to be written. Kernels send and answer the probes,
  // so no process wakes up and a slow process does not matter. No effect between processes of one
  // machine.
  virtual void limit_silence(TimeUs limit_us) { static_cast<void>(limit_us); }

  // Refuses further frames (kAborted), writes the queued ones, then waits until the peer closes, so
  // that its unread data does not cause a reset; the peer's frames are delivered until then. Calls
  // on_closed with ok at the end, or when `grace_period` has expired.
  virtual void close_when_sent(GracePeriod grace_period) = 0;
  // Closes immediately. Queued frames complete with on_sent(kAborted); no other callback follows.
  virtual void close() = 0;

  // In on_closed: whether the network has ended the connection, and not the peer, as far as this
  // machine can tell.
  virtual bool was_reset() const { return false; }
  // There is no way to the other end at present, and frames wait for one (Receiver::on_interrupted).
  virtual bool is_interrupted() const { return false; }

  virtual EventLoop& loop() = 0;
  // "tcp 10.0.0.2:9000" or "inproc", for messages.
  virtual const std::string& peer() const = 0;
  // Both ends are on this machine, so the connection does not use a network card.
  virtual bool is_local() const = 0;
};

class Listener {
 public:
  virtual ~Listener() = default;               // stops listening; not allowed inside its callbacks
  virtual const Address& address() const = 0;  // includes the port chosen by the kernel
  // Sets a callback for peers that speak this protocol but have another secret. Loop thread.
  virtual void tell_refused(UniqueFunction<void(const Address& caller, const Status& why)> on_refused) {
    static_cast<void>(on_refused);
  }
};

using AcceptCallback = UniqueFunction<void(std::unique_ptr<Connection>)>;
using ConnectCallback = UniqueFunction<void(Result<std::unique_ptr<Connection>>)>;

// How long to try to connect.
struct ConnectLimits {
  ConnectLimits(TimeUs deadline_us, TimeUs refusals_us = kNever)
      : deadline_us(deadline_us), refusals_us(refusals_us) {}
  // For an address at which a process has listened: until `patience_us` after `start_us`, but only as
  // long as that process may be there. A firewall that has just reset connections may refuse some, so
  // refusals count as the end of the process after a second, or a quarter of a shorter patience.
  static ConnectLimits while_it_lives(TimeUs start_us, TimeUs patience_us) {
    return {start_us + patience_us, std::min<TimeUs>(1'000'000, patience_us / 4)};
  }
  TimeUs deadline_us;
  // The peer's machine is there and has refused all connections for this long: no process listens at
  // the address.
  TimeUs refusals_us;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual const char* name() const = 0;
  // Ok if this machine and build support the transport, else the reason.
  virtual Status viable() const = 0;
  // Listens on `loop`. `on_accept` gets authenticated connections; others are dropped.
  virtual Result<std::unique_ptr<Listener>> listen(EventLoop& loop, const Address& address,
                                                   AcceptCallback on_accept) = 0;
  // As listen(), on a socket that is already bound and listening, perhaps inherited from a launcher.
  virtual Result<std::unique_ptr<Listener>> listen_on(EventLoop& loop, UniqueFd socket,
                                                      AcceptCallback on_accept) {
    static_cast<void>(loop), static_cast<void>(socket), static_cast<void>(on_accept);
    return unimplemented(std::string(name()) + ": cannot take over a socket");
  }
  // Connects and authenticates on `loop`. Retries within the limits while the address refuses
  // connections, nobody answers, or the peer hangs up before its verdict (shm does not retry, as
  // names are announced after listening). kUnavailable: no peer; kPermissionDenied: the peer has
  // another secret or job.
  virtual void connect(EventLoop& loop, const Address& address, ConnectLimits limits,
                       ConnectCallback on_done) = 0;
};

}  // namespace byteps::transport
