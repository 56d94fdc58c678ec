#include "transport/shm/connection.h"

#include <cstring>
#include <utility>

#include "base/check.h"
#include "transport/receive_buffer.h"

namespace byteps::transport {
namespace {

static_assert(kReferenceBytes + kMaxHeadBytes <= kMaxStreamHeadBytes);

// Removes the reference from the head.
Arrival unwrap(const Arrival& arrival) {
  return {arrival.head.subspan(kReferenceBytes), arrival.payload_bytes, {}, {}};
}

Status unexpected(const Reference& reference) {
  return data_loss("shared memory: a frame of type " + std::to_string(static_cast<int>(reference.type)) +
                   " from the wrong end");
}

}  // namespace

ShmConnection::Waiting::Waiting(Bytes head, const Payload& payload, OnSent on_sent)
    : head_bytes(head.size()), payload(payload), on_sent(std::move(on_sent)) {
  if (!head.empty()) std::memcpy(this->head.data(), head.data(), head.size());
}

ShmConnection::ShmConnection(EventLoop& loop, UniqueFd socket, std::string peer, Side side, Segment segment,
                             size_t max_payload_bytes)
    : segment_(std::move(segment)),
      stream_(loop, std::move(socket), std::move(peer), {max_payload_bytes, kMaxStreamHeadBytes}) {
  if (side == Side::kConnecting) {
    lease_owner_.emplace(segment_->bytes());
  } else {
    lease_holder_.emplace(segment_->bytes());
  }
}

ShmConnection::ShmConnection(EventLoop& loop, UniqueFd socket, std::string peer,
                             std::shared_ptr<SharedPool> pool, MutableBytes arena, size_t max_payload_bytes)
    : pool_(std::move(pool)),
      stream_(loop, std::move(socket), std::move(peer), {max_payload_bytes, kMaxStreamHeadBytes}) {
  lease_owner_.emplace(pool_->bytes(), arena);
}

void ShmConnection::start(Receiver* receiver) {
  receiver_ = receiver;
  stream_.start(this);
}

void ShmConnection::send(Bytes head, const Payload& payload, OnSent on_sent) {
  BPS_CHECK(head.size() <= kMaxHeadBytes) << "a head of " << head.size() << " bytes";
  // The stream reports why it cannot send.
  if (closing_) return stream_.send({}, {}, std::move(on_sent));
  if (lease_holder_) return send_answer(head, payload, std::move(on_sent));
  if (waiting_.empty() && lease_and_send(head, payload, on_sent)) return;
  waiting_.emplace_back(head, payload, std::move(on_sent));
  if (!std::exchange(starving_sent_, true)) write({.type = ReferenceType::kStarving}, {}, {}, nullptr);
}

// Returns false if there is no free slot.
bool ShmConnection::lease_and_send(Bytes head, const Payload& payload, OnSent& on_sent) {
  if (!lease_owner_->may_lease(payload)) {
    write({}, head, payload.data, std::move(on_sent));
    return true;
  }
  const std::optional<Reference> reference = lease_owner_->lease(payload);
  if (!reference) return false;
  write(*reference, head, {}, std::move(on_sent));
  return true;
}

void ShmConnection::send_answer(Bytes head, const Payload& payload, OnSent on_sent) {
  Reference reference;
  if (payload.returns_lease != kNoLease)
    reference = lease_holder_->return_lease(payload.returns_lease, payload.data);
  const bool in_place = reference.type == ReferenceType::kReturned;
  write(reference, head, in_place ? Bytes() : payload.data, std::move(on_sent));
}

void ShmConnection::return_lease(LeaseId lease) {
  if (lease == kNoLease || !lease_holder_) return;
  lease_holder_->return_lease(lease, {});
  if (!closing_) write({ReferenceType::kGivenBack, lease}, {}, {}, nullptr);
}

void ShmConnection::write(const Reference& reference, Bytes head, Bytes payload, OnSent on_sent) {
  std::array<std::byte, kMaxStreamHeadBytes> front;
  encode_reference(reference, std::span(front).first<kReferenceBytes>());
  if (!head.empty()) std::memcpy(front.data() + kReferenceBytes, head.data(), head.size());
  stream_.send(Bytes(front).first(kReferenceBytes + head.size()), {payload, {}}, std::move(on_sent));
}

void ShmConnection::close_when_sent(GracePeriod grace_period) {
  if (std::exchange(closing_, true)) return;
  if (waiting_.empty()) return stream_.close_when_sent(grace_period);
  grace_ = grace_period;
  closing_wait_.emplace(grace_period, now_us());
  continue_closing();
}

void ShmConnection::continue_closing() {
  if (const auto next_us = closing_wait_->look(waiting_.size(), true, now_us())) {
    deadline_ = loop().run_at(*next_us, [this] { continue_closing(); });
    return;
  }
  fail_waiting(aborted(peer() + ": closed before this was sent"));
  stream_.close_when_sent(now_us());
}

void ShmConnection::close() {
  closing_ = true;
  loop().cancel(deadline_);
  stream_.close();
  fail_waiting(aborted(peer() + ": closed by this end"));
}

// Called only for payloads sent through the socket.
Result<ReceiveBuffer> ShmConnection::on_head(Connection&, const Arrival& arrival) {
  const auto reference = decode_reference(arrival.head);
  if (!reference) return reference.status().with_context(peer());
  if (reference->type != ReferenceType::kInline) {
    return data_loss(peer() + ": a payload with a reference of type " +
                     std::to_string(static_cast<int>(reference->type)));
  }
  return receiver_->on_head(*this, unwrap(arrival));
}

Status ShmConnection::on_frame(Connection&, const Arrival& arrival, Bytes payload) {
  const auto reference = decode_reference(arrival.head);
  if (!reference) return reference.status().with_context(peer());
  const Arrival frame = unwrap(arrival);
  return lease_owner_ ? on_owner_frame(*reference, frame, payload)
                      : on_holder_frame(*reference, frame, payload);
}

Status ShmConnection::on_owner_frame(const Reference& reference, const Arrival& frame, Bytes payload) {
  switch (reference.type) {
    case ReferenceType::kInline:
      BPS_RETURN_IF_ERROR(receiver_->on_frame(*this, frame, payload));
      return reference.lease == kNoLease ? Status::ok() : take_back(reference.lease);
    case ReferenceType::kReturned: {
      const auto answer = lease_owner_->answer(reference);
      if (!answer) return answer.status();
      BPS_RETURN_IF_ERROR(deliver_in_place({frame.head, answer->size(), *answer, {}}));
      return take_back(reference.lease);
    }
    case ReferenceType::kGivenBack: return take_back(reference.lease);
    default: return unexpected(reference);
  }
}

Status ShmConnection::on_holder_frame(const Reference& reference, const Arrival& frame, Bytes payload) {
  switch (reference.type) {
    case ReferenceType::kInline:
      if (reference.lease != kNoLease) return unexpected(reference);
      return receiver_->on_frame(*this, frame, payload);
    case ReferenceType::kLent: {
      const auto leased = lease_holder_->accept(reference);
      if (!leased) return leased.status();
      return deliver_in_place(
          {frame.head, leased->data.size(), leased->data, leased->reply_space, reference.lease});
    }
    case ReferenceType::kStarving: receiver_->on_starving(*this); return Status::ok();
    default: return unexpected(reference);
  }
}

Status ShmConnection::deliver_in_place(const Arrival& arrival) {
  Bytes payload;
  if (arrival.payload_bytes > 0) {
    const Result<ReceiveBuffer> receive_buffer = receiver_->on_head(*this, arrival);
    if (!receive_buffer) return receive_buffer.status();
    if (!stream_.open()) return Status::ok();  // closed by the callback
    payload = place_payload(*receive_buffer, arrival.payload);
  }
  return receiver_->on_frame(*this, arrival, payload);
}

Status ShmConnection::take_back(LeaseId lease) {
  BPS_RETURN_IF_ERROR(lease_owner_->take_back(lease));
  starving_sent_ = false;
  send_waiting();
  return Status::ok();
}

void ShmConnection::send_waiting() {
  if (waiting_.empty()) return;
  while (!waiting_.empty()) {
    Waiting& first = waiting_.front();
    if (!lease_and_send(Bytes(first.head).first(first.head_bytes), first.payload, first.on_sent)) {
      starving_sent_ = true;
      return write({.type = ReferenceType::kStarving}, {}, {}, nullptr);
    }
    waiting_.pop_front();
  }
  if (!closing_) return;
  loop().cancel(deadline_);
  stream_.close_when_sent(grace_);
}

void ShmConnection::fail_waiting(const Status& why) {
  for (Waiting& frame : std::exchange(waiting_, {})) {
    if (frame.on_sent) frame.on_sent(why);
  }
}

void ShmConnection::on_closed(Connection&, const Status& why) {
  closing_ = true;
  loop().cancel(deadline_);
  fail_waiting(why.is_ok() ? aborted(peer() + ": closed before this was sent") : why);
  receiver_->on_closed(*this, why);
}

}  // namespace byteps::transport
