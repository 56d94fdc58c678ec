#include "summation/tier.h"

#include <algorithm>
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
// place (the reply space of another child) costs a write only.
constexpr size_t kBlockBytes = 8 << 10;
// Children that are in step with each other complete their rounds sooner than this; copying for those that are not
// costs nothing that matters.
constexpr TimeUs kReliefUs = 5'000;

}  // namespace

Tier::Tier(Environment environment, protocol::Children children, protocol::AggregationLimits limits,
           Uplink* uplink, uint32_t num_final_tops)
    : environment_(environment),
      aggregator_(std::move(children), limits),
      uplink_(uplink),
      num_final_tops_(num_final_tops) {}

Tier::~Tier() { stop_timers(); }

void Tier::contribute(uint32_t child, const DataHead& head, Contribution contribution) {
  Slots& slots = rounds_[head.key].slots;
  slots.resize(aggregator_.num_children());
  slots[child] = std::move(contribution);
  aggregator_.on_contribution(head, child, now_us(), actions_);
  carry_out();
  schedule_tick();
}

void Tier::contribute_failure(uint32_t child, const DataHead& head, const Status& why) {
  aggregator_.on_failed_contribution(head, child, why, actions_);
  carry_out();
}

void Tier::child_gone(uint32_t child, const Status& why) {
  aggregator_.on_child_gone(child, why, actions_);
  carry_out();
}

void Tier::fail_tensor(uint32_t tensor, const Status& why) {
  aggregator_.fail_tensor(tensor, why, actions_);
  carry_out();
}

void Tier::fail(const Status& why) {
  failed_ = true;
  aggregator_.fail_all(why, actions_);
  carry_out();
  for (auto& [key, round] : rounds_) {
    if (round.ascending.empty() || std::exchange(round.abandoned, true)) continue;
    answer_failure(round.head, round.slots, why);
  }
}

void Tier::carry_out() {
  for (const protocol::AggregationAction& action : actions_) {
    if (const auto* complete = std::get_if<Complete>(&action)) carry_out(*complete);
    if (const auto* fail = std::get_if<Fail>(&action)) carry_out(*fail);
    if (const auto* stalled = std::get_if<protocol::Stalled>(&action)) BPS_LOG(kWarning) << stalled->text;
  }
  actions_.clear();
}

void Tier::carry_out(const Complete& complete) {
  const DataHead& head = complete.head;
  Round& round = rounds_[head.key];
  if (goes_up(head.top)) return ascend(head, round);
  BufferPool::Buffer result;
  bool all_have_space = true;
  for (Contribution& contribution : round.slots) {
    if (contribution.from != nullptr && contribution.reply_space.empty()) all_have_space = false;
    if (result.empty()) result = std::move(contribution.buffer);
  }
  if (result.empty() && !all_have_space) result = environment_.pool.acquire(head.bytes);
  reduce(head, round.slots, result.bytes(), true);
  answer(head, round.slots, std::move(result));
}

void Tier::ascend(const DataHead& head, Round& round) {
  Bytes partial;
  for (Contribution& contribution : round.slots) {
    if (round.ascending.empty()) round.ascending = std::move(contribution.buffer);
    if (!contribution.data.empty()) partial = contribution.data;
  }
  if (round.ascending.empty()) round.ascending = environment_.pool.acquire(std::max<uint64_t>(head.bytes, 1));
  round.head = head;
  round.abandoned = false;
  const MutableBytes space = round.ascending.bytes().first(head.bytes);
  if (!partial.empty()) {
    reduce(head, round.slots, space, false);
    partial = space;
  }
  for (Contribution& contribution : round.slots) contribution.data = {};
  uplink_->push_pull(environment_.loop, head, partial, space,
                     [this, head](const Result<protocol::Plan>& outcome) { on_result(head, outcome); });
}

void Tier::on_result(DataHead head, const Result<protocol::Plan>& outcome) {
  Round& round = rounds_[head.key];
  BufferPool::Buffer result = std::move(round.ascending);
  if (round.abandoned) return;
  if (!outcome) return answer_failure(head, round.slots, outcome.status());
  head.plan = *outcome;
  const Bytes values = result.bytes().first(head.bytes);
  for (const Contribution& contribution : round.slots) {
    if (!contribution.reply_space.empty()) {
      copy_bytes(contribution.reply_space, values);
    }
  }
  answer(head, round.slots, std::move(result));
}

void Tier::carry_out(const Fail& fail) {
  Slots& slots = rounds_[fail.head.key].slots;
  Slots failed(slots.size());
  for (const uint32_t child : fail.children) failed[child] = std::exchange(slots[child], {});
  answer_failure(fail.head, failed, fail.status);
  // The root learns why this machine does not contribute; when the whole job fails it knows.
  if (fail.ends_round && goes_up(fail.head.top) && !failed_) uplink_->fail_round(fail.head, fail.status);
}

void Tier::reduce(const DataHead& head, Slots& slots, MutableBytes result, bool deliver) {
  const TimeUs started_us = now_us();
  std::vector<const void*> sources;
  std::vector<std::byte*> spaces;
  sources.reserve(slots.size());
  if (!result.empty()) spaces.push_back(result.data());
  for (const Contribution& contribution : slots) {
    if (!contribution.data.empty()) sources.push_back(contribution.data.data());
    if (deliver && !contribution.reply_space.empty()) spaces.push_back(contribution.reply_space.data());
  }
  if (sources.empty() || spaces.empty()) return;

  // A broadcast is the sum of one array of bytes: a copy that keeps every bit, of a NaN, too.
  const bool is_broadcast = head.op == ReduceOp::kBroadcast;
  // An average is divided where the tree ends.
  const bool is_partial = head.op == ReduceOp::kAverage && goes_up(head.top);
  const kernels::Reduction reduction{.dtype = is_broadcast ? DType::kUInt8 : head.dtype,
                                     .op = is_broadcast || is_partial ? ReduceOp::kSum : head.op,
                                     .divisor = static_cast<int>(environment_.num_workers)};
  const size_t element_bytes = size_of(reduction.dtype);
  std::byte* const out = spaces.front();
  for (size_t offset = 0; offset < head.bytes; offset += kBlockBytes) {
    const size_t bytes = std::min<size_t>(kBlockBytes, head.bytes - offset);
    kernels::reduce_n(reduction, out + offset, sources, bytes / element_bytes);
    for (const void*& source : sources) source = static_cast<const std::byte*>(source) + bytes;
    for (size_t i = 1; i < spaces.size(); ++i) copy_bytes({spaces[i] + offset, bytes}, {out + offset, bytes});
  }
  add(environment_.metrics.sums, 1);
  add(environment_.metrics.sum_bytes, head.bytes);
  add(environment_.metrics.sum_us, static_cast<uint64_t>(now_us() - started_us));
}

void Tier::answer(const DataHead& head, Slots& slots, BufferPool::Buffer result) {
  DataHead answer = head;
  answer.type = DataType::kResult;
  answer.epoch = environment_.epoch;
  const auto shared = std::make_shared<const BufferPool::Buffer>(std::move(result));
  for (Contribution& slot : slots) {
    const Contribution contribution = std::exchange(slot, {});
    if (contribution.from == nullptr) continue;
    const bool by_reference = !contribution.reply_space.empty();
    const Bytes values =
        by_reference ? Bytes(contribution.reply_space) : Bytes(shared->bytes()).first(head.bytes);
    contribution.from->send(answer, {values, {}, contribution.loan}, shared);
  }
}

void Tier::answer_failure(const DataHead& head, Slots& slots, const Status& why) {
  DataHead answer = head;
  answer.epoch = environment_.epoch;
  for (Contribution& slot : slots) {
    const Contribution contribution = std::exchange(slot, {});
    if (contribution.from != nullptr) contribution.from->send_failure(answer, why, contribution.loan);
  }
}

void Tier::own(Contribution& contribution) {
  if (contribution.buffer.empty() && !contribution.data.empty()) {
    contribution.buffer = environment_.pool.acquire(contribution.data.size());
    copy_bytes(contribution.buffer.bytes(), contribution.data);
    contribution.data = contribution.buffer.bytes();
  }
  contribution.reply_space = {};
}

void Tier::forget(const Child& connection) {
  std::erase(starving_, &connection);
  for (auto& [key, round] : rounds_) {
    for (Contribution& contribution : round.slots) {
      if (contribution.from != &connection) continue;
      own(contribution);
      contribution.from = nullptr;
      contribution.loan = transport::kNoLoan;
    }
  }
}

void Tier::relieve(Child& connection) {
  starving_.push_back(&connection);
  if (relief_timer_ != 0) return;
  relief_timer_ = environment_.loop.run_at(now_us() + kReliefUs, [this] {
    relief_timer_ = 0;
    give_loans_back();
  });
}

void Tier::give_loans_back() {
  for (Child* child : std::exchange(starving_, {})) {
    for (auto& [key, round] : rounds_) {
      for (Contribution& contribution : round.slots) {
        if (contribution.from != child || contribution.loan == transport::kNoLoan) continue;
        own(contribution);
        child->give_back(std::exchange(contribution.loan, transport::kNoLoan));
      }
    }
  }
}

void Tier::schedule_tick() {
  if (tick_timer_ != 0) return;
  const TimeUs next_us = aggregator_.next_tick_us();
  if (next_us == kNever) return;
  tick_timer_ = environment_.loop.run_at(next_us, [this] {
    tick_timer_ = 0;
    aggregator_.on_tick(now_us(), actions_);
    carry_out();
    schedule_tick();
  });
}

void Tier::stop_timers() {
  for (auto* timer : {&tick_timer_, &relief_timer_}) {
    if (*timer != 0) environment_.loop.cancel(std::exchange(*timer, 0));
  }
}

}  // namespace byteps::summation
