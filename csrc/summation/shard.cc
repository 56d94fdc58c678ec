#include "summation/shard.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/copy.h"
#include "base/log.h"
#include "kernels/sum.h"
#include "summation/child.h"

namespace byteps::summation {

using protocol::Complete;
using protocol::DataHead;
using protocol::DataType;
using protocol::Fail;

namespace {

// A block of every input and of the result stays in the first-level cache, so that giving the result to a second
// place (the reply space of a local child) costs a write only.
constexpr size_t kBlockBytes = 8 << 10;

// A child whose loans all wait for others has to wait, too: that is how fast and slow ones stay together. But the
// others may wait for this child's next contribution, each for another's, if their orders differ. After this time its
// loans are copied and given back, which costs less than the time itself.
constexpr TimeUs kFeedAfterUs = 5'000;

}  // namespace

Shard::Shard(transport::EventLoop& loop, Metrics& metrics, ShardEvents& events)
    : loop_(loop), metrics_(metrics), events_(events) {}

Shard::~Shard() {
  loop_.cancel(tick_timer_);
  loop_.cancel(feeding_timer_);
}

void Shard::adopt(std::unique_ptr<transport::Connection> connection) {
  children_.push_back(std::make_unique<Child>(*this, std::move(connection)));
  if (aggregator_) children_.back()->start();
}

void Shard::start(std::vector<std::string> describe, uint32_t epoch, protocol::AggregationLimits limits) {
  describe_ = std::move(describe);
  epoch_ = epoch;
  aggregator_ = std::make_unique<protocol::Aggregator>(describe_, limits);
  for (const auto& child : children_) child->start();
}

bool Shard::has_child(uint32_t rank) const {
  return std::any_of(children_.begin(), children_.end(),
                     [rank](const auto& child) { return child->rank() == static_cast<int>(rank); });
}

void Shard::contribute(Child& child, const DataHead& head, Contribution contribution) {
  Slots& slots = slots_[head.key];
  slots.resize(describe_.size());
  slots[static_cast<size_t>(child.rank())] = std::move(contribution);
  aggregator_->on_contribution(head, static_cast<uint32_t>(child.rank()), now_us(), actions_);
  carry_out(actions_);
  schedule_tick();
}

void Shard::on_goodbye(Child& child) {
  if (child.rank() < 0) return;
  forget(child);
  child_left(static_cast<uint32_t>(child.rank()));
}

// Its contributions still count in rounds that others complete; its answers go nowhere.
void Shard::forget(Child& child) {
  release_loans(child);
  for (auto& [key, slots] : slots_) {
    for (Contribution& contribution : slots) {
      if (contribution.from == &child) contribution.from = nullptr;
    }
  }
}

void Shard::release_loans(Child& child) {
  for (auto& [key, slots] : slots_) {
    for (Contribution& contribution : slots) {
      if (contribution.from == &child) release_loan(contribution);
    }
  }
}

void Shard::release_loan(Contribution& contribution) {
  if (contribution.buffer.empty() && !contribution.data.empty()) {
    contribution.buffer = pool_.acquire(contribution.data.size());
    copy_bytes(contribution.buffer.bytes(), contribution.data);
    contribution.data = contribution.buffer.bytes();
  }
  contribution.reply_space = {};
  contribution.from->give_back(std::exchange(contribution.loan, transport::kNoLoan));
}

void Shard::schedule_feeding(TimeUs starving_since_us) {
  if (feeding_timer_ != 0) return;
  feeding_timer_ = loop_.run_at(starving_since_us + kFeedAfterUs, [this] {
    feeding_timer_ = 0;
    feed_the_starving();
  });
}

void Shard::feed_the_starving() {
  const TimeUs now = now_us();
  TimeUs next_us = kNever;
  for (const auto& child : children_) {
    if (child->starving_since_us() <= now - kFeedAfterUs) {
      release_loans(*child);
      child->stop_starving();
    }
    next_us = std::min(next_us, child->starving_since_us());
  }
  if (next_us != kNever) schedule_feeding(next_us);
}

void Shard::child_left(uint32_t child) {
  if (!aggregator_) return;
  aggregator_->on_child_gone(child, unavailable(describe_[child] + " has left the job"), actions_);
  carry_out(actions_);
}

void Shard::fail_tensor(uint32_t tensor, const Status& why) {
  if (!aggregator_) return;
  aggregator_->fail_tensor(tensor, why, actions_);
  carry_out(actions_);
}

void Shard::fail(const Status& why) {
  failed_ = true;
  if (aggregator_) {
    aggregator_->fail_all(why, actions_);
    carry_out(actions_);
  }
  if (!leave_done_) return;
  children_.clear();  // one of them is the lost one, and would be waited for
  finish_leaving_if_empty();
}

void Shard::carry_out(protocol::AggregationActions& actions) {
  for (const protocol::AggregationAction& action : actions) {
    if (const auto* complete = std::get_if<Complete>(&action)) carry_out(*complete);
    if (const auto* fail = std::get_if<Fail>(&action)) carry_out(*fail);
    if (const auto* stalled = std::get_if<protocol::Stalled>(&action)) BPS_LOG(kWarning) << stalled->text;
  }
  actions.clear();
}

void Shard::carry_out(const Complete& complete) {
  Slots& slots = slots_[complete.head.key];
  const TimeUs started_us = now_us();
  BufferPool::Buffer result = reduce(complete.head, slots);
  add(metrics_.sums, 1);
  add(metrics_.sum_bytes, complete.head.bytes);
  add(metrics_.sum_us, static_cast<uint64_t>(now_us() - started_us));
  answer_all(complete.head, slots, std::move(result));
}

void Shard::carry_out(const Fail& fail) {
  Slots& slots = slots_[fail.key];
  for (const uint32_t child : fail.children) {
    Contribution contribution = std::exchange(slots[child], {});
    if (contribution.from == nullptr) continue;
    DataHead head;
    head.epoch = epoch_;
    head.key = fail.key;
    head.round = fail.round;
    contribution.from->send_failure(head, fail.status, contribution.loan);
  }
}

BufferPool::Buffer Shard::reduce(const DataHead& head, Slots& slots) {
  std::vector<const void*> sources;
  sources.reserve(slots.size());
  BufferPool::Buffer result;
  for (size_t child = 0; child < slots.size(); ++child) {
    Contribution& contribution = slots[child];
    if (head.op == ReduceOp::kBroadcast && child != head.root) continue;
    sources.push_back(contribution.data.data());
    if (result.empty() && !contribution.buffer.empty()) result = std::move(contribution.buffer);
  }
  if (result.empty()) result = pool_.acquire(head.bytes);
  std::vector<std::byte*> spaces;
  for (const Contribution& contribution : slots) {
    if (!contribution.reply_space.empty()) spaces.push_back(contribution.reply_space.data());
  }

  // A broadcast is the sum of one array of bytes: a copy that keeps every bit, of a NaN, too.
  const bool is_broadcast = head.op == ReduceOp::kBroadcast;
  const kernels::Reduction reduction{.dtype = is_broadcast ? DType::kUInt8 : head.dtype,
                                     .op = is_broadcast ? ReduceOp::kSum : head.op,
                                     .divisor = static_cast<int>(slots.size())};
  const size_t element_bytes = size_of(reduction.dtype);
  std::byte* const out = result.bytes().data();
  for (size_t offset = 0; offset < head.bytes; offset += kBlockBytes) {
    const size_t bytes = std::min<size_t>(kBlockBytes, head.bytes - offset);
    kernels::reduce_n(reduction, out + offset, sources, bytes / element_bytes);
    for (const void*& source : sources) source = static_cast<const std::byte*>(source) + bytes;
    for (std::byte* space : spaces) std::memcpy(space + offset, out + offset, bytes);
  }
  return result;
}

void Shard::answer_all(const DataHead& head, Slots& slots, BufferPool::Buffer result) {
  DataHead answer = head;
  answer.type = DataType::kResult;
  answer.epoch = epoch_;
  const auto shared = std::make_shared<const BufferPool::Buffer>(std::move(result));
  for (Contribution& slot : slots) {
    const Contribution contribution = std::exchange(slot, {});
    if (contribution.from == nullptr) continue;
    const bool in_place = !contribution.reply_space.empty();
    contribution.from->send(answer, in_place ? contribution.reply_space : shared->bytes(), contribution.loan,
                            shared);
  }
}

void Shard::schedule_tick() {
  if (tick_timer_ != 0) return;
  const TimeUs next_us = aggregator_->next_tick_us();
  if (next_us == kNever) return;
  tick_timer_ = loop_.run_at(next_us, [this] {
    tick_timer_ = 0;
    aggregator_->on_tick(now_us(), actions_);
    carry_out(actions_);
    schedule_tick();
  });
}

void Shard::on_closed(Child& child, const Status& why) {
  const int rank = child.rank();
  const bool left = child.has_left();
  forget(child);  // before its memory goes with its connection
  remove(child);
  if (rank >= 0 && !left && !leave_done_) events_.on_child_lost(static_cast<uint32_t>(rank), why);
  finish_leaving_if_empty();
}

void Shard::remove(Child& child) {
  const auto found = std::find_if(children_.begin(), children_.end(),
                                  [&child](const auto& candidate) { return candidate.get() == &child; });
  // Its connection is calling us: destroyed after that.
  loop_.post([doomed = std::move(*found)] {});
  children_.erase(found);
}

void Shard::leave(TimeUs deadline_us, UniqueFunction<void()> done) {
  if (tick_timer_ != 0) loop_.cancel(std::exchange(tick_timer_, 0));
  leave_done_ = std::move(done);
  for (const auto& child : children_) {
    // No goodbye from a failed job: children would take it for an orderly leave, and this node for the guilty one.
    if (!failed_) child->say_goodbye();
    child->close_when_sent(deadline_us);
  }
  finish_leaving_if_empty();
}

void Shard::finish_leaving_if_empty() {
  if (leave_done_ && children_.empty()) std::exchange(leave_done_, nullptr)();
}

}  // namespace byteps::summation
