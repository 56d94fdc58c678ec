#include "transport/inproc.h"

#include <array>
#include <cstring>
#include <deque>
#include <optional>

#include "base/annotations.h"
#include "base/check.h"
#include "base/scoped_flag.h"
#include "transport/receive_buffer.h"

namespace byteps::transport {
namespace {

constexpr int kFramesPerTurn = 64;  // then other handlers on the loop get their turn

using OnSent = UniqueFunction<void(const Status&)>;

// A frame in transit. on_sent runs on the sender's loop, whichever thread completes the frame.
class QueuedFrame {
 public:
  QueuedFrame(EventLoop& sender_loop, Bytes head, const Payload& payload, OnSent on_sent)
      : sender_loop_(&sender_loop),
        head_bytes_(head.size()),
        payload_(payload),
        on_sent_(std::move(on_sent)) {
    if (!head.empty()) std::memcpy(head_.data(), head.data(), head.size());
  }

  Arrival arrival() const {
    return {Bytes(head_).first(head_bytes_), payload_.data.size(), payload_.data, payload_.reply_space};
  }
  void complete(const Status& status) {
    if (!on_sent_) return;
    sender_loop_->post([on_sent = std::move(on_sent_), status]() mutable { on_sent(status); });
  }

 private:
  EventLoop* sender_loop_;
  std::array<std::byte, kMaxHeadBytes> head_;
  size_t head_bytes_;
  Payload payload_;
  OnSent on_sent_;
};

// One direction of a connection. Thread-safe.
class FrameQueue {
 public:
  // Returns true if the receiver has to be notified. Completes the frame if the receiver is gone.
  bool put(QueuedFrame frame) {
    {
      MutexLock lock(mutex_);
      if (!refusing_) {
        frames_.push_back(std::move(frame));
        return frames_.size() == 1;
      }
    }
    frame.complete(unavailable("inproc: closed by the other end"));
    return false;
  }
  // Returns nullopt if the queue is empty; then `*finished` says whether no more frames will come.
  std::optional<QueuedFrame> take(bool* finished) {
    MutexLock lock(mutex_);
    *finished = finished_ && frames_.empty();
    if (frames_.empty()) return std::nullopt;
    std::optional<QueuedFrame> frame(std::move(frames_.front()));
    frames_.pop_front();
    return frame;
  }
  bool empty() const { return size() == 0; }
  size_t size() const {
    MutexLock lock(mutex_);
    return frames_.size();
  }
  // The sender will put no more frames.
  void finish() {
    MutexLock lock(mutex_);
    finished_ = true;
  }
  // Completes all queued and future frames with `why`.
  void refuse(const Status& why) {
    std::deque<QueuedFrame> rest;
    {
      MutexLock lock(mutex_);
      refusing_ = true;
      rest.swap(frames_);
    }
    for (QueuedFrame& frame : rest) frame.complete(why);
  }

 private:
  mutable Mutex mutex_;
  std::deque<QueuedFrame> frames_ BPS_GUARDED_BY(mutex_);
  bool finished_ BPS_GUARDED_BY(mutex_) = false;
  bool refusing_ BPS_GUARDED_BY(mutex_) = false;
};

class InprocConnection;

// State shared by both ends.
struct Link {
  struct End {
    EventLoop* loop;
    InprocConnection* connection;  // null once destroyed; used on its loop only
    FrameQueue inbox;
  };
  std::array<End, 2> ends;
};

class InprocConnection final : public Connection, public TurnHandler {
 public:
  InprocConnection(std::shared_ptr<Link> link, int self)
      : link_(std::move(link)), self_(link_->ends[self]), other_(link_->ends[1 - self]) {
    self_.connection = this;
  }
  ~InprocConnection() override {
    BPS_CHECK(!in_callback_) << "a connection is destroyed inside a callback of its own";
    close();
    self_.connection = nullptr;
  }

  void start(Receiver* receiver) override {
    BPS_CHECK(!receiver_) << "start() was called twice";
    receiver_ = receiver;
    request_turn();
  }
  void send(Bytes head, const Payload& payload, OnSent on_sent) override;
  void close_when_sent(GracePeriod grace_period) override;
  void close() override { shut(aborted("inproc: closed by this end")); }
  EventLoop& loop() override { return *self_.loop; }
  const std::string& peer() const override { return peer_; }
  bool is_local() const override { return true; }

  void on_turn() override {
    turn_requested_ = false;
    read_inbox();
  }
  void read_inbox();

 private:
  bool open() const { return error_.is_ok(); }
  void on_finished();
  void continue_closing();
  Status deliver(const QueuedFrame& frame);
  Result<Bytes> receive_payload(const Arrival& arrival);
  void end(const Status& why);
  void shut(const Status& why);
  void request_turn();
  void tell_other_end();

  const std::shared_ptr<Link> link_;
  Link::End& self_;
  Link::End& other_;
  const std::string peer_ = "inproc";
  Receiver* receiver_ = nullptr;
  Status error_;  // the reason why this end is closed
  bool closing_ = false;
  bool turn_requested_ = false;
  bool in_callback_ = false;
  std::optional<GraceWait> closing_wait_;
  EventLoop::TimerId deadline_ = 0;
};

void InprocConnection::send(Bytes head, const Payload& payload, OnSent on_sent) {
  BPS_CHECK(head.size() <= kMaxHeadBytes) << "a head of " << head.size() << " bytes";
  QueuedFrame frame(*self_.loop, head, payload, std::move(on_sent));
  if (closing_ || !open()) return frame.complete(open() ? aborted("inproc: closing") : error_);
  if (other_.inbox.put(std::move(frame))) tell_other_end();
}

void InprocConnection::close_when_sent(GracePeriod grace_period) {
  if (closing_ || !open()) return;
  closing_ = true;
  // The other end closes when it has read all frames, which closes this end. If not, the deadline
  // does.
  other_.inbox.finish();
  tell_other_end();
  closing_wait_.emplace(grace_period, loop().now_us());
  continue_closing();
}

void InprocConnection::continue_closing() {
  const size_t left = other_.inbox.size();
  const auto next_us = closing_wait_->look(left, left > 0, loop().now_us());
  const TimeUs at_us = next_us.value_or(loop().now_us());
  deadline_ = self_.loop->run_at(
      at_us, [this, is_over = !next_us] { is_over ? end(Status::ok()) : continue_closing(); });
}

void InprocConnection::read_inbox() {
  for (int i = 0; i < kFramesPerTurn && receiver_ && open(); ++i) {
    bool finished = false;
    std::optional<QueuedFrame> frame = self_.inbox.take(&finished);
    if (finished) return on_finished();
    if (!frame) return;
    const Status status = deliver(*frame);
    frame->complete(Status::ok());
    if (!status.is_ok() && open()) end(status);
  }
  if (receiver_ && open()) request_turn();
}

// The other end sends no more frames.
void InprocConnection::on_finished() {
  if (!closing_) return end(unavailable("inproc: closed by the other end"));
  // If the queue is not empty, the other end still reads and notifies this end when it has
  // finished.
  if (other_.inbox.empty()) end(Status::ok());
}

Status InprocConnection::deliver(const QueuedFrame& frame) {
  const ScopedFlag in_callback(in_callback_);
  const Arrival arrival = frame.arrival();
  Bytes payload;
  if (arrival.payload_bytes > 0) {
    Result<Bytes> received = receive_payload(arrival);
    if (!received) return received.status();
    payload = *received;
    if (!open()) return Status::ok();  // closed by the callback
  }
  return receiver_->on_frame(*this, arrival, payload);
}

Result<Bytes> InprocConnection::receive_payload(const Arrival& arrival) {
  const Result<ReceiveBuffer> receive_buffer = receiver_->on_head(*this, arrival);
  if (!receive_buffer) return receive_buffer.status();
  return open() ? place_payload(*receive_buffer, arrival.payload) : Bytes();
}

void InprocConnection::end(const Status& why) {
  shut(why.is_ok() ? aborted("inproc: closed before this was sent") : why);
  if (!receiver_) return;
  const ScopedFlag in_callback(in_callback_);
  receiver_->on_closed(*this, why);
}

void InprocConnection::shut(const Status& why) {
  if (!open()) return;
  error_ = why;
  self_.loop->cancel(deadline_);
  self_.loop->cancel_turn(this);
  other_.inbox.refuse(why);
  other_.inbox.finish();
  self_.inbox.refuse(unavailable("inproc: closed by the other end"));
  tell_other_end();
}

void InprocConnection::request_turn() {
  if (std::exchange(turn_requested_, true)) return;
  self_.loop->request_turn(this);
}

void InprocConnection::tell_other_end() {
  other_.loop->post([link = link_, &end = other_] {
    if (end.connection) end.connection->read_inbox();
  });
}

}  // namespace

std::pair<std::unique_ptr<Connection>, std::unique_ptr<Connection>> make_inproc_pair(EventLoop& first,
                                                                                     EventLoop& second) {
  auto link = std::make_shared<Link>();
  link->ends[0].loop = &first;
  link->ends[1].loop = &second;
  auto end = std::make_unique<InprocConnection>(link, 0);
  return {std::move(end), std::make_unique<InprocConnection>(link, 1)};
}

}  // namespace byteps::transport
