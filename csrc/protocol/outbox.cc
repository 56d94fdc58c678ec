#include "protocol/outbox.h"

#include <algorithm>
#include <utility>

namespace byteps::protocol {

void Outbox::Port::push(int32_t priority, Kind kind, uint64_t bytes, Send send) {
  outbox_.heap_.push_back({priority, kind, outbox_.next_sequence_++, bytes, this, std::move(send)});
  std::push_heap(outbox_.heap_.begin(), outbox_.heap_.end());
  outbox_.pump();
}

void Outbox::Port::sent(uint64_t bytes) {
  bytes = std::min(bytes, outstanding_bytes_);
  outstanding_bytes_ -= bytes;
  outbox_.outstanding_bytes_ -= bytes;
  outbox_.pump();
}

void Outbox::Port::flush() {
  std::vector<Entry> mine;
  std::vector<Entry> others;
  for (Entry& entry : outbox_.heap_) (entry.port == this ? mine : others).push_back(std::move(entry));
  outbox_.heap_ = std::move(others);
  std::make_heap(outbox_.heap_.begin(), outbox_.heap_.end());
  std::sort(mine.begin(), mine.end(), [](const Entry& a, const Entry& b) { return b < a; });
  for (Entry& entry : mine) outbox_.hand_over(std::move(entry));
}

void Outbox::Port::close() {
  outbox_.outstanding_bytes_ -= std::exchange(outstanding_bytes_, 0);
  const size_t dropped = std::erase_if(outbox_.heap_, [this](const Entry& entry) { return entry.port == this; });
  if (dropped > 0) std::make_heap(outbox_.heap_.begin(), outbox_.heap_.end());
  outbox_.pump();
}

void Outbox::set_credit(uint64_t credit_bytes) {
  credit_bytes_ = credit_bytes;
  pump();
}

void Outbox::pump() {
  if (std::exchange(pumping_, true)) return;
  while (!heap_.empty()) {
    const Entry& next = heap_.front();
    if (outstanding_bytes_ > 0 && outstanding_bytes_ + next.bytes > credit_bytes_) break;
    std::pop_heap(heap_.begin(), heap_.end());
    Entry entry = std::move(heap_.back());
    heap_.pop_back();
    hand_over(std::move(entry));
  }
  pumping_ = false;
}

void Outbox::hand_over(Entry entry) {
  outstanding_bytes_ += entry.bytes;
  entry.port->outstanding_bytes_ += entry.bytes;
  entry.send();
}

}  // namespace byteps::protocol
