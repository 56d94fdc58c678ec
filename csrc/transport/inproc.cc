#include "transport/inproc.h"

#include <algorithm>
#include <array>
#include <deque>
#include <optional>

#include "base/check.h"
#include "base/scoped_flag.h"
#include "transport/receive_buffer.h"

namespace byteps::transport {
namespace {

constexpr int kFramesPerTurn = 64;  // then other handlers on the loop get their turn

using OnSent = UniqueFunction<void(const Status&)>;

Status closed_by_other_end() { return unavailable("inproc: closed by the other end"); }

struct QueuedFrame {
  std::array<std::byte, kMaxHeadBytes> head;
  size_t head_bytes;
  Payload payload;
  OnSent on_sent;
};

class InprocConnection final : public Connection, public TurnHandler {
 public:
  explicit InprocConnection(EventLoop& loop) : loop_(loop) {}
  ~InprocConnection() override {
    BPS_CHECK(!in_callback_) << "a connection is destroyed inside a callback of its own";
    close();
    if (other_) other_->other_ = nullptr;
  }
  static void join(InprocConnection& a, InprocConnection& b) {
    a.other_ = &b;
    b.other_ = &a;
  }

  void start(Receiver* receiver) override {
    BPS_CHECK(!receiver_) << "start() was called twice";
    receiver_ = receiver;
    request_turn();
  }
  void send(Bytes head, const Payload& payload, OnSent on_sent) override;
  void close_when_sent(GracePeriod grace_period) override;
  void close() override { shut(aborted("inproc: closed by this end")); }
  EventLoop& loop() override { return loop_; }
  const std::string& peer() const override { return peer_; }
  bool is_local() const override { return true; }
  void on_turn() override;

 private:
  bool is_open() const { return error_.is_ok(); }
  size_t unread() const { return other_ ? other_->inbox_.size() : 0; }
  void complete(OnSent on_sent, const Status& status);
  void complete_inbox(const Status& why);
  void expect_no_more();
  void on_end_of_inbox();
  void continue_closing();
  Status deliver(const QueuedFrame& frame);
  void end(const Status& why);
  void shut(const Status& why);
  void request_turn();

  EventLoop& loop_;
  const std::string peer_ = "inproc";
  InprocConnection* other_ = nullptr;  // null once destroyed
  std::deque<QueuedFrame> inbox_;
  bool sender_is_done_ = false;  // the other end sends no more
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
  if (!is_open()) return complete(std::move(on_sent), error_);
  if (closing_) return complete(std::move(on_sent), aborted("inproc: closing"));
  if (!other_ || !other_->is_open()) return complete(std::move(on_sent), closed_by_other_end());
  QueuedFrame& frame = other_->inbox_.emplace_back();
  std::ranges::copy(head, frame.head.begin());
  frame.head_bytes = head.size();
  frame.payload = payload;
  frame.on_sent = std::move(on_sent);
  other_->request_turn();
}

void InprocConnection::complete(OnSent on_sent, const Status& status) {
  if (!on_sent) return;
  loop_.post([on_sent = std::move(on_sent), status]() mutable { on_sent(status); });
}

void InprocConnection::complete_inbox(const Status& why) {
  for (QueuedFrame& frame : std::exchange(inbox_, {})) complete(std::move(frame.on_sent), why);
}

void InprocConnection::close_when_sent(GracePeriod grace_period) {
  if (closing_ || !is_open()) return;
  closing_ = true;
  // The other end closes when it has read all frames, which closes this end. If not, the deadline
  // does.
  if (other_) other_->expect_no_more();
  closing_wait_.emplace(grace_period, loop_.now_us());
  continue_closing();
}

void InprocConnection::continue_closing() {
  const auto next_us = closing_wait_->look(unread(), unread() > 0, loop_.now_us());
  deadline_ = loop_.run_at(next_us.value_or(loop_.now_us()),
                           [this, is_over = !next_us] { is_over ? end(Status::ok()) : continue_closing(); });
}

void InprocConnection::expect_no_more() {
  sender_is_done_ = true;
  request_turn();
}

void InprocConnection::on_turn() {
  turn_requested_ = false;
  for (int i = 0; i < kFramesPerTurn && receiver_ && is_open(); ++i) {
    if (inbox_.empty()) {
      if (sender_is_done_) on_end_of_inbox();
      return;
    }
    QueuedFrame frame = std::move(inbox_.front());
    inbox_.pop_front();
    const Status status = deliver(frame);
    complete(std::move(frame.on_sent), Status::ok());
    if (!status.is_ok() && is_open()) end(status);
  }
  request_turn();
}

void InprocConnection::on_end_of_inbox() {
  if (!closing_) return end(closed_by_other_end());
  // Otherwise the other end still reads, and calls expect_no_more() again when it closes.
  if (unread() == 0) end(Status::ok());
}

Status InprocConnection::deliver(const QueuedFrame& frame) {
  const ScopedFlag in_callback(in_callback_);
  const Bytes data = frame.payload.data;
  const Arrival arrival{.head = Bytes(frame.head).first(frame.head_bytes),
                        .payload_bytes = data.size(),
                        .payload = data,
                        .reply_space = frame.payload.reply_space};
  Bytes payload;
  if (!data.empty()) {
    const Result<ReceiveBuffer> receive_buffer = receiver_->on_head(*this, arrival);
    if (!receive_buffer) return receive_buffer.status();
    if (!is_open()) return Status::ok();  // closed by the callback
    payload = place_payload(*receive_buffer, data);
  }
  return receiver_->on_frame(*this, arrival, payload);
}

void InprocConnection::end(const Status& why) {
  shut(why.is_ok() ? aborted("inproc: closed before this was sent") : why);
  if (!receiver_) return;
  const ScopedFlag in_callback(in_callback_);
  receiver_->on_closed(*this, why);
}

void InprocConnection::shut(const Status& why) {
  if (!is_open()) return;
  error_ = why;
  loop_.cancel(deadline_);
  loop_.cancel_turn(this);
  complete_inbox(closed_by_other_end());
  if (!other_) return;
  other_->complete_inbox(why);
  other_->expect_no_more();
}

void InprocConnection::request_turn() {
  if (!receiver_ || !is_open() || std::exchange(turn_requested_, true)) return;
  loop_.request_turn(this);
}

}  // namespace

std::pair<std::unique_ptr<Connection>, std::unique_ptr<Connection>> make_inproc_pair(EventLoop& loop) {
  auto ends = std::pair(std::make_unique<InprocConnection>(loop), std::make_unique<InprocConnection>(loop));
  InprocConnection::join(*ends.first, *ends.second);
  return ends;
}

}  // namespace byteps::transport
