#include "transport/rdma/incoming.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/copy.h"
#include "base/log.h"
#include "transport/landing.h"

namespace byteps::transport::rdma {
namespace {

Status unexpected(const std::string& peer, const char* what, Loan loan) {
  return data_loss(peer + ": " + what + " " + std::to_string(loan));
}

}  // namespace

Incoming::Incoming(Connection& connection, Outgoing& outgoing, Arena& arena, MutableBytes inbox,
                   uint64_t max_payload_bytes)
    : connection_(connection),
      outgoing_(outgoing),
      arena_(arena),
      inbox_(inbox),
      max_payload_bytes_(max_payload_bytes) {}

Status Incoming::on_record(uint32_t units) {
  const auto place = ring_.next(units);
  if (!place) return place.status().with_context(connection_.peer());
  if (unread_.size() >= kRingUnits)
    return data_loss(connection_.peer() + ": more records than it has room for");
  unread_.push_back(*place);
  const uint32_t consumed = consumed_of(inbox_.subspan(place->position * kUnitBytes));
  return outgoing_.on_consumed(consumed).with_context(connection_.peer());
}

Status Incoming::process() {
  while (!unread_.empty() && !stopped_ && !ended_) {
    const RingReader::Place place = unread_.front();
    const Bytes in = inbox_.subspan(place.position * kUnitBytes, place.units * kUnitBytes);
    const auto record = decode_record(in, max_payload_bytes_);
    if (!record) return record.status().with_context(connection_.peer());
    if (!may_look_at(*record)) return Status::ok();
    const Bytes head = in.subspan(kRecordBytes, record->head_bytes);
    BPS_RETURN_IF_ERROR(handle(*record, head, in.subspan(kRecordBytes + head.size(), record->inline_bytes)));
    unread_.pop_front();
    ring_.consume(place);
  }
  return Status::ok();
}

// Before start() nothing is taken: neither frames nor memory for them.
bool Incoming::may_look_at(const Record& record) const {
  return receiver_ != nullptr || record.type == RecordType::kReserved ||
         record.type == RecordType::kRelease || record.type == RecordType::kGiveBack;
}

Status Incoming::handle(const Record& record, Bytes head, Bytes payload) {
  const bool is_frame = record.type == RecordType::kFrame || record.type == RecordType::kPlaced ||
                        record.type == RecordType::kAnswered;
  if (partial_ && is_frame) return data_loss(connection_.peer() + ": a frame inside another");
  switch (record.type) {
    case RecordType::kFrame: return on_frame(record, head, payload);
    case RecordType::kMore: return on_more(payload);
    case RecordType::kPlaced: return on_placed(record, head);
    case RecordType::kAnswered: return on_answered(record, head);
    case RecordType::kReserve: return on_reserve(record);
    case RecordType::kReserved: return outgoing_.loans().on_reserved(record);
    case RecordType::kRelease: return on_release(record);
    case RecordType::kGiveBack: return outgoing_.loans().take_back(record.gives_back);
    case RecordType::kEnd: ended_ = true; return Status::ok();
  }
  return internal("a record of no type");
}

Status Incoming::on_frame(const Record& record, Bytes head, Bytes payload) {
  const auto loan = lend(record);
  if (!loan) return loan.status();
  if (record.gives_back != kNoLoan) BPS_RETURN_IF_ERROR(outgoing_.loans().take_back(record.gives_back));
  const Arrival arrival{head, record.payload_bytes, {}, {}, *loan};
  if (arrival.payload_bytes == 0) return receiver_->on_frame(connection_, arrival, {});
  const Result<Landing> landing = receiver_->on_head(connection_, arrival);
  if (!landing) return landing.status();
  if (stopped_) return Status::ok();
  BPS_CHECK(!landing->is_borrow()) << "nothing was lent";
  BPS_CHECK(landing->is_discard() || landing->destination().size() == arrival.payload_bytes)
      << "a landing of " << landing->destination().size() << " bytes for " << arrival.payload_bytes;
  if (payload.size() < arrival.payload_bytes) return begin_pieces(arrival, *landing, payload);
  return receiver_->on_frame(connection_, arrival, land(*landing, payload));
}

Status Incoming::begin_pieces(const Arrival& arrival, const Landing& landing, Bytes payload) {
  partial_.emplace(Partial{{}, arrival, landing, {}, arrival.payload_bytes});
  if (!arrival.head.empty()) std::memcpy(partial_->head.data(), arrival.head.data(), arrival.head.size());
  partial_->arrival.head = Bytes(partial_->head).first(arrival.head.size());
  return on_more(payload);
}

Status Incoming::on_more(Bytes payload) {
  if (!partial_ || payload.size() > partial_->missing_bytes) {
    return data_loss(connection_.peer() + ": further bytes of no frame");
  }
  const MutableBytes destination = partial_->landing.destination();
  if (!partial_->landing.is_discard()) copy_bytes(destination.last(partial_->missing_bytes), payload);
  partial_->missing_bytes -= payload.size();
  if (partial_->missing_bytes > 0) return Status::ok();
  const Partial whole = *partial_;
  partial_.reset();
  Arrival arrival = whole.arrival;
  arrival.head = Bytes(whole.head).first(arrival.head.size());
  return receiver_->on_frame(connection_, arrival, destination);
}

// Notes where the answer may go. The loan of a frame that came through the ring, or none.
Result<Loan> Incoming::lend(const Record& record) {
  if (record.loan == kNoLoan) return kNoLoan;
  const Target reply{record.address, record.key, record.reply_bytes};
  if (!borrowed_.try_emplace(record.loan, Borrowed{{}, reply, true}).second) {
    return unexpected(connection_.peer(), "lent already: loan", record.loan);
  }
  return record.loan;
}

Status Incoming::on_placed(const Record& record, Bytes head) {
  const auto found = borrowed_.find(record.loan);
  if (found == borrowed_.end() || !found->second.landing || found->second.is_out ||
      record.payload_bytes > found->second.landing.bytes().size()) {
    return unexpected(connection_.peer(), "a payload in memory that it does not have: loan", record.loan);
  }
  Borrowed& borrowed = found->second;
  borrowed.is_out = true;
  borrowed.reply = {record.address, record.key, record.reply_bytes};
  if (record.gives_back != kNoLoan) BPS_RETURN_IF_ERROR(outgoing_.loans().take_back(record.gives_back));
  return deliver_in_place(
      {head, record.payload_bytes, borrowed.landing.bytes().first(record.payload_bytes), {}, record.loan});
}

Status Incoming::on_answered(const Record& record, Bytes head) {
  const auto answer = outgoing_.loans().reply_space(record.gives_back, record.payload_bytes);
  if (!answer) return answer.status();
  BPS_RETURN_IF_ERROR(
      outgoing_.loans().take_back(record.gives_back));  // before the receiver sends the next of that place
  return deliver_in_place({head, answer->size(), *answer, {}, kNoLoan});
}

Status Incoming::deliver_in_place(const Arrival& arrival) {
  const Result<Landing> landing = receiver_->on_head(connection_, arrival);
  if (!landing) return landing.status();
  if (stopped_) return Status::ok();
  return receiver_->on_frame(connection_, arrival, land(*landing, arrival.lent));
}

Status Incoming::on_reserve(const Record& record) {
  if (borrowed_.contains(record.loan))
    return unexpected(connection_.peer(), "asked for twice: loan", record.loan);
  Record answer{.type = RecordType::kReserved, .loan = record.loan};
  auto landing = arena_.take(record.payload_bytes);
  if (landing) {
    answer.address = reinterpret_cast<uint64_t>(landing->bytes().data());
    answer.key = landing->key().remote;
    borrowed_[record.loan].landing = std::move(*landing);
  } else if (!std::exchange(warned_, true)) {
    BPS_LOG(kWarning) << connection_.peer() << ": what it sends is copied: " << landing.status().message();
  }
  outgoing_.send_control(answer);
  return Status::ok();
}

Status Incoming::on_release(const Record& record) {
  const auto found = borrowed_.find(record.loan);
  if (found == borrowed_.end() || found->second.is_out) {
    return unexpected(connection_.peer(), "not to be released: loan", record.loan);
  }
  borrowed_.erase(found);
  return Status::ok();
}

Target Incoming::give_back(Loan loan) {
  const auto found = borrowed_.find(loan);
  BPS_CHECK(found != borrowed_.end() && found->second.is_out) << "loan " << loan << " is not out";
  const Target reply = std::exchange(found->second.reply, {});
  found->second.is_out = false;
  if (!found->second.landing) borrowed_.erase(found);
  return reply;
}

}  // namespace byteps::transport::rdma
