#include "transport/stream/frame_reader.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace byteps::transport {

FrameReader::FrameReader(Connection& connection, const FrameLimits& limits)
    : connection_(connection), limits_(limits), buffer_(new std::byte[kMaxFrontBytes + kMaxWindowBytes]) {}

FrameReader::Space FrameReader::space(size_t limit_bytes) {
  // The rest is shorter than a prefix and head, or it would have been parsed.
  if (begin_ > 0) std::memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);
  end_ -= std::exchange(begin_, 0);
  const iovec window{buffer_.get() + end_, window_bytes_};
  if (payload_left_bytes_ == 0) return {{window}, 1, window_bytes_};
  const size_t direct_bytes = std::min(payload_left_bytes_, limit_bytes);
  if (discard_) {
    const size_t bytes = std::min(direct_bytes, kMaxWindowBytes);
    return {{iovec{buffer_.get(), bytes}}, 1, bytes};
  }
  const iovec direct{receive_buffer_.last(payload_left_bytes_).data(), direct_bytes};
  if (direct_bytes < payload_left_bytes_) return {{direct}, 1, direct_bytes};
  return {{direct, window}, 2, direct_bytes + window_bytes_};
}

Status FrameReader::advance(size_t bytes, Receiver& receiver) {
  const size_t direct_bytes = std::min(bytes, payload_left_bytes_);
  const size_t window_bytes = bytes - direct_bytes;
  end_ += window_bytes;
  if (window_bytes == window_bytes_) window_bytes_ = std::min(2 * window_bytes_, kMaxWindowBytes);
  if (direct_bytes > 0) {
    payload_left_bytes_ -= direct_bytes;
    if (payload_left_bytes_ > 0) return Status::ok();
    BPS_RETURN_IF_ERROR(finish(receiver));
  }
  return parse(receiver);
}

Status FrameReader::parse(Receiver& receiver) {
  while (!stopped_) {
    const auto step = read_front(receiver);
    if (!step) return step.status();
    if (*step == Step::kNeedsBytes || stopped_) break;
    copy_payload();
    if (payload_left_bytes_ > 0) break;
    BPS_RETURN_IF_ERROR(finish(receiver));
  }
  return Status::ok();
}

// Parses prefix and head of the next frame and asks where its payload goes.
Result<FrameReader::Step> FrameReader::read_front(Receiver& receiver) {
  const Bytes unread(buffer_.get() + begin_, end_ - begin_);
  if (unread.size() < kFramePrefixBytes) return Step::kNeedsBytes;
  const auto prefix = decode_prefix(unread.first<kFramePrefixBytes>(), limits_);
  if (!prefix) return prefix.status().with_context(connection_.peer());
  const size_t front_bytes = kFramePrefixBytes + prefix->head_bytes;
  if (unread.size() < front_bytes) return Step::kNeedsBytes;
  // Copied, as the buffer is reused before the frame is complete.
  std::memcpy(head_.data(), unread.data() + kFramePrefixBytes, prefix->head_bytes);
  begin_ += front_bytes;
  arrival_ = {Bytes(head_).first(prefix->head_bytes), prefix->payload_bytes, {}, {}};
  BPS_RETURN_IF_ERROR(choose_buffer(receiver));
  return Step::kMore;
}

Status FrameReader::choose_buffer(Receiver& receiver) {
  discard_ = false;
  receive_buffer_ = {};
  if (arrival_.payload_bytes == 0) return Status::ok();
  if (arrival_.payload_bytes >= kLargePayloadBytes) window_bytes_ = kMinWindowBytes;
  const auto receive_buffer = receiver.on_head(connection_, arrival_);
  if (!receive_buffer) return receive_buffer.status();
  BPS_CHECK(!receive_buffer->is_in_place()) << "the payload is not in memory";
  discard_ = receive_buffer->is_discard();
  receive_buffer_ = receive_buffer->destination();
  payload_left_bytes_ = arrival_.payload_bytes;
  BPS_CHECK(discard_ || receive_buffer_.size() == payload_left_bytes_)
      << "a receive buffer of " << receive_buffer_.size() << " bytes for " << payload_left_bytes_;
  return Status::ok();
}

// Copies the part of the payload that was read into the window.
void FrameReader::copy_payload() {
  const size_t bytes = std::min(payload_left_bytes_, end_ - begin_);
  if (!discard_ && bytes > 0)
    std::memcpy(receive_buffer_.last(payload_left_bytes_).data(), buffer_.get() + begin_, bytes);
  begin_ += bytes;
  payload_left_bytes_ -= bytes;
}

Status FrameReader::finish(Receiver& receiver) {
  return receiver.on_frame(connection_, arrival_, receive_buffer_);
}

}  // namespace byteps::transport
