#include "sim/sim_connection.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/copy.h"

namespace byteps::sim {

using transport::Arrival;
using transport::Payload;
using transport::ReceiveBuffer;

SimConnection::SimConnection(transport::EventLoop& loop, std::shared_ptr<Wire> wire, int side,
                             std::string peer)
    : loop_(loop), wire_(std::move(wire)), side_(side), peer_(std::move(peer)) {
  wire_->attach(side_, *this);
}

SimConnection::~SimConnection() { close(); }

void SimConnection::start(transport::Receiver* receiver) {
  receiver_ = receiver;
  loop_.post([this, alive = alive()] {
    if (!alive.expired()) read_inbox();
  });
}

void SimConnection::send(Bytes head, const Payload& payload, OnSent on_sent) {
  BPS_CHECK(head.size() <= transport::kMaxHeadBytes) << "a head of " << head.size() << " bytes";
  if (!open_ || closing_)
    return complete(std::move(on_sent), aborted(peer_ + ": closed before this was sent"));
  queue_.push_back({{head.begin(), head.end()}, payload.data, 0, false, std::move(on_sent)});
  request_pump();
}

void SimConnection::request_pump() {
  if (!open_ || turn_requested_) return;
  turn_requested_ = true;
  loop_.request_turn(this);
}

void SimConnection::on_turn() {
  turn_requested_ = false;
  pump();
}

void SimConnection::on_room() { request_pump(); }

void SimConnection::pump() {
  while (open_ && !queue_.empty()) {
    if (wire_->room(side_) == 0) return;
    Frame& frame = queue_.front();
    wire_->send(side_, next_chunk(frame));
    if (frame.sent < frame.payload.size()) continue;
    OnSent on_sent = std::move(frame.on_sent);
    queue_.pop_front();
    complete(std::move(on_sent), Status::ok());
  }
  if (open_ && closing_ && !std::exchange(end_sent_, true)) {
    wire_->send(side_, {.is_first = false, .is_end = true, .head = {}, .frame_bytes = 0, .bytes = {}});
  }
}

Chunk SimConnection::next_chunk(Frame& frame) {
  const size_t bytes = std::min(
      {frame.payload.size() - frame.sent, wire_->room(side_), wire_->network().options().chunk_bytes});
  const Bytes part = frame.payload.subspan(frame.sent, bytes);
  Chunk chunk{.is_first = !std::exchange(frame.begun, true),
              .is_end = false,
              .head = {},
              .frame_bytes = frame.payload.size(),
              .bytes = {part.begin(), part.end()}};
  if (chunk.is_first) chunk.head = frame.head;
  frame.sent += bytes;
  return chunk;
}

void SimConnection::on_chunk(Chunk chunk) {
  inbox_.push_back(std::move(chunk));
  if (receiver_ != nullptr) read_inbox();
}

void SimConnection::read_inbox() {
  const std::weak_ptr<const int> alive = alive_;
  while (!alive.expired() && open_ && !inbox_.empty()) {
    Chunk chunk = std::move(inbox_.front());
    inbox_.pop_front();
    if (chunk.is_end) return on_end();
    wire_->on_read(side_, chunk.bytes.size());
    read(std::move(chunk));
  }
}

void SimConnection::read(Chunk chunk) {
  const std::weak_ptr<const int> alive = alive_;
  Status status = chunk.is_first ? begin_frame(chunk) : Status::ok();
  if (alive.expired() || !open_) return;
  if (status.is_ok()) {
    if (incoming_.buffer && !incoming_.buffer->is_discard() && !chunk.bytes.empty()) {
      copy_bytes(incoming_.buffer->destination().subspan(incoming_.received, chunk.bytes.size()),
                 chunk.bytes);
    }
    incoming_.received += chunk.bytes.size();
    if (incoming_.received == incoming_.frame_bytes) status = finish_frame();
  }
  if (!alive.expired() && open_ && !status.is_ok()) end(status);
}

Status SimConnection::begin_frame(Chunk& chunk) {
  incoming_ = {std::move(chunk.head), chunk.frame_bytes, 0, std::nullopt};
  if (incoming_.frame_bytes == 0) return Status::ok();
  const Arrival arrival{
      .head = incoming_.head, .payload_bytes = incoming_.frame_bytes, .lent = {}, .reply_space = {}};
  const std::weak_ptr<const int> alive = alive_;
  Result<ReceiveBuffer> buffer = receiver_->on_head(*this, arrival);
  if (!buffer) return buffer.status();
  if (!alive.expired()) incoming_.buffer = *buffer;
  return Status::ok();
}

Status SimConnection::finish_frame() {
  const std::vector<std::byte> head = std::move(incoming_.head);
  const Bytes payload =
      incoming_.buffer && !incoming_.buffer->is_discard() ? Bytes(incoming_.buffer->destination()) : Bytes();
  incoming_.buffer.reset();
  const Arrival arrival{.head = head, .payload_bytes = incoming_.frame_bytes, .lent = {}, .reply_space = {}};
  return receiver_->on_frame(*this, arrival, payload);
}

void SimConnection::on_end() {
  end(closing_ ? Status::ok() : unavailable(peer_ + ": closed by the other end"));
}

void SimConnection::on_reset() {
  if (!open_) return;
  if (receiver_ != nullptr) return end(closing_ ? Status::ok() : unavailable(peer_ + ": connection reset"));
  for (Frame& frame : std::exchange(queue_, {})) {
    complete(std::move(frame.on_sent), unavailable(peer_ + ": connection reset"));
  }
  inbox_.push_back({.is_first = false, .is_end = true, .head = {}, .frame_bytes = 0, .bytes = {}});
}

void SimConnection::limit_silence(TimeUs limit_us) {
  silence_us_ = limit_us;
  if (silence_us_ != kNever && silence_timer_ == 0 && open_) look_for_silence();
}

void SimConnection::look_for_silence() {
  const TimeUs now = loop_.now_us();
  const TimeUs cut_since_us = wire_->cut_since_us();
  if (cut_since_us != kNever && now - cut_since_us >= silence_us_) {
    return end(unavailable(peer_ + ": no sign of life for " + std::to_string(silence_us_ / 1'000) + " ms"));
  }
  silence_timer_ = loop_.run_at(now + silence_us_ / 4, [this] { look_for_silence(); });
}

void SimConnection::close_when_sent(GracePeriod grace_period) {
  if (!open_ || closing_) return;
  closing_ = true;
  closing_wait_.emplace(grace_period, loop_.now_us());
  request_pump();
  go_on_closing();
}

void SimConnection::go_on_closing() {
  size_t left = wire_->unread(side_);
  for (const Frame& frame : queue_) left += 1 + frame.payload.size() - frame.sent;
  const std::optional<TimeUs> next_us = closing_wait_->look(left, left > 0, loop_.now_us());
  closing_timer_ = loop_.run_at(next_us.value_or(loop_.now_us()), [this, is_over = !next_us] {
    closing_timer_ = 0;
    is_over ? end(Status::ok()) : go_on_closing();
  });
}

void SimConnection::close() { shut(aborted(peer_ + ": closed before this was sent")); }

void SimConnection::end(const Status& why) {
  shut(why.is_ok() ? aborted(peer_ + ": closed before this was sent") : why);
  if (receiver_ != nullptr) receiver_->on_closed(*this, why);
}

void SimConnection::shut(const Status& why_unsent) {
  if (!std::exchange(open_, false)) return;
  wire_->detach(side_);
  if (std::exchange(turn_requested_, false)) loop_.cancel_turn(this);
  if (silence_timer_ != 0) loop_.cancel(silence_timer_);
  if (closing_timer_ != 0) loop_.cancel(closing_timer_);
  for (Frame& frame : std::exchange(queue_, {})) complete(std::move(frame.on_sent), why_unsent);
}

void SimConnection::complete(OnSent on_sent, const Status& status) {
  if (!on_sent) return;
  loop_.post([on_sent = std::move(on_sent), status]() mutable { on_sent(status); });
}

}  // namespace byteps::sim
