// Setup of a connection: both ends exchange queue pairs' parameters by TCP, then test the path.
#include <utility>

#include "transport/rdma/connection.h"

namespace byteps::transport::rdma {
namespace {

// Time for the peer to read the refusal.
constexpr TimeUs kRefusalUs = 5'000'000;

}  // namespace

void RdmaConnection::introduce(std::shared_ptr<NicLoop> nic_loop, uint16_t rail, OnReady on_ready) {
  side_ = Side::kConnecting;
  on_ready_ = std::move(on_ready);
  rail_ = rail;
  if (const Status status = prepare(std::move(nic_loop)); !status.is_ok()) {
    error_ = status;
    loop_.post([on_ready = std::exchange(on_ready_, nullptr), status]() mutable { on_ready(status); });
    return;
  }
  tcp_->start(this);
  tcp_->send(as_bytes(encode_offer(offer())), {}, nullptr);
}

void RdmaConnection::await_introduction(ChooseRail choose, OnReady on_ready) {
  choose_ = std::move(choose);
  on_ready_ = std::move(on_ready);
  tcp_->start(this);
}

Status RdmaConnection::prepare(std::shared_ptr<NicLoop> nic_loop) {
  nic_loop_ = std::move(nic_loop);
  nic_loop_->add(this);
  auto memory = nic_loop_->arena().take(2 * kRingBytes);
  if (!memory) return memory.status();
  memory_ = std::move(*memory);
  BPS_RETURN_IF_ERROR(prepare_queue_pair());
  Rail& rail = nic_loop_->rail();
  sender_.emplace(rail.registrations(), rail.nic().info().max_message_bytes,
                  memory_.bytes().first(kRingBytes), memory_.key().local, peer_);
  frame_receiver_.emplace(*this, *sender_, nic_loop_->arena(), memory_.bytes().last(kRingBytes),
                          options_.max_payload_bytes);
  return Status::ok();
}

Status RdmaConnection::prepare_queue_pair() {
  auto queue_pair = nic_loop_->make_queue_pair(
      this,
      {.max_writes = FrameSender::kMaxWrites, .max_arrivals = kMaxArrivals, .max_inline_bytes = kUnitBytes});
  if (!queue_pair) return queue_pair.status();
  queue_pair_ = std::move(*queue_pair);
  arrivals_owed_ = 0;
  arrivals_posted_ = kMaxArrivals;
  return queue_pair_->post_arrivals(kMaxArrivals);
}

EndpointOffer RdmaConnection::offer() const {
  const NicInfo& card = nic_loop_->rail().nic().info();
  return {.rail = rail_,
          .is_ethernet = card.is_ethernet,
          .queue_pair = queue_pair_->address(),
          .ring_address = reinterpret_cast<uint64_t>(memory_.bytes().last(kRingBytes).data()),
          .ring_key = memory_.key().remote,
          .attempt = attempt_,
          .arrivals = arrivals_,
          .card = (card.to_string() + ", " + card.gid_text).substr(0, kMaxCardBytes)};
}

Status RdmaConnection::on_offer(const EndpointOffer& other) {
  if (side_ == Side::kConnecting) {
    BPS_RETURN_IF_ERROR(open(other));
    return sender_->report_consumed(0, true);
  }
  if (const Status status = accept(other); !status.is_ok()) {
    tcp_->send(as_bytes(encode_refusal(status)), {}, nullptr);
    tcp_->close_when_sent(now_us() + kRefusalUs);
    error_ = status;
    return Status::ok();
  }
  tcp_->send(as_bytes(encode_offer(offer())), {}, nullptr);
  return Status::ok();
}

Status RdmaConnection::accept(const EndpointOffer& other) {
  if (!choose_) return data_loss("RDMA: a second offer");
  auto nic_loop = std::exchange(choose_, nullptr)(other);
  if (!nic_loop) return nic_loop.status();
  rail_ = other.rail;
  BPS_RETURN_IF_ERROR(prepare(std::move(*nic_loop)));
  return open(other);
}

Status RdmaConnection::open(const EndpointOffer& other) {
  const NicInfo& card = nic_loop_->rail().nic().info();
  if (other.is_ethernet != card.is_ethernet) {
    return unavailable("RDMA: " + other.card + " and " + card.to_string() +
                       " cannot reach each other: expected both to be Ethernet, or both InfiniBand");
  }
  peer_ += " (" + other.card + ")";
  BPS_RETURN_IF_ERROR(queue_pair_->connect(other.queue_pair));
  sender_->open(*queue_pair_, {other.ring_address, other.ring_key, kRingBytes});
  request_turn();
  return Status::ok();
}

// The peer's first message by RDMA: the path from the peer works; at the connecting end, both
// directions do.
Status RdmaConnection::on_first_message() {
  introduced_ = true;
  if (!broken_.is_ok()) {
    BPS_RETURN_IF_ERROR(on_path_renewed());
  } else if (side_ == Side::kAccepting) {
    BPS_RETURN_IF_ERROR(sender_->report_consumed(0, true));
  }
  if (on_ready_) std::exchange(on_ready_, nullptr)(Status::ok());
  return Status::ok();
}

// Receives from the TCP connection.
Result<ReceiveBuffer> RdmaConnection::on_head(Connection&, const Arrival&) {
  return data_loss(peer_ + ": a payload where none is expected");
}

Status RdmaConnection::on_frame(Connection&, const Arrival& arrival, Bytes) {
  if (has_peer_reply_) {
    if (options_.renewal_limit_us == 0) return data_loss(peer_ + ": a frame after the introduction");
    const Status status = on_renewal_message(arrival.head).with_context(peer_);
    if (!status.is_ok()) broken_ = status;
    return status;
  }
  const auto other = decode_offer(arrival.head);
  if (!other) return other.status().with_context(peer_);
  if (other->attempt != 0)
    return data_loss(peer_ + ": an offer of queue pair " + std::to_string(other->attempt));
  BPS_RETURN_IF_ERROR(on_offer(*other).with_context(peer_));
  has_peer_reply_ = true;
  return Status::ok();
}

void RdmaConnection::on_closed(Connection&, const Status& why) {
  if (on_ready_) {
    if (!error_.is_ok()) return end(error_);
    // The peer's time limit may expire first.
    const bool other_gave_up = has_peer_reply_ && why.code() == StatusCode::kUnavailable;
    return end(other_gave_up ? unavailable(peer_ + ": " + kNoRdmaPath + " (" + why.message() + ")") : why);
  }
  tcp_ended_ = true;  // the peer's last writes are still to be read
  request_turn();
}

}  // namespace byteps::transport::rdma
