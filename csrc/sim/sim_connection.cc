#include "sim/sim_connection.h"

#include <algorithm>
#include <functional>
#include <mutex>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/copy.h"
#include "transport/receive_buffer.h"

namespace byteps::sim {

using transport::Arrival;
using transport::kNoLease;
using transport::LeaseId;
using transport::Payload;
using transport::ReceiveBuffer;

namespace {

size_t digest(Bytes bytes) { return std::hash<std::string_view>()(as_text(bytes)); }

}  // namespace

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
  Frame frame{.first = {.is_first = true, .head = {head.begin(), head.end()}},
              .payload = payload,
              .on_sent = std::move(on_sent)};
  if (payload.returns_lease != kNoLease && holds_leases()) {
    auto returned = wire_->leases()->give_back(payload.returns_lease, payload.data);
    frame.first.returns = returned.lease;
    if (returned.answer) {
      frame.first.answer.emplace(std::move(*returned.answer));
      frame.payload.data = {};
    }
  }
  frame.first.frame_bytes = (frame.first.answer ? frame.first.answer->bytes() : frame.payload.data).size();
  frame.payload_digest = digest(frame.payload.data);
  queue_.push_back(std::move(frame));
  request_pump();
}

void SimConnection::return_lease(LeaseId lease) {
  if (lease == kNoLease || !holds_leases()) return;
  const LeaseId returned = wire_->leases()->give_back(lease, {}).lease;
  if (!open_ || closing_ || returned == kNoLease) return;
  queue_.push_back({.first = {.kind = Chunk::Kind::kGivenBack, .returns = returned}});
  request_pump();
}

void SimConnection::request_pump() {
  if (!open_ || turn_requested_) return;
  turn_requested_ = true;
  loop_.request_turn(this);
}

void SimConnection::on_turn() {
  turn_requested_ = false;
  while (open_ && !queue_.empty()) {
    if (wire_->room(side_) == 0) return;
    Frame& frame = queue_.front();
    if (!lease_for(frame)) {
      if (!std::exchange(starving_sent_, true)) wire_->send(side_, {.kind = Chunk::Kind::kStarving});
      return;
    }
    wire_->send(side_, next_chunk(frame));
    if (frame.sent < frame.payload.data.size()) continue;
    check_unchanged(frame);
    OnSent on_sent = std::move(frame.on_sent);
    queue_.pop_front();
    complete(std::move(on_sent), Status::ok());
  }
  if (open_ && closing_ && !std::exchange(end_sent_, true)) {
    wire_->send(side_, {.kind = Chunk::Kind::kEnd});
  }
}

// Returns false if the frame has to wait for a lease.
bool SimConnection::lease_for(Frame& frame) {
  SimLeases* const leases = wire_->leases();
  if (frame.begun || leases == nullptr || holds_leases() || !leases->may_lend(frame.payload)) return true;
  frame.first.lends = leases->lend(frame.payload);
  return frame.first.lends != kNoLease;
}

Chunk SimConnection::next_chunk(Frame& frame) {
  Chunk chunk{.frame_bytes = frame.first.frame_bytes};
  if (!std::exchange(frame.begun, true)) chunk = std::move(frame.first);
  const Bytes left = frame.payload.data.subspan(frame.sent);
  if (chunk.lends != kNoLease) {
    frame.sent += left.size();
    return chunk;
  }
  const size_t bytes = std::min({left.size(), wire_->room(side_), wire_->network().options().chunk_bytes});
  chunk.bytes.assign(left.begin(), left.begin() + static_cast<ptrdiff_t>(bytes));
  frame.sent += bytes;
  return chunk;
}

void SimConnection::check_unchanged(const Frame& frame) {
  if (frame.payload.data.empty() || digest(frame.payload.data) == frame.payload_digest) return;
  wire_->network().report("a payload of " + std::to_string(frame.payload.data.size()) + " bytes from " +
                          wire_->host(side_) + " to " + peer_ + " changed while it was sent");
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
    handle(std::move(chunk));
  }
}

void SimConnection::handle(Chunk chunk) {
  switch (chunk.kind) {
    case Chunk::Kind::kFrame: wire_->on_read(side_, chunk.bytes.size()); return read(std::move(chunk));
    case Chunk::Kind::kEnd:
      return end(closing_ ? Status::ok() : unavailable(peer_ + ": closed by the other end"));
    case Chunk::Kind::kStarving: return receiver_->on_starving(*this);
    case Chunk::Kind::kGivenBack: return take_back(chunk.returns);
  }
}

void SimConnection::take_back(LeaseId lease) {
  wire_->leases()->take_back(lease);
  starving_sent_ = false;
  request_pump();
}

void SimConnection::read(Chunk chunk) {
  const std::weak_ptr<const int> alive = alive_;
  const std::vector<std::byte> bytes = std::move(chunk.bytes);
  Status status = chunk.is_first ? begin_frame(std::move(chunk)) : Status::ok();
  if (alive.expired() || !open_) return;
  if (status.is_ok()) {
    if (incoming_.buffer && !incoming_.buffer->is_discard() && !bytes.empty()) {
      copy_bytes(incoming_.buffer->destination().subspan(incoming_.received, bytes.size()), bytes);
    }
    incoming_.received += bytes.size();
    if (incoming_.received == incoming_.first.frame_bytes) status = finish_frame();
  }
  if (!alive.expired() && open_ && !status.is_ok()) end(status);
}

Status SimConnection::begin_frame(Chunk chunk) {
  const size_t payload_bytes = chunk.frame_bytes;
  const bool by_reference = chunk.lends != kNoLease || chunk.answer;
  incoming_.first = std::move(chunk);
  incoming_.received = by_reference ? payload_bytes : 0;
  incoming_.buffer.reset();
  if (payload_bytes == 0) return Status::ok();
  const std::weak_ptr<const int> alive = alive_;
  Result<ReceiveBuffer> buffer = receiver_->on_head(*this, arrival_of(incoming_));
  if (!buffer) return buffer.status();
  if (!alive.expired()) incoming_.buffer = *buffer;
  return Status::ok();
}

Arrival SimConnection::arrival_of(const Incoming& frame) const {
  const Chunk& first = frame.first;
  Arrival arrival{.head = first.head, .payload_bytes = first.frame_bytes, .payload = {}, .reply_space = {}};
  if (first.answer) arrival.payload = first.answer->bytes();
  if (first.lends == kNoLease) return arrival;
  const SimLeases::Leased leased = wire_->leases()->leased(first.lends);
  arrival.payload = leased.data;
  arrival.reply_space = leased.reply_space;
  arrival.lease = first.lends;
  return arrival;
}

Status SimConnection::finish_frame() {
  Incoming frame = std::exchange(incoming_, {});
  const std::weak_ptr<const int> alive = alive_;
  const std::shared_ptr<Wire> wire = wire_;
  const Arrival arrival = arrival_of(frame);
  Bytes payload;
  if (!arrival.payload.empty()) {
    payload = transport::place_payload(*frame.buffer, arrival.payload);
  } else if (frame.buffer && !frame.buffer->is_discard()) {
    payload = frame.buffer->destination();
  }
  const Status status = receiver_->on_frame(*this, arrival, payload);
  if (frame.first.answer) wire->leases()->retire(frame.first.returns, std::move(*frame.first.answer));
  if (frame.first.returns != kNoLease && status.is_ok() && !alive.expired()) take_back(frame.first.returns);
  return status;
}

void SimConnection::on_reset() {
  if (!open_) return;
  was_reset_ = true;
  if (receiver_ != nullptr) return end(closing_ ? Status::ok() : unavailable(peer_ + ": connection reset"));
  for (Frame& frame : std::exchange(queue_, {})) {
    complete(std::move(frame.on_sent), unavailable(peer_ + ": connection reset"));
  }
  inbox_.push_back({.kind = Chunk::Kind::kEnd});
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
  for (const Frame& frame : queue_) left += 1 + frame.payload.data.size() - frame.sent;
  const std::optional<TimeUs> next_us = closing_wait_->look(left, left > 0, loop_.now_us());
  closing_timer_ = loop_.run_at(next_us.value_or(loop_.now_us()), [this, is_over = !next_us] {
    closing_timer_ = 0;
    is_over ? end(Status::ok()) : go_on_closing();
  });
}

void SimConnection::close() {
  // The loop of this end may have stopped, and that of the other end run.
  const std::lock_guard lock(wire_->network().time().mutex());
  shut(aborted(peer_ + ": closed before this was sent"));
  if (holds_leases()) wire_->leases()->revoke();
}

void SimConnection::end(const Status& why) {
  shut(why.is_ok() ? aborted(peer_ + ": closed before this was sent") : why);
  const std::weak_ptr<const int> alive = alive_;
  if (receiver_ != nullptr) receiver_->on_closed(*this, why);
  if (!alive.expired() && holds_leases()) wire_->leases()->revoke();
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
