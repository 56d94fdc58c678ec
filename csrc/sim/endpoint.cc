#include "sim/endpoint.h"

#include <algorithm>
#include <utility>

#include "sim/virtual_network.h"

namespace byteps::sim {

void Endpoint::start(Receiver* receiver) {
  receiver_ = receiver;
  process_.soon([this] {
    while (!early_.empty()) {
      Incoming incoming = std::move(early_.front());
      early_.pop_front();
      dispatch(incoming);
    }
  });
}

void Endpoint::send(Frame frame, SentCallback on_sent) {
  if (state_ != State::kOpen) {
    report_sent(std::move(on_sent), false);
    return;
  }
  if (frame.returns_lease != kNoLease) refer_to_lease(frame);
  queue_.push_back({std::move(frame), std::move(on_sent)});
  hand_over();
}

void Endpoint::hand_over() {
  while (!queue_.empty()) {
    Frame& frame = queue_.front().frame;
    if (!lend(frame)) return;
    const uint64_t bytes = bytes_of(frame);
    if (window_used_ > 0 && window_used_ + bytes > network_.options_.window_bytes) return;
    window_used_ += bytes;
    ++departing_;
    auto outgoing = std::make_shared<Outgoing>(std::move(queue_.front()));
    queue_.pop_front();
    last_departure_us_ = std::max(last_departure_us_, network_.departure_us(process_, bytes));
    network_.clock_.at(last_departure_us_, [this, outgoing] { depart(outgoing); });
  }
}

void Endpoint::depart(const std::shared_ptr<Outgoing>& outgoing) {
  --departing_;
  if (state_ != State::kClosed) {
    const Frame& frame = outgoing->frame;
    auto written = std::make_shared<Frame>(frame);
    if (travels(frame)) {
      const Bytes source = frame.payload.read();
      auto copy =
          std::make_shared<Memory>(network_.findings_, "a frame of " + process_.name(), source.size());
      std::ranges::copy(source, copy->use(0, source.size(), "written").begin());
      written->payload = {std::move(copy), 0, source.size()};
    }
    const TimeUs arrival = std::max(last_arrival_us_, network_.clock_.now() + network_.latency_us());
    deliver(arrival, {Stage::kHead, written, {}});
    deliver(travels(frame) ? arrival + network_.latency_us() / 4 : arrival, {Stage::kComplete, written, {}});
  }
  report_sent(std::move(outgoing->on_sent), state_ != State::kClosed);
  end_if_sent();
}

void Endpoint::report_sent(SentCallback on_sent, bool written) {
  if (!on_sent) return;
  process_.soon([on_sent = std::move(on_sent), written]() mutable {
    on_sent(written ? Status::ok() : aborted("connection closed"));
  });
}

void Endpoint::deliver(TimeUs when, Incoming incoming) {
  last_arrival_us_ = when;
  const uint64_t number = delivery_count_++;
  other_->process_.at(when, [this, number, incoming = std::move(incoming)]() mutable {
    if (cut_off_ || (incoming.stage != Stage::kEnd && number >= delivery_limit_)) return;
    ++arrived_count_;
    other_->receive(std::move(incoming));
  });
}

void Endpoint::receive(Incoming incoming) {
  if (receiver_ == nullptr || !early_.empty()) {
    early_.push_back(std::move(incoming));
  } else {
    dispatch(incoming);
  }
}

void Endpoint::dispatch(const Incoming& incoming) {
  if (incoming.stage == Stage::kComplete) {
    ++taken_count_;
    other_->window_used_ -= bytes_of(*incoming.frame);
    other_->hand_over();
  }
  if (state_ == State::kClosed) return;
  switch (incoming.stage) {
    case Stage::kHead: receiver_->on_head(*this, *incoming.frame); break;
    case Stage::kComplete:
      receiver_->on_frame(*this, *incoming.frame);
      take_back(incoming.frame->returns_lease);
      break;
    case Stage::kGiveBack: take_back(incoming.lease); break;
    case Stage::kStarving: receiver_->on_starving(*this); break;
    case Stage::kEnd: {
      const bool expected = state_ == State::kClosing;
      state_ = State::kClosed;
      drop_queue();
      send_end("closed by " + process_.name());
      receiver_->on_closed(*this, expected ? Status::ok() : incoming.why);
      end_borrowing();
      break;
    }
  }
}

void Endpoint::close_when_sent(GracePeriod grace_period) {
  if (state_ != State::kOpen) return;
  state_ = State::kClosing;
  end_if_sent();
  closing_wait_.emplace(grace_period, network_.clock_.now());
  go_on_closing();
}

void Endpoint::go_on_closing() {
  const bool outstanding = !queue_.empty() || departing_ > 0 || window_used_ > 0;
  if (const auto next_us = closing_wait_->look(other_->taken_count_, outstanding, network_.clock_.now())) {
    process_.at(*next_us, [this] {
      if (state_ == State::kClosing) go_on_closing();
    });
    return;
  }
  process_.soon([this] {
    if (state_ != State::kClosing) return;
    shut();
    if (receiver_ != nullptr) receiver_->on_closed(*this, Status::ok());
    end_borrowing();
  });
}

void Endpoint::cut_off() {
  cut_off_ = true;
  if (silence_us_ == kNever) return;
  process_.at(network_.clock_.now() + silence_us_,
              [this] { receive({Stage::kEnd, nullptr, unavailable("no sign of life")}); });
}

void Endpoint::close() {
  shut();
  end_borrowing();
}

void Endpoint::shut() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  drop_queue();
  // A socket closed with unread input resets the connection, which may overtake its last output.
  if (other_->delivery_count_ > other_->arrived_count_) lose_some();
  send_end("reset by " + process_.name());
}

void Endpoint::drop_queue() {
  for (Outgoing& outgoing : queue_) report_sent(std::move(outgoing.on_sent), false);
  queue_.clear();
}

void Endpoint::lose_some() {
  const uint64_t limit = arrived_count_ + network_.random_.below(delivery_count_ - arrived_count_ + 1);
  delivery_limit_ = std::min(delivery_limit_, limit);
}

void Endpoint::end_if_sent() {
  if (state_ == State::kClosing && queue_.empty() && departing_ == 0)
    send_end("closed by " + process_.name());
}

void Endpoint::send_end(const std::string& why) {
  if (std::exchange(end_sent_, true)) return;
  const TimeUs when = std::max(last_arrival_us_, network_.clock_.now() + network_.latency_us());
  deliver(when, {Stage::kEnd, nullptr, unavailable(why)});
}

// ---- leases ---------------------------------------------------------------------------------------------------

bool Endpoint::lend(Frame& frame) {
  const uint64_t bytes = std::max(frame.payload.size, frame.reply_space.size);
  if (carriage_ != Carriage::kShare || frame.lease != kNoLease || bytes == 0) return true;
  if (!is_lender_ || bytes > network_.options_.arena_bytes) {  // as over the network
    frame.reply_space = {};
    return true;
  }
  if (bytes > arena_free_bytes_) {
    if (std::exchange(told_starving_, true)) return false;
    tell({Stage::kStarving, nullptr});
    return false;
  }
  arena_free_bytes_ -= bytes;
  frame.lease = ++last_loan_;
  const View block{std::make_shared<Memory>(network_.findings_, "a lease of " + process_.name(), bytes), 0,
                   bytes};
  std::ranges::copy(frame.payload.read(), block.write().begin());
  frame.by_reference = true;
  if (frame.payload.size > 0) frame.payload = {block.memory, 0, frame.payload.size};
  if (frame.reply_space.size > 0) frame.reply_space = {block.memory, 0, frame.reply_space.size};
  lent_[frame.lease] = block;
  return true;
}

// An answer that lies in the reply space of the lease that it gives back is not copied; but from here on the memory is
// the lease_owner's, so that a later look at it by this end is found.
void Endpoint::refer_to_lease(Frame& frame) {
  const auto lease = other_->lent_.find(frame.returns_lease);
  if (lease == other_->lent_.end()) return;  // found out by the other end
  Memory& block = *lease->second.memory;
  if (frame.payload.memory.get() == &block) {
    frame.by_reference = true;
    auto answer =
        std::make_shared<Memory>(network_.findings_, "an answer of " + process_.name(), frame.payload.size);
    std::ranges::copy(frame.payload.read(), answer->use(0, frame.payload.size, "written").begin());
    frame.payload = {std::move(answer), 0, frame.payload.size};
  }
  block.release();
}

void Endpoint::return_lease(LeaseId lease) {
  if (lease == kNoLease || state_ != State::kOpen) return;
  if (const auto found = other_->lent_.find(lease); found != other_->lent_.end())
    found->second.memory->release();
  tell({Stage::kGiveBack, nullptr, {}, lease});
}

// After the frames that were handed over.
void Endpoint::tell(Incoming incoming) {
  last_departure_us_ = std::max(last_departure_us_, network_.clock_.now());
  network_.clock_.at(last_departure_us_, [this, incoming = std::move(incoming)]() mutable {
    if (state_ == State::kClosed) return;
    deliver(std::max(last_arrival_us_, network_.clock_.now() + network_.latency_us()), std::move(incoming));
  });
}

void Endpoint::take_back(LeaseId lease) {
  if (lease == kNoLease) return;
  const auto found = lent_.find(lease);
  if (found == lent_.end()) {
    network_.findings_.push_back(process_.name() + ": a lease came back that was not lent");
    return;
  }
  arena_free_bytes_ += found->second.size;
  lent_.erase(found);
  told_starving_ = false;
  hand_over();
  end_if_sent();
}

void Endpoint::end_borrowing() {
  for (const auto& [lease, block] : other_->lent_) block.memory->release();
}

}  // namespace byteps::sim
