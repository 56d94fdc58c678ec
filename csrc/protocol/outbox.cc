#include "protocol/outbox.h"

#include <algorithm>
#include <utility>

namespace byteps::protocol {

void Outbox::Port::push(int32_t priority, Kind kind, uint64_t bytes, Send send) {
  if (kind == Kind::kContribution) {
    outbox_.contributed_ = true;
    count_contributions(contribution_bytes_ + bytes);
  }
  heap_.push_back({priority, kind, next_sequence_++, bytes, std::move(send)});
  std::push_heap(heap_.begin(), heap_.end());
  pump();
}

void Outbox::Port::sent(uint64_t bytes) {
  outstanding_bytes_ -= std::min(bytes, outstanding_bytes_);
  count_contributions(contribution_bytes_ - std::min(bytes, contribution_bytes_));
  pump();
}

void Outbox::Port::flush() {
  while (!heap_.empty()) send_first();
}

void Outbox::Port::close() {
  heap_.clear();
  outstanding_bytes_ = 0;
  count_contributions(0);
}

void Outbox::Port::count_contributions(uint64_t bytes) {
  outbox_.contribution_bytes_ += bytes - contribution_bytes_;
  contribution_bytes_ = bytes;
}

void Outbox::Port::pump() {
  if (std::exchange(pumping_, true)) return;
  while (!heap_.empty()) {
    const bool fits = outstanding_bytes_ + heap_.front().bytes <= outbox_.credit_bytes_;
    if (outstanding_bytes_ > 0 && !fits) break;
    send_first();
  }
  pumping_ = false;
}

void Outbox::Port::send_first() {
  std::pop_heap(heap_.begin(), heap_.end());
  Entry entry = std::move(heap_.back());
  heap_.pop_back();
  outstanding_bytes_ += entry.bytes;
  entry.send();
}

}  // namespace byteps::protocol
