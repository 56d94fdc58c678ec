// What goes to the wire next: by priority, within a credit. Pure.
//
// Credit bounds the bytes handed to the transport and not yet on the wire, so that an urgent partition waits for
// at most that much of others. Credit comes back when bytes are written, never later: waiting for a round to end
// could deadlock workers whose tensors become ready in different orders.
// Source: Peng et al., "A Generic Communication Scheduler for Distributed DNN Training Acceleration"
// (ByteScheduler), SOSP 2019, section 4.
#pragma once

#include <cstdint>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

#include "base/check.h"

namespace byteps::protocol {

template <typename Item>
class CreditQueue {
 public:
  explicit CreditQueue(uint64_t credit_bytes) : credit_bytes_(credit_bytes) {}

  // Larger `priority` first; equal ones in the order of pushing.
  void push(int32_t priority, uint64_t bytes, Item item) {
    heap_.push(Entry{priority, next_sequence_++, bytes, std::move(item)});
  }

  // The next item, if the credit allows it: it fits, or nothing is outstanding (so an item larger than the whole
  // credit passes, alone). The first in order is never overtaken by one that would fit.
  std::optional<Item> pop() {
    if (heap_.empty()) return std::nullopt;
    auto& top = const_cast<Entry&>(heap_.top());  // priority_queue has no way to move out its top
    if (outstanding_bytes_ > 0 && outstanding_bytes_ + top.bytes > credit_bytes_) return std::nullopt;
    outstanding_bytes_ += top.bytes;
    Item item = std::move(top.item);
    heap_.pop();
    return item;
  }

  // `bytes` of a popped item are on the wire.
  void give_back(uint64_t bytes) {
    BPS_CHECK(bytes <= outstanding_bytes_) << "credit of " << bytes << " bytes was never taken";
    outstanding_bytes_ -= bytes;
  }

  // What is outstanding already may be more than this.
  void set_credit(uint64_t credit_bytes) { credit_bytes_ = credit_bytes; }

  // Everything that has not been popped, in no special order; the queue is empty then.
  std::vector<Item> take_all() {
    std::vector<Item> items;
    for (; !heap_.empty(); heap_.pop()) items.push_back(std::move(const_cast<Entry&>(heap_.top()).item));
    return items;
  }

  bool empty() const { return heap_.empty(); }
  uint64_t outstanding_bytes() const { return outstanding_bytes_; }

 private:
  struct Entry {
    int32_t priority;
    uint64_t sequence;
    uint64_t bytes;
    Item item;
    bool operator<(const Entry& other) const {
      return priority != other.priority ? priority < other.priority : sequence > other.sequence;
    }
  };
  std::priority_queue<Entry> heap_;
  uint64_t credit_bytes_;
  uint64_t outstanding_bytes_ = 0;
  uint64_t next_sequence_ = 0;
};

}  // namespace byteps::protocol
