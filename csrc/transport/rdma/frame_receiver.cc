#include "transport/rdma/frame_receiver.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/copy.h"
#include "base/log.h"
#include "transport/receive_buffer.h"

namespace byteps::transport::rdma {
namespace {

Status unexpected(const std::string& peer, const char* what, LeaseId lease) {
  return data_loss(peer + ": " + what + " " + std::to_string(lease));
}

}  // namespace

FrameReceiver::FrameReceiver(Connection& connection, FrameSender& sender, Arena& arena, MutableBytes inbox,
                             uint64_t max_payload_bytes)
    : connection_(connection),
      sender_(sender),
      arena_(arena),
      inbox_(inbox),
      max_payload_bytes_(max_payload_bytes) {}

Status FrameReceiver::on_record(uint32_t units) {
  const auto extent = ring_.next(units);
  if (!extent) return extent.status().with_context(connection_.peer());
  if (unread_.size() >= kRingUnits)
    return data_loss(connection_.peer() + ": more records than the ring has room for");
  unread_.push_back(*extent);
  const uint32_t consumed = consumed_of(inbox_.subspan(extent->position * kUnitBytes));
  return sender_.on_consumed(consumed).with_context(connection_.peer());
}

Status FrameReceiver::process() {
  while (!unread_.empty() && !stopped_ && !ended_) {
    const RingReader::Extent extent = unread_.front();
    const Bytes in = inbox_.subspan(extent.position * kUnitBytes, extent.units * kUnitBytes);
    const auto record = decode_record(in, max_payload_bytes_);
    if (!record) return record.status().with_context(connection_.peer());
    if (!can_process(*record)) return Status::ok();
    const Bytes head = in.subspan(kRecordBytes, record->head_bytes);
    BPS_RETURN_IF_ERROR(handle(*record, head, in.subspan(kRecordBytes + head.size(), record->inline_bytes)));
    unread_.pop_front();
    ring_.consume(extent);
  }
  return Status::ok();
}

// Before start() neither frames nor requests for their memory are processed.
bool FrameReceiver::can_process(const Record& record) const {
  return receiver_ != nullptr || record.type == RecordType::kReserved ||
         record.type == RecordType::kRelease || record.type == RecordType::kGiveBack;
}

Status FrameReceiver::handle(const Record& record, Bytes head, Bytes payload) {
  const bool is_frame = record.type == RecordType::kFrame || record.type == RecordType::kPlaced ||
                        record.type == RecordType::kAnswered;
  if (partial_ && is_frame) return data_loss(connection_.peer() + ": a frame inside another");
  switch (record.type) {
    case RecordType::kFrame: return on_frame(record, head, payload);
    case RecordType::kMore: return on_more(payload);
    case RecordType::kPlaced: return on_placed(record, head);
    case RecordType::kAnswered: return on_answered(record, head);
    case RecordType::kReserve: return on_reserve(record);
    case RecordType::kReserved: return sender_.leases().on_reserved(record);
    case RecordType::kRelease: return on_release(record);
    case RecordType::kGiveBack: return sender_.leases().take_back(record.returns_lease);
    case RecordType::kEnd: ended_ = true; return Status::ok();
  }
  return internal("a record of unknown type");
}

Status FrameReceiver::on_frame(const Record& record, Bytes head, Bytes payload) {
  PeerLease lease{{}, {record.address, record.key, record.reply_bytes}, true};
  if (record.lease != kNoLease && !peer_leases_.try_emplace(record.lease, std::move(lease)).second) {
    return unexpected(connection_.peer(), "a lease that is in use already: lease", record.lease);
  }
  if (record.returns_lease != kNoLease) BPS_RETURN_IF_ERROR(sender_.leases().take_back(record.returns_lease));
  const Arrival arrival{head, record.payload_bytes, {}, {}, record.lease};
  if (arrival.payload_bytes == 0) return receiver_->on_frame(connection_, arrival, {});
  const Result<ReceiveBuffer> receive_buffer = receiver_->on_head(connection_, arrival);
  if (!receive_buffer) return receive_buffer.status();
  if (stopped_) return Status::ok();
  BPS_CHECK(!receive_buffer->is_in_place()) << "in_place() for a payload that is not in memory";
  BPS_CHECK(receive_buffer->is_discard() || receive_buffer->destination().size() == arrival.payload_bytes)
      << "a receive buffer of " << receive_buffer->destination().size() << " bytes for "
      << arrival.payload_bytes;
  if (payload.size() < arrival.payload_bytes) {
    partial_.emplace(Partial{{}, arrival, *receive_buffer, arrival.payload_bytes});
    std::ranges::copy(head, partial_->head.begin());
    return on_more(payload);
  }
  return receiver_->on_frame(connection_, arrival, place_payload(*receive_buffer, payload));
}

Status FrameReceiver::on_more(Bytes payload) {
  if (!partial_ || payload.size() > partial_->missing_bytes) {
    return data_loss(connection_.peer() + ": further payload without a frame");
  }
  const MutableBytes destination = partial_->receive_buffer.destination();
  if (!partial_->receive_buffer.is_discard()) copy_bytes(destination.last(partial_->missing_bytes), payload);
  partial_->missing_bytes -= payload.size();
  if (partial_->missing_bytes > 0) return Status::ok();
  const Partial whole = *partial_;
  partial_.reset();
  Arrival arrival = whole.arrival;  // its head was valid during the callback only
  arrival.head = Bytes(whole.head).first(arrival.head.size());
  return receiver_->on_frame(connection_, arrival, destination);
}

Status FrameReceiver::on_placed(const Record& record, Bytes head) {
  const auto found = peer_leases_.find(record.lease);
  if (found == peer_leases_.end() || !found->second.receive_buffer || found->second.is_held ||
      record.payload_bytes > found->second.receive_buffer.bytes().size()) {
    return unexpected(connection_.peer(),
                      "a payload in a receive buffer that was not granted or is too small: lease",
                      record.lease);
  }
  PeerLease& lease = found->second;
  lease.is_held = true;
  lease.reply = {record.address, record.key, record.reply_bytes};
  if (record.returns_lease != kNoLease) BPS_RETURN_IF_ERROR(sender_.leases().take_back(record.returns_lease));
  return deliver_in_place({head,
                           record.payload_bytes,
                           lease.receive_buffer.bytes().first(record.payload_bytes),
                           {},
                           record.lease});
}

Status FrameReceiver::on_answered(const Record& record, Bytes head) {
  const auto answer = sender_.leases().reply_space(record.returns_lease, record.payload_bytes);
  if (!answer) return answer.status();
  // The lease ends before the receiver sends the next frame of that reuse key.
  BPS_RETURN_IF_ERROR(sender_.leases().take_back(record.returns_lease));
  return deliver_in_place({head, answer->size(), *answer, {}, kNoLease});
}

Status FrameReceiver::deliver_in_place(const Arrival& arrival) {
  const Result<ReceiveBuffer> receive_buffer = receiver_->on_head(connection_, arrival);
  if (!receive_buffer) return receive_buffer.status();
  if (stopped_) return Status::ok();
  return receiver_->on_frame(connection_, arrival, place_payload(*receive_buffer, arrival.payload));
}

Status FrameReceiver::on_reserve(const Record& record) {
  if (peer_leases_.contains(record.lease))
    return unexpected(connection_.peer(), "a receive buffer requested twice: lease", record.lease);
  Record answer{.type = RecordType::kReserved, .lease = record.lease};
  auto receive_buffer = arena_.take(record.payload_bytes);
  if (receive_buffer) {
    answer.address = reinterpret_cast<uint64_t>(receive_buffer->bytes().data());
    answer.key = receive_buffer->key().remote;
    peer_leases_[record.lease].receive_buffer = std::move(*receive_buffer);
  } else if (!std::exchange(warned_, true)) {
    BPS_LOG(kWarning) << connection_.peer()
                      << ": what it sends is copied: " << receive_buffer.status().message();
  }
  sender_.send_control(answer);
  return Status::ok();
}

Status FrameReceiver::on_release(const Record& record) {
  const auto found = peer_leases_.find(record.lease);
  if (found == peer_leases_.end() || found->second.is_held) {
    return unexpected(connection_.peer(), "released, but in use or unknown: lease", record.lease);
  }
  peer_leases_.erase(found);
  return Status::ok();
}

RemoteMemory FrameReceiver::return_lease(LeaseId lease) {
  const auto found = peer_leases_.find(lease);
  BPS_CHECK(found != peer_leases_.end() && found->second.is_held) << "lease " << lease << " is not held";
  const RemoteMemory reply = std::exchange(found->second.reply, {});
  found->second.is_held = false;
  if (!found->second.receive_buffer) peer_leases_.erase(found);
  return reply;
}

}  // namespace byteps::transport::rdma
