#include "transport/stream/send_queue.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace byteps::transport {

void SendQueue::push(Bytes head, Bytes payload, OnSent on_sent) {
  BPS_CHECK(head.size() <= kMaxStreamHeadBytes) << "a head of " << head.size() << " bytes";
  Frame& frame = frames_.emplace_back();
  encode_prefix({head.size(), payload.size()}, std::span(frame.front).first<kFramePrefixBytes>());
  if (!head.empty()) std::memcpy(frame.front.data() + kFramePrefixBytes, head.data(), head.size());
  frame.front_bytes = kFramePrefixBytes + head.size();
  frame.payload = payload;
  frame.on_sent = std::move(on_sent);
}

SendQueue::Gathered SendQueue::gather(std::span<iovec> out, size_t limit_bytes) const {
  Gathered gathered;
  size_t skip = written_bytes_;
  const auto add = [&](Bytes part) {
    const size_t skipped = std::min(skip, part.size());
    skip -= skipped;
    part = part.subspan(skipped);
    part = part.first(std::min(part.size(), limit_bytes - gathered.bytes));
    if (part.empty()) return;
    out[gathered.count++] = {const_cast<std::byte*>(part.data()), part.size()};
    gathered.bytes += part.size();
  };
  for (const Frame& frame : frames_) {
    if (gathered.count + 2 > static_cast<int>(out.size()) || gathered.bytes == limit_bytes) break;
    add(Bytes(frame.front).first(frame.front_bytes));
    add(frame.payload);
  }
  return gathered;
}

void SendQueue::advance(size_t bytes) {
  while (bytes > 0 && !frames_.empty()) {
    Frame& first = frames_.front();
    const size_t left_bytes = first.front_bytes + first.payload.size() - written_bytes_;
    if (bytes < left_bytes) {
      written_bytes_ += bytes;
      return;
    }
    bytes -= left_bytes;
    written_bytes_ = 0;
    OnSent on_sent = std::move(first.on_sent);
    frames_.pop_front();
    if (on_sent) on_sent(Status::ok());
  }
}

void SendQueue::fail(const Status& why) {
  std::deque<Frame> failed;
  failed.swap(frames_);
  written_bytes_ = 0;
  for (Frame& frame : failed) {
    if (frame.on_sent) frame.on_sent(why);
  }
}

}  // namespace byteps::transport
