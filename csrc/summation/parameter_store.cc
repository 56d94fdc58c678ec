#include "summation/parameter_store.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/copy.h"
#include "base/numbers.h"
#include "summation/child.h"
#include "summation/shard.h"

namespace byteps::summation {

using protocol::Answer;
using protocol::DataHead;
using protocol::Fail;
using protocol::StoreFirstValue;

ParameterStore::ParameterStore(Environment environment, protocol::Children ranks, protocol::WaitLimits limits)
    : CollectorBy(environment, std::move(ranks), limits), takeover_(decisions_.num_children(), limits) {}

Result<ParameterStore::Verdict> ParameterStore::admit(const DataHead& head, uint32_t child,
                                                      uint64_t payload_bytes) const {
  BPS_CHECK(head.rank == child) << "rank " << head.rank << " on the connection of " << child;
  if (!takeover_.is_pending(head)) return decisions_.admit(head, payload_bytes);
  BPS_RETURN_IF_ERROR(decisions_.check(head, payload_bytes));
  if (takeover_.waits(head.key, child)) return too_early(head);
  return decisions_.failure(head.key).is_ok() ? Verdict::kAccept : Verdict::kRefuse;
}

void ParameterStore::contribute(uint32_t child, const DataHead& head, Contribution contribution) {
  slot(head.key, child) = std::move(contribution);
  if (!takeover_.is_pending(head)) return decide({&head, 1});
  const Status failure = decisions_.failure(head.key);
  if (!failure.is_ok()) return fail_all({&head, 1}, failure);
  takeover_.on_contribution(head, environment_.loop.now_us(), takeover_actions_);
  apply_takeover();
  schedule_tick();
}

void ParameterStore::decide(std::span<const DataHead> heads) {
  for (const DataHead& head : heads) {
    decisions_.on_contribution(head, environment_.loop.now_us(), actions_);
    apply();
  }
  schedule_tick();
}

void ParameterStore::fail_all(std::span<const DataHead> heads, const Status& why) {
  for (const DataHead& head : heads) answer_failure(head, slots_[head.key][head.rank], why);
}

void ParameterStore::child_gone(uint32_t child, const Status& why) {
  CollectorBy::child_gone(child, why);
  takeover_.on_rank_gone(child, takeover_actions_);
  apply_takeover();
}

void ParameterStore::child_lingers(uint32_t child, const Status& why) { CollectorBy::child_gone(child, why); }

void ParameterStore::restart_waits() {
  takeover_.restart_waits(environment_.loop.now_us());
  CollectorBy::restart_waits();
}

TimeUs ParameterStore::next_tick_us() const {
  return std::min(CollectorBy::next_tick_us(), takeover_.next_tick_us());
}

void ParameterStore::on_tick() {
  const TimeUs now_us = environment_.loop.now_us();
  takeover_.on_tick(now_us, takeover_actions_);
  apply_takeover();
  decisions_.on_tick(now_us, actions_);
  apply();
}

void ParameterStore::fail_tensor(uint64_t number, uint64_t last_round, const Status& why) {
  CollectorBy::fail_tensor(number, last_round, why);
  if (last_round == protocol::kEveryRound) fail_all(takeover_.take_waiting(number), why);
}

void ParameterStore::fail(const Status& why) {
  CollectorBy::fail(why);
  fail_all(takeover_.take_waiting(), why);
}

void ParameterStore::forget(const Child& connection) {
  Collector::forget(connection);
  forget_holder(connection);
}

size_t ParameterStore::holds_bytes() const { return decisions_.num_children() * sizeof(uint64_t); }

void ParameterStore::on_holds(const DataHead& head, Bytes payload, Child& from) {
  protocol::StoredTakeover::Rounds rounds;
  for (size_t at = 0; at < payload.size(); at += sizeof(uint64_t))
    rounds.push_back(load_number<uint64_t>(&payload[at]));
  add_holder(head, from);
  takeover_.on_holds(head, std::move(rounds));
}

void ParameterStore::on_stated(uint32_t child, uint64_t losses) {
  takeover_.on_stated(child, losses, takeover_actions_);
  apply_takeover();
}

void ParameterStore::on_held(const DataHead& head, Result<BufferPool::Buffer> values) {
  const auto restored = takeover_.take(head.key);
  if (restored.waiting.empty()) return;  // they have failed meanwhile
  const DataHead& first = restored.waiting.front();
  if (values && (head.bytes != first.bytes || head.dtype != first.dtype)) {
    values = data_loss("rank " + std::to_string(head.rank) + " holds another tensor than rank " +
                       std::to_string(first.rank) + " contributes to");
  } else if (values && decisions_.knows(head.key)) {
    values = data_loss(protocol::describe(head.key) + ": a rank takes this service for its first root");
  }
  if (!values) return fail_all(restored.waiting, values.status());
  if (values->empty()) *values = environment_.pool.acquire(1);
  values_[head.key] = std::make_shared<BufferPool::Buffer>(std::move(*values));
  decisions_.restore(first, restored.rounds);
  decide(restored.waiting);
}

void ParameterStore::apply_takeover() {
  for (const protocol::StoredTakeover::Action& action : std::exchange(takeover_actions_, {})) {
    if (const auto* fetch = std::get_if<protocol::Fetch>(&action)) {
      Collector::fetch(*fetch);
    } else if (const auto* begin = std::get_if<protocol::StoredTakeover::BeginAnew>(&action)) {
      decide(begin->waiting);
    } else if (const auto* lose = std::get_if<protocol::StoredTakeover::Lose>(&action)) {
      fail_all(lose->waiting, lose->why);
    } else if (const auto* stalled = std::get_if<protocol::Stalled>(&action)) {
      environment_.events.on_stalled(*stalled);
    }
  }
}

void ParameterStore::contribute_failure(uint32_t, const DataHead&, const Status&) {
  BPS_CHECK(false) << "a parameter store accepts no failures of ranks";
}

void ParameterStore::apply() {
  for (const protocol::StalenessAction& action : actions_) {
    if (const auto* first = std::get_if<StoreFirstValue>(&action)) apply(*first);
    if (const auto* answer = std::get_if<Answer>(&action)) apply(*answer);
    if (const auto* fail = std::get_if<Fail>(&action)) {
      answer_failure(fail->head, slots_[fail->head.key][fail->head.rank], fail->status);
    }
    if (const auto* stalled = std::get_if<protocol::Stalled>(&action))
      environment_.events.on_stalled(*stalled);
  }
  actions_.clear();
}

void ParameterStore::apply(const StoreFirstValue& first) {
  Contribution& seed = slots_[first.head.key][first.head.rank];
  BufferPool::Buffer value = std::move(seed.buffer);
  if (value.empty()) {
    value = environment_.pool.acquire(std::max<uint64_t>(first.head.bytes, 1));
    copy_bytes(value.bytes().first(first.head.bytes), seed.data);
  }
  seed.data = {};  // no longer needed, even if the rank waits longer for its answer
  values_[first.head.key] = std::make_shared<BufferPool::Buffer>(std::move(value));
}

void ParameterStore::add_up(const Answer& answer, Value& stored) {
  const Slots& slots = slots_[answer.key];
  const DataHead& first = answer.heads.front();
  std::vector<const void*> sources{stored->bytes().data()};
  std::vector<std::byte*> spaces{nullptr};  // [0]: the value, set below
  for (const DataHead& head : answer.heads) {
    const Contribution& contribution = slots[head.rank];
    const bool adds = !answer.is_again && head.op == ReduceOp::kAccumulate && !contribution.data.empty();
    if (adds) sources.push_back(contribution.data.data());
    if (!contribution.reply_space.empty()) spaces.push_back(contribution.reply_space.data());
  }
  if (sources.size() == 1) {  // nothing to add; a copy preserves every bit
    const Bytes value = stored->bytes().first(first.bytes);
    for (size_t i = 1; i < spaces.size(); ++i) copy_bytes({spaces[i], first.bytes}, value);
    return;
  }
  if (stored.use_count() > 1) {  // being sent; only this thread releases it
    stored = std::make_shared<BufferPool::Buffer>(environment_.pool.acquire(first.bytes));
  }
  spaces[0] = stored->bytes().data();
  reduce({.dtype = first.dtype, .op = ReduceOp::kSum}, std::move(sources), spaces, first.bytes);
}

void ParameterStore::apply(const Answer& answer) {
  Value& stored = values_[answer.key];
  add_up(answer, stored);
  if (environment_.may_be_lost) say_included(answer);
  for (const DataHead& head : answer.heads) answer_result(head, slots_[answer.key][head.rank], stored);
}

void ParameterStore::say_included(const Answer& answer) {
  const std::vector<uint64_t> rounds = decisions_.included(answer.key);
  const auto numbers = std::make_shared<const BufferPool::Buffer>(environment_.pool.acquire(holds_bytes()));
  for (size_t i = 0; i < rounds.size(); ++i) store_number(&numbers->bytes()[i * sizeof(uint64_t)], rounds[i]);
  const Bytes payload = Bytes(numbers->bytes()).first(holds_bytes());
  for (DataHead head : answer.heads) {
    Child* const child = slots_[answer.key][head.rank].from;
    if (child == nullptr) continue;
    head.type = protocol::DataType::kIncluded;
    child->send(head, {.data = payload, .reply_space = {}}, numbers);
  }
}

}  // namespace byteps::summation
