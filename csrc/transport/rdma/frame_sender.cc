#include "transport/rdma/frame_sender.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace byteps::transport::rdma {
namespace {

// Completions cost time; this frequency is sufficient to track free room.
constexpr uint32_t kWritesPerCompletion = 32;
// Limit of consumed units not reported to the peer: it always has room for the largest record.
constexpr uint32_t kMaxUnreportedUnits = kRingUnits / 4;
static_assert(kMaxUnreportedUnits + 2 * units_of(kMaxRecordBytes) <= kRingUnits);

}  // namespace

FrameSender::FrameSender(Registrations& registrations, uint64_t max_message_bytes, MutableBytes staging,
                         uint32_t staging_key, std::string peer)
    : registrations_(registrations),
      max_message_bytes_(std::max<uint64_t>(max_message_bytes, kEagerBytes)),
      staging_(staging),
      staging_key_(staging_key),
      peer_(std::move(peer)),
      leases_(controls_, peer_) {}

void FrameSender::open(QueuePair& queue_pair, const RemoteMemory& ring) {
  queue_pair_ = &queue_pair;
  remote_ring_ = ring;
}

void FrameSender::send(Bytes head, const Payload& payload, const RemoteMemory& answer_to, OnSent on_sent) {
  BPS_CHECK(head.size() <= kMaxHeadBytes) << "a head of " << head.size() << " bytes";
  Frame& frame = frames_.emplace_back();
  if (!head.empty()) std::memcpy(frame.head.data(), head.data(), head.size());
  frame.head_bytes = head.size();
  frame.payload = payload;
  frame.on_sent = std::move(on_sent);
  frame.inlined = payload.data.size() <= kEagerBytes;
  if (frame.inlined) return;
  if (payload.returns_lease != kNoLease && answer_to.bytes >= payload.data.size()) {
    frame.answer_to = answer_to;
  } else {
    frame.receive_buffer = leases_.reserve(payload.reuse_key, payload.data.size());
  }
}

void FrameSender::send_end() { frames_.emplace_back().is_end = true; }

Status FrameSender::pump(uint32_t consumed) {
  if (!queue_pair_) return Status::ok();
  consumed_ = consumed;
  while (post_next()) {
  }
  BPS_RETURN_IF_ERROR(flush());
  while (!sent_.empty()) {  // until a callback closes the connection; stop() then calls the others
    OnSent on_sent = std::move(sent_.front());
    sent_.pop_front();
    on_sent(Status::ok());
  }
  return Status::ok();
}

// Posts control records first, as starting a frame may create some.
bool FrameSender::post_next() {
  if (!controls_.empty()) {
    if (!post_record(controls_.front(), {}, {}, false)) return false;
    controls_.pop_front();
    return true;
  }
  if (frames_.empty() || !post_frame(frames_.front())) return false;
  finish(frames_.front());
  frames_.pop_front();
  return true;
}

Status FrameSender::report_consumed(uint32_t consumed, bool in_any_case) {
  const bool is_due = ((consumed - reported_) & kCountMask) >= kMaxUnreportedUnits;
  if ((!is_due && !in_any_case) || !queue_pair_ || !has_room_for_write()) return Status::ok();
  reported_ = consumed;
  add_write({.to_address = remote_ring_.address,
             .to_key = remote_ring_.key,
             .immediate = kConsumedFlag | consumed});
  return flush();
}

bool FrameSender::post_frame(Frame& frame) {
  if (frame.is_end) {
    if (!post_record({.type = RecordType::kEnd}, {}, {}, true)) return false;
    end_id_ = last_id_;
    return true;
  }
  if (is_waiting_for_receive_buffer(frame)) return false;
  if (!frame.begun) begin(frame);
  return frame.inlined ? post_pieces(frame) : post_payload(frame);
}

bool FrameSender::is_waiting_for_receive_buffer(Frame& frame) {
  if (frame.receive_buffer == kNoLease) return false;
  if (!leases_.is_answered(frame.receive_buffer)) return true;
  // Address 0: the peer has no memory for the frame.
  if (leases_.target(frame.receive_buffer).address == 0) go_through_ring(frame);
  return false;
}

void FrameSender::go_through_ring(Frame& frame) {
  if (frame.receive_buffer != kNoLease) leases_.release(std::exchange(frame.receive_buffer, kNoLease));
  frame.inlined = true;
}

// Fills in the frame's record and registers the memory of the payload.
void FrameSender::begin(Frame& frame) {
  frame.begun = true;
  // Comes first, as this registration also covers the payload if they are the same memory.
  lease_reply_space(frame);
  if (!frame.inlined) {
    auto registration = registrations_.registration(frame.payload.data, Access::kLocal);
    if (registration) {
      frame.data_registration = std::move(*registration);
    } else {
      if (!std::exchange(warned_, true)) {
        BPS_LOG(kWarning) << peer_ << ": payloads are copied: " << registration.status().message();
      }
      go_through_ring(frame);
    }
  }
  Record& record = frame.record;
  record.type = frame.inlined                      ? RecordType::kFrame
                : frame.receive_buffer == kNoLease ? RecordType::kAnswered
                                                   : RecordType::kPlaced;
  record.head_bytes = static_cast<uint16_t>(frame.head_bytes);
  record.lease = frame.receive_buffer;
  if (record.lease == kNoLease && frame.reply_registration) record.lease = leases_.next();
  record.returns_lease = frame.payload.returns_lease;
  record.payload_bytes = frame.payload.data.size();
}

// Lets the peer write the answer directly into the reply space. Small answers, and answers if
// registration fails, come another way. A frame that is itself written as an answer has no reply
// space.
void FrameSender::lease_reply_space(Frame& frame) {
  const MutableBytes reply_space = frame.payload.reply_space;
  const bool is_answer = frame.payload.returns_lease != kNoLease && frame.receive_buffer == kNoLease;
  if (reply_space.size() <= kEagerBytes || is_answer) return;
  auto registration = registrations_.registration(reply_space, Access::kRemoteWrite);
  if (!registration) return;
  frame.record.address = reinterpret_cast<uint64_t>(reply_space.data());
  frame.record.key = (*registration)->key().remote;
  frame.record.reply_bytes = reply_space.size();
  frame.reply_registration = std::move(*registration);
}

// Writes the payload, in as many writes as the NIC's message size requires, then the record.
bool FrameSender::post_payload(Frame& frame) {
  const RemoteMemory target =
      frame.receive_buffer == kNoLease ? frame.answer_to : leases_.target(frame.receive_buffer);
  const Bytes data = frame.payload.data;
  while (frame.posted_bytes < data.size()) {
    if (!has_room_for_write()) return false;
    const size_t bytes = std::min<uint64_t>(data.size() - frame.posted_bytes, max_message_bytes_);
    add_write({.data = data.subspan(frame.posted_bytes, bytes),
               .local_key = frame.data_registration->key().local,
               .to_address = target.address + frame.posted_bytes,
               .to_key = target.key});
    frame.posted_bytes += bytes;
  }
  return post_record(frame.record, Bytes(frame.head).first(frame.head_bytes), {}, true);
}

bool FrameSender::post_pieces(Frame& frame) {
  const Bytes data = frame.payload.data;
  do {
    const Bytes piece =
        data.subspan(frame.posted_bytes, std::min(data.size() - frame.posted_bytes, kEagerBytes));
    const bool is_first = frame.posted_bytes == 0;
    Record record = is_first ? frame.record : Record{.type = RecordType::kMore};
    record.inline_bytes = static_cast<uint32_t>(piece.size());
    const Bytes head = is_first ? Bytes(frame.head).first(frame.head_bytes) : Bytes();
    if (!post_record(record, head, piece, false)) return false;
    frame.posted_bytes += piece.size();
  } while (frame.posted_bytes < data.size());
  return true;
}

// Copies `payload`.
bool FrameSender::post_record(Record record, Bytes head, Bytes payload, bool completes) {
  if (!has_room_for_write()) return false;
  const size_t bytes = kRecordBytes + head.size() + payload.size();
  const uint32_t units = units_of(bytes);
  const std::optional<uint32_t> position = ring_.allocate(units);
  if (!position) return false;
  const size_t offset = *position * kUnitBytes;
  const MutableBytes at = staging_.subspan(offset, bytes);
  record.consumed = reported_ = consumed_;
  encode_record(record, at.first<kRecordBytes>());
  if (!head.empty()) std::memcpy(at.data() + kRecordBytes, head.data(), head.size());
  if (!payload.empty()) std::memcpy(at.data() + kRecordBytes + head.size(), payload.data(), payload.size());
  const bool is_inline = bytes <= queue_pair_->max_inline_bytes();
  add_write({.data = at,
             .local_key = is_inline ? 0 : staging_key_,
             .to_address = remote_ring_.address + offset,
             .to_key = remote_ring_.key,
             .immediate = units,
             .completes = completes});
  return true;
}

void FrameSender::add_write(Write write) {
  write.id = ++last_id_;
  if (++unmarked_writes_ >= kWritesPerCompletion) write.completes = true;
  if (write.completes) {
    unmarked_writes_ = 0;
    posted_.push_back({write.id, {}, {}});
  }
  batch_.push_back(write);
  unfinished_.push_back(write);
}

// All writes of the frame are posted or batched. Only from now on can the peer know its lease.
void FrameSender::finish(Frame& frame) {
  if (frame.record.lease != kNoLease)
    leases_.grant(frame.record.lease, {frame.payload.reply_space, std::move(frame.reply_registration)});
  if (frame.data_registration) {
    posted_.back().data_registration = std::move(frame.data_registration);  // of its record
    posted_.back().on_sent = std::move(frame.on_sent);
  } else if (frame.on_sent) {
    sent_.push_back(std::move(frame.on_sent));
  }
}

Status FrameSender::flush() {
  if (batch_.empty()) return Status::ok();
  const Status status = queue_pair_->post(batch_);
  batch_.clear();
  return status.with_context(peer_);
}

void FrameSender::on_written(uint64_t id) {
  while (!unfinished_.empty() && unfinished_.front().id <= id) {
    immediates_ += unfinished_.front().immediate.has_value();
    unfinished_.pop_front();
  }
  while (!posted_.empty() && posted_.front().id <= id) {
    OnSent on_sent = std::move(posted_.front().on_sent);
    posted_.pop_front();
    if (on_sent) on_sent(Status::ok());  // may close the connection, which empties posted_
  }
}

Status FrameSender::renew(QueuePair& queue_pair, uint32_t arrivals) {
  queue_pair_ = &queue_pair;
  uint32_t count = arrivals - immediates_;
  auto next = unfinished_.begin();
  while (count > 0 && next != unfinished_.end()) count -= (next++)->immediate.has_value();
  if (count > 0) {
    return data_loss(peer_ + ": has received " + std::to_string(arrivals) + " messages by RDMA, " +
                     std::to_string(immediates_) + " at least were expected");
  }
  const uint64_t received = next == unfinished_.begin() ? 0 : std::prev(next)->id;
  BPS_RETURN_IF_ERROR(queue_pair_->post(std::vector(next, unfinished_.end())).with_context(peer_));
  on_written(received);
  return Status::ok();
}

void FrameSender::fail(const Status& why, bool written_is_sent) {
  leases_.clear();
  stop(why, written_is_sent);
}

void FrameSender::stop(const Status& why, bool written_is_sent) {
  queue_pair_ = nullptr;
  controls_.clear();
  unfinished_.clear();
  for (OnSent& on_sent : std::exchange(sent_, {})) on_sent(Status::ok());
  for (Posted& posted : std::exchange(posted_, {})) {
    if (posted.on_sent) posted.on_sent(written_is_sent ? Status::ok() : why);
  }
  for (Frame& frame : std::exchange(frames_, {})) {
    if (frame.on_sent) frame.on_sent(why);
  }
}

}  // namespace byteps::transport::rdma
