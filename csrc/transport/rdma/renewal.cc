// Replacement of a queue pair that has failed. Frames go on where they were cut off.
//
// Cards give up after some seconds without an answer. Then each end takes from its queue pair what it
// has received, destroys it, and tells the other one by TCP how many immediates have come over all
// queue pairs. What has not come is written again: to the same places, from the same memory, which
// is neither used nor given back before. The rings and all other state stay.
//
// The connecting end offers each next queue pair, the accepting end can only ask for it; so there is
// one at a time. The accepting end writes nothing before the other end's first message.
#include <utility>

#include "base/log.h"
#include "transport/rdma/connection.h"

namespace byteps::transport::rdma {
namespace {

// Without a route, a queue pair cannot be connected.
constexpr TimeUs kPauseUs = 500'000;

}  // namespace

// May be called from inside callbacks of the queue pair, which is destroyed after that.
void RdmaConnection::break_off(const Status& why) {
  if (is_draining_) return;
  if (broken_.is_ok()) {
    broken_ = why;
    broken_since_us_ = now_us();
    if (in_vain_since_us_ == 0) in_vain_since_us_ = broken_since_us_;
    BPS_LOG(kInfo) << why.message() << ": the queue pair is replaced";
    renewal_limit_ = loop_.run_at(in_vain_since_us_ + options_.renewal_limit_us, [this] { end(broken_); });
  }
  is_draining_ = true;
  introduced_ = false;
  sender_->pause();
  queue_pair_->fail();
  request_turn();
}

// All that the failed queue pair has received has been taken from it.
Status RdmaConnection::replace_queue_pair() {
  is_draining_ = false;
  queue_pair_.reset();
  armed_ = false;
  const bool is_accepting = side_ == Side::kAccepting;
  if (is_accepting && (!other_ || other_->attempt == attempt_)) {
    tcp_->send(as_bytes(encode_renewal_request(attempt_)), {}, nullptr);
    return Status::ok();
  }
  attempt_ = is_accepting ? other_->attempt : attempt_ + 1;
  BPS_RETURN_IF_ERROR(prepare_queue_pair().with_context(peer_));
  if (is_accepting) {
    const Status status = queue_pair_->connect(other_->queue_pair);
    if (!status.is_ok()) return try_again_later(status.with_context(peer_));
  }
  tcp_->send(as_bytes(encode_offer(offer())), {}, nullptr);
  awaits_offer_ = !is_accepting;
  return Status::ok();
}

Status RdmaConnection::try_again_later(const Status& why) {
  if (why.code() != StatusCode::kUnavailable) return why;
  queue_pair_.reset();
  armed_ = false;
  loop_.cancel(next_attempt_);
  next_attempt_ = loop_.run_at(now_us() + kPauseUs, [this] {
    if (queue_pair_) return;  // the other end has offered another one
    const Status status = replace_queue_pair();
    status.is_ok() ? request_turn() : end(status);
  });
  return Status::ok();
}

Status RdmaConnection::on_renewal_message(Bytes message) {
  if (const auto attempt = decode_renewal_request(message)) return on_renewal_request(*attempt);
  const auto other = decode_offer(message);
  return other ? on_renewal_offer(*other) : other.status();
}

// The offer of the next queue pair may be on its way to the other end. If it has come, the other end
// cannot use it now.
Status RdmaConnection::on_renewal_request(uint32_t attempt) {
  if (side_ == Side::kAccepting || attempt > attempt_) {
    return data_loss("asked for another queue pair than " + std::to_string(attempt));
  }
  if (attempt < attempt_ || !queue_pair_) return Status::ok();
  if (!awaits_offer_ || is_draining_) {
    break_off(failed_at_other_end());
    return Status::ok();
  }
  request_turn();
  return replace_queue_pair();
}

Status RdmaConnection::on_renewal_offer(const EndpointOffer& other) {
  return side_ == Side::kAccepting ? on_next_offer(other) : on_answer(other);
}

// An offer may follow another one that has not been answered yet, whose queue pair has failed.
Status RdmaConnection::on_next_offer(const EndpointOffer& other) {
  if (other.attempt <= (other_ ? other_->attempt : attempt_)) {
    return data_loss("offered queue pair " + std::to_string(other.attempt) + " again");
  }
  other_ = other;
  if (queue_pair_) {
    break_off(failed_at_other_end());
    return Status::ok();
  }
  request_turn();
  return replace_queue_pair();
}

Status RdmaConnection::on_answer(const EndpointOffer& other) {
  if (other.attempt > attempt_ || (other.attempt == attempt_ && !awaits_offer_)) {
    return data_loss("answered to no offer, with queue pair " + std::to_string(other.attempt));
  }
  if (other.attempt < attempt_ || is_draining_) return Status::ok();  // of a queue pair that has failed
  awaits_offer_ = false;
  const Status status = queue_pair_->connect(other.queue_pair);
  if (!status.is_ok()) return try_again_later(status);
  request_turn();
  return go_on(other.arrivals);
}

Status RdmaConnection::failed_at_other_end() const {
  return unavailable(peer_ + ": RDMA failed at the other end");
}

// The other end is ready. It has received so many immediates.
Status RdmaConnection::go_on(uint32_t arrivals) {
  BPS_RETURN_IF_ERROR(sender_->renew(*queue_pair_, arrivals));
  return sender_->report_consumed(frame_receiver_->consumed(), true);
}

Status RdmaConnection::on_path_renewed() {
  if (side_ == Side::kAccepting) BPS_RETURN_IF_ERROR(go_on(other_->arrivals));
  loop_.cancel(renewal_limit_);
  BPS_LOG(kWarning) << broken_.message() << "; connected again after " << (now_us() - broken_since_us_) / 1000
                    << " ms, nothing is lost";
  broken_ = Status::ok();
  if (sender_->all_written()) in_vain_since_us_ = 0;
  return Status::ok();
}

}  // namespace byteps::transport::rdma
