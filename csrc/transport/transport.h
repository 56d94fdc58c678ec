// How bytes move between two processes, or between two parts of one: the whole interface.
//
// A connection carries frames, in order, both ways. A frame is a head (small, copied, meaning known to
// protocol/) and a payload (any size, never copied on its way out). Who receives is asked where a payload
// shall land before it is read, so it goes straight to the place where it is summed or used.
//
// Threads: every connection and listener belongs to one EventLoop; all methods and callbacks run on that
// loop's thread unless a line below says otherwise. A transport may be used from any thread.
// Errors: the first one closes the connection, completes every unsent frame with it, and is reported once.
#pragma once

#include <memory>
#include <string>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/grace_period.h"
#include "base/status.h"
#include "base/unique_function.h"
#include "transport/address.h"
#include "transport/event_loop.h"

namespace byteps::transport {

inline constexpr size_t kMaxHeadBytes = 256;

// Memory that a sender has lent with a frame, until the receiver gives it back with a frame of its own
// (Payload::returns_lease) or with Connection::return_lease. Numbered per connection.
using LeaseId = uint32_t;
inline constexpr LeaseId kNoLease = 0;

// What travels with a head. `data` stays valid and unchanged until on_sent (transports that copy) or, where
// the receiver took the lease (see ReceiveBuffer), until the receiver's own protocol says that it is done with it.
struct Payload {
  Bytes data;
  // Where the answer of the same size will be wanted, or empty. It stays valid until the answer has come or the lease is
  // given back. Transports that lend offer the receiver memory for it: this very memory (inproc), or memory that both
  // share (shm); or bring the answer there wherever the receiver has it (rdma). Others ignore it.
  MutableBytes reply_space;
  // A lease of the frame that this one answers, or kNoLease. If `data` begins where that frame's Arrival::reply_space
  // did, it goes by reference: nothing is copied, and `data` may not be touched any more.
  LeaseId returns_lease = kNoLease;
  // Frames with the same reuse_key (any number but 0) follow each other: each is answered or given back before the next is sent.
  // Transports that bring payloads into memory of the other end (rdma) use the same memory for all of them.
  uint64_t reuse_key = 0;
};

// A frame whose head has come in. `head` is valid during the callback only; `lent` and `reply_space` of a frame
// with a lease until that is given back, without one during the callback (inproc: see Payload).
struct Arrival {
  Bytes head;
  size_t payload_bytes;
  // Where the payload is already: the sender's own memory (inproc), memory that both share (shm), memory of this process
  // that the transport has for it (rdma). Else empty.
  Bytes lent;
  MutableBytes reply_space;  // by transports that lend, also for a frame without payload; else empty
  LeaseId lease =
      kNoLease;  // to be given back exactly once, whatever became of the frame, unless closed before
};

// Where a payload shall go.
class ReceiveBuffer {
 public:
  static ReceiveBuffer at(MutableBytes destination) { return ReceiveBuffer(Kind::kAt, destination); }
  static ReceiveBuffer in_place() {
    return ReceiveBuffer(Kind::kInPlace, {});
  }  // only if `lent` is not empty
  static ReceiveBuffer discard() { return ReceiveBuffer(Kind::kDiscard, {}); }  // read and thrown away

  bool is_discard() const { return kind_ == Kind::kDiscard; }
  bool is_in_place() const { return kind_ == Kind::kInPlace; }
  MutableBytes destination() const { return destination_; }

 private:
  enum class Kind { kAt, kInPlace, kDiscard };
  ReceiveBuffer(Kind kind, MutableBytes destination) : kind_(kind), destination_(destination) {}
  Kind kind_;
  MutableBytes destination_;
};

class Connection;

// Who owns a connection's incoming side. Must outlive the connection.
class Receiver {
 public:
  virtual ~Receiver() = default;
  // Not called for frames without payload. The receive_buffer's size must be exactly payload_bytes. An error closes.
  virtual Result<ReceiveBuffer> on_head(Connection& connection, const Arrival& arrival) = 0;
  // The frame is complete: `payload` is where it landed, or the lease; empty if discarded. An error closes.
  virtual Status on_frame(Connection& connection, const Arrival& arrival, Bytes payload) = 0;
  // Once, unless close() was called by this side first. `why`: kUnavailable for an end-of-file or a socket
  // error, kDataLoss for bytes that are no frame. No callback follows. The connection may be destroyed only
  // after this call has returned (EventLoop::post).
  virtual void on_closed(Connection& connection, const Status& why) = 0;
  // The other end has frames to send and has lent all it can lend: it waits for leases to be given back. Whoever keeps
  // leases until others have done something must not keep them for ever now, or those others might wait for that
  // end in turn. Called again only after a lease was given back.
  virtual void on_starving(Connection& connection) { static_cast<void>(connection); }
};

class Connection {
 public:
  // Closes at once; frames not yet written complete with kAborted. Not from inside a callback of its own.
  virtual ~Connection() = default;

  // Begins to deliver. Frames that came earlier are kept. Once.
  virtual void start(Receiver* receiver) = 0;

  // Queues one frame. `head` is copied (at most kMaxHeadBytes). `on_sent` (may be empty) is called on the loop,
  // never from inside send(), when the transport needs `payload.data` no longer or has failed.
  virtual void send(Bytes head, const Payload& payload, UniqueFunction<void(const Status&)> on_sent) = 0;

  // The receiver needs this lease no longer, and no answer goes into its reply space.
  virtual void return_lease(LeaseId lease) { static_cast<void>(lease); }

  // From now on at most so many bytes go out in a second, evenly; 0: as many as can. Where there is no such thing,
  // nothing changes.
  virtual void pace(uint64_t bytes_per_s) { static_cast<void>(bytes_per_s); }

  // From now on the connection ends (kUnavailable) when the machine at the other end has given no sign of life for so long
  // though it was asked for one, or has had no room for what is to be written. The kernels ask and answer: nobody wakes
  // up for it, and a process that is slow to answer is no matter. Between processes of one machine nothing changes.
  virtual void limit_silence(TimeUs limit_us) { static_cast<void>(limit_us); }

  // Refuses further frames (kAborted), writes what was queued, then waits for the other end to close, so that
  // what it had under way does not cut off what was written; frames from it are delivered until then. Calls
  // on_closed with ok at the end, or when `grace_period` is over.
  virtual void close_when_sent(GracePeriod grace_period) = 0;
  // Closes now: no callback but on_sent(kAborted) for what was queued.
  virtual void close() = 0;

  virtual EventLoop& loop() = 0;
  // "tcp 10.0.0.2:9000" or "inproc", for messages.
  virtual const std::string& peer() const = 0;
  // Both ends are on this machine: what is sent takes no time of a network card.
  virtual bool is_local() const = 0;
};

class Listener {
 public:
  virtual ~Listener() = default;               // stops listening; not from inside its callbacks
  virtual const Address& address() const = 0;  // with the port the kernel chose
  // From now on `on_refused` is told of callers that speak this protocol and have another secret. Loop thread.
  virtual void tell_refused(UniqueFunction<void(const Address& caller, const Status& why)> on_refused) {
    static_cast<void>(on_refused);
  }
};

using AcceptCallback = UniqueFunction<void(std::unique_ptr<Connection>)>;
using ConnectCallback = UniqueFunction<void(Result<std::unique_ptr<Connection>>)>;

class Transport {
 public:
  virtual ~Transport() = default;
  virtual const char* name() const = 0;
  // Ok if this machine and build can use it; else the reason.
  virtual Status viable() const = 0;
  // Accepts on `loop`. `on_accept` gets connections that have proved the job's secret; others are dropped.
  virtual Result<std::unique_ptr<Listener>> listen(EventLoop& loop, const Address& address,
                                                   AcceptCallback on_accept) = 0;
  // Connects and authenticates on `loop`; tries again while the address refuses or who is there hangs up before it has
  // judged this side's proof, until `deadline_us` (shm: does not, as nobody knows a name that is still to come).
  // kUnavailable: nobody there by then; kPermissionDenied: the other side has said that it has another secret or job.
  virtual void connect(EventLoop& loop, const Address& address, TimeUs deadline_us,
                       ConnectCallback on_done) = 0;
};

}  // namespace byteps::transport
