#include "sim/sim_shard.h"

#include <algorithm>
#include <utility>

#include "sim/reduce.h"
#include "sim/sim_link.h"

namespace byteps::sim {

using protocol::Aggregator;
using protocol::Complete;
using protocol::DataHead;
using protocol::DataType;
using protocol::Fail;

SimShard::SimShard(World& world, VirtualProcess& process, ShardEvents& events)
    : world_(world), process_(process), events_(events) {}

void SimShard::adopt(Endpoint& endpoint) {
  children_.push_back(std::make_unique<Child>(*this, endpoint));
  if (aggregator_) endpoint.start(children_.back().get());
}

void SimShard::start(std::vector<std::string> describe, uint32_t epoch) {
  describe_ = std::move(describe);
  epoch_ = epoch;
  aggregator_ = std::make_unique<Aggregator>(
      describe_, protocol::AggregationLimits{.stall_warning_us = world_.scenario.op_timeout_us / 3,
                                             .op_timeout_us = world_.scenario.op_timeout_us});
  for (const auto& child : children_) child->endpoint.start(child.get());
}

void SimShard::on_head(Child& child, const Frame& frame) {
  const Result<DataHead> head = protocol::decode_data(frame.head);
  if (head && head->type == DataType::kPushPull && frame.payload.size > 0) {
    child.verdict = admit(child, *head, frame.payload.size);
  }
}

Aggregator::Verdict SimShard::admit(const Child& child, const DataHead& head, size_t payload_bytes) {
  const auto verdict = aggregator_->admit(head, static_cast<uint32_t>(child.rank), payload_bytes);
  if (verdict) return *verdict;
  world_.report(process_, "a correct contribution was not admitted: " + verdict.status().to_string());
  return Aggregator::Verdict::kRepeat;
}

void SimShard::on_frame(Child& child, const Frame& frame) {
  const Result<DataHead> head = protocol::decode_data(frame.head);
  if (!head) return world_.report(process_, head.status().to_string());
  switch (head->type) {
    case DataType::kHello: child.rank = static_cast<int>(head->rank); return;
    case DataType::kPushPull: return on_push_pull(child, *head, frame);
    case DataType::kGoodbye: child.left = true; return on_goodbye(child);
    default:
      world_.report(process_, "a worker sent message type " + std::to_string(static_cast<int>(head->type)));
  }
}

void SimShard::on_push_pull(Child& child, const DataHead& head, const Frame& frame) {
  if (!child.verdict) child.verdict = admit(child, head, 0);
  if (*std::exchange(child.verdict, std::nullopt) == Aggregator::Verdict::kRepeat) {
    return add_repeat(child, head, frame.payload);
  }
  Slots& slots = slots_[head.key];
  slots.resize(describe_.size());
  slots[static_cast<size_t>(child.rank)] = {frame.payload, frame.reply_space, &child, true};
  aggregator_->on_contribution(head, static_cast<uint32_t>(child.rank), world_.clock.now(), actions_);
  carry_out();
  schedule_tick();
}

// What a service would do that does not recognise repeats.
void SimShard::add_repeat(const Child& child, const DataHead& head, const View& payload) {
  if (world_.sabotage != Sabotage::kSumsRepeats || payload.size == 0) return;
  const auto found = slots_.find(head.key);
  if (found == slots_.end()) return;
  const View data = found->second[static_cast<size_t>(child.rank)].data;
  if (data.size == payload.size)
    reduce(head.dtype, ReduceOp::kSum, {data.read(), payload.read()}, data.write());
}

void SimShard::on_goodbye(Child& child) {
  if (child.rank < 0) return;
  for (auto& [key, slots] : slots_) {
    Contribution& contribution = slots[static_cast<size_t>(child.rank)];
    if (contribution.from != &child) continue;
    contribution.from = nullptr;
    contribution.reply_space = {};
    // Its memory goes away with it; what it contributed still counts in rounds that others complete.
    if (child.endpoint.lends()) contribution.data = make_view(world_, process_, contribution.data.read());
  }
  child_left(static_cast<uint32_t>(child.rank));
}

void SimShard::child_left(uint32_t child) {
  if (!aggregator_) return;
  aggregator_->on_child_gone(child, unavailable(describe_[child] + " has left the job"), actions_);
  carry_out();
}

void SimShard::fail_tensor(uint32_t tensor, const Status& why) {
  if (!aggregator_) return;
  aggregator_->fail_tensor(tensor, why, actions_);
  carry_out();
}

void SimShard::fail(const Status& why) {
  failed_ = true;
  if (world_.sabotage == Sabotage::kKeepsLoans) return;
  if (aggregator_) {
    aggregator_->fail_all(why, actions_);
    carry_out();
    check_drained();
  }
  if (!leave_done_) return;
  for (const auto& child : children_) drop(*child);  // one of them is the lost one, and would be waited for
  finish_leaving_if_empty();
}

void SimShard::drop(Child& child) {
  child.endpoint.close();
  child.closed = true;
}

void SimShard::carry_out() {
  const auto actions = std::exchange(actions_, {});
  for (const protocol::AggregationAction& action : actions) {
    if (const auto* complete = std::get_if<Complete>(&action)) carry_out(*complete);
    if (const auto* fail = std::get_if<Fail>(&action)) carry_out(*fail);
    if (const auto* stalled = std::get_if<protocol::Stalled>(&action)) {
      world_.note(process_, 1, [&] { return stalled->text; });
    }
  }
}

void SimShard::carry_out(const Complete& complete) {
  const DataHead& head = complete.head;
  Slots slots = std::exchange(slots_[head.key], Slots(describe_.size()));
  const View result = reduce_slots(head, slots);
  world_.note(process_, head.key.tensor * 1000 + head.round, [&] {
    return "completes tensor " + std::to_string(head.key.tensor) + "." + std::to_string(head.key.partition) +
           " round " + std::to_string(head.round);
  });
  DataHead answer = head;
  answer.type = DataType::kResult;
  answer.epoch = epoch_;
  for (const Contribution& contribution : slots) {
    if (contribution.from == nullptr) continue;
    if (world_.sabotage == Sabotage::kLosesAnswer && world_.random.chance(0.01)) continue;
    const bool in_place = static_cast<bool>(contribution.reply_space);
    if (in_place) std::ranges::copy(result.read(), contribution.reply_space.write().begin());
    contribution.from->endpoint.send(make_frame(answer, in_place ? View{} : result), nullptr);
  }
}

View SimShard::reduce_slots(const DataHead& head, const Slots& slots) {
  if (head.op == ReduceOp::kBroadcast) return make_view(world_, process_, slots[head.root].data.read());
  std::vector<Bytes> sources;
  for (const Contribution& contribution : slots) sources.push_back(contribution.data.read());
  auto memory = std::make_shared<Memory>(world_.findings, process_.name() + ", result", head.bytes);
  reduce(head.dtype, head.op, sources, memory->use(0, head.bytes, "written"));
  return {std::move(memory), 0, head.bytes};
}

void SimShard::carry_out(const Fail& fail) {
  Slots& slots = slots_[fail.key];
  slots.resize(describe_.size());
  world_.note(process_, fail.key.tensor * 1000 + fail.round, [&] {
    return "fails tensor " + std::to_string(fail.key.tensor) + "." + std::to_string(fail.key.partition) +
           " round " + std::to_string(fail.round) + ": " + fail.status.message();
  });
  DataHead head;
  head.type = DataType::kFailed;
  head.epoch = epoch_;
  head.key = fail.key;
  head.round = fail.round;
  head.code = fail.status.code();
  for (const uint32_t child : fail.children) {
    const Contribution contribution = std::exchange(slots[child], {});
    if (!contribution.present) world_.report(process_, "a failure for a child that contributed nothing");
    if (contribution.from == nullptr) continue;
    const View text = make_view(world_, process_, as_bytes(fail.status.message()));
    contribution.from->endpoint.send(make_frame(head, text), nullptr);
  }
}

void SimShard::schedule_tick() {
  const TimeUs next_us = aggregator_->next_tick_us();
  if (ticking_ || next_us == kNever || world_.sabotage == Sabotage::kWithoutTicks) return;
  ticking_ = true;
  process_.at(next_us, [this] {
    ticking_ = false;
    aggregator_->on_tick(world_.clock.now(), actions_);
    carry_out();
    schedule_tick();
  });
}

void SimShard::on_closed(Child& child, const Status& why) {
  child.closed = true;
  for (auto& [key, slots] : slots_) {
    for (Contribution& contribution : slots) {
      if (contribution.from == &child) contribution.from = nullptr;
    }
  }
  if (child.rank >= 0 && !child.left && !leaving_)
    events_.on_child_lost(static_cast<uint32_t>(child.rank), why);
  finish_leaving_if_empty();
}

void SimShard::leave(TimeUs deadline_us, UniqueFunction<void()> done) {
  leaving_ = true;
  leave_done_ = std::move(done);
  for (const auto& child : children_) {
    if (child->closed) continue;
    if (!aggregator_) {  // it was never listened to
      drop(*child);
      continue;
    }
    if (!failed_) {
      DataHead goodbye;
      goodbye.type = DataType::kGoodbye;
      goodbye.epoch = epoch_;
      child->endpoint.send(make_frame(goodbye), nullptr);
    }
    child->endpoint.close_when_sent(deadline_us);
  }
  finish_leaving_if_empty();
}

void SimShard::finish_leaving_if_empty() {
  const bool empty = std::ranges::all_of(children_, [](const auto& child) { return child->closed; });
  if (leave_done_ && empty) std::exchange(leave_done_, nullptr)();
}

void SimShard::check_drained() const {
  if (!aggregator_) return;
  if (aggregator_->gathering() > 0) world_.report(process_, "rounds still wait when all is over");
  for (const auto& [key, slots] : slots_) {
    const bool kept = std::ranges::any_of(slots, [](const Contribution& each) { return each.present; });
    if (kept) world_.report(process_, "contributions are kept when all is over");
  }
}

}  // namespace byteps::sim
