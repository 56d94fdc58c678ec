#include "protocol/outbox.h"

#include <algorithm>
#include <utility>

namespace byteps::protocol {

Outbox::Port::~Port() {
  // Otherwise another connection has taken its place.
  if (turns_ != nullptr && registered() == this) registered() = nullptr;
}

void Outbox::Port::take_turns(const Peer& peer) {
  turns_ = &outbox_.turns_[peer];
  registered() = this;
}

Outbox::Port*& Outbox::Port::registered() const {
  return kind_ == Kind::kContribution ? turns_->contributions : turns_->answers;
}

void Outbox::Port::push(int32_t priority, uint64_t bytes, Send send) {
  if (kind_ == Kind::kContribution) {
    outbox_.contributed_ = true;
    count_contributions(contribution_bytes_ + bytes);
  }
  heap_.push_back({priority, next_sequence_++, bytes, std::move(send)});
  std::push_heap(heap_.begin(), heap_.end());
  pump();
}

void Outbox::Port::sent(uint64_t bytes) {
  outstanding_bytes_ -= std::min(bytes, outstanding_bytes_);
  count_contributions(contribution_bytes_ - std::min(bytes, contribution_bytes_));
  pump();
  let_answers_go();
}

void Outbox::Port::flush() {
  while (!heap_.empty()) send_first();
}

void Outbox::Port::close() {
  heap_.clear();
  outstanding_bytes_ = 0;
  count_contributions(0);
  let_answers_go();
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
    if (waits_its_turn(heap_.front().priority)) break;
    send_first();
  }
  pumping_ = false;
}

bool Outbox::Port::waits_its_turn(int32_t priority) const {
  if (turns_ == nullptr || kind_ != Kind::kAnswer) return false;
  return turns_->contributions != nullptr && turns_->contributions->has_unwritten(priority);
}

bool Outbox::Port::has_unwritten(int32_t least_priority) const {
  return (outstanding_bytes_ > 0 && last_priority_ >= least_priority) ||
         (!heap_.empty() && heap_.front().priority >= least_priority);
}

void Outbox::Port::let_answers_go() {
  if (turns_ == nullptr || kind_ != Kind::kContribution) return;
  if (turns_->answers != nullptr) turns_->answers->pump();
}

void Outbox::Port::send_first() {
  std::pop_heap(heap_.begin(), heap_.end());
  Entry entry = std::move(heap_.back());
  heap_.pop_back();
  outstanding_bytes_ += entry.bytes;
  last_priority_ = entry.priority;
  entry.send();
}

}  // namespace byteps::protocol
