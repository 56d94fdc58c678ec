#include "protocol/aggregation.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "protocol/partition.h"
#include "protocol/rounds.h"
#include "protocol/text.h"

namespace byteps::protocol {
namespace {

// "average of float32 of shape (2, 3)", "broadcast from rank 1 of …".
std::string describe_request(const DataHead& head) {
  std::string text(to_string(head.op));
  if (head.op == ReduceOp::kBroadcast) text += " from rank " + std::to_string(head.root);
  return text + " of " + describe_tensor(head);
}

bool agree(const DataHead& a, const DataHead& b) {
  return a.dtype == b.dtype && a.op == b.op && a.bytes == b.bytes && a.root == b.root && a.shape == b.shape;
}

constexpr size_t kMaxUnusedKeys = 64;

// The same text for the ranks that waited in `round` and for those that come to it too late.
Status has_gone_on(const std::string& child, uint64_t round, uint64_t next_round) {
  return aborted(describe_round(round) + ": " + child + " has gone on to " + describe_round(next_round) +
                 " without it: its push_pull of this name has failed, was left out, or had another size");
}

}  // namespace

std::string describe_tensor(const DataHead& head) {
  if (!head.shape.is_known()) return describe_elements(head.bytes, head.dtype);
  return std::string(to_string(head.dtype)) + " of shape " + head.shape.describe();
}

Aggregator::Aggregator(Children children, WaitLimits limits)
    : children_(std::move(children)), gathering_(limits), gone_(num_children()), lingers_(num_children()) {}

Result<Aggregator::Verdict> Aggregator::admit(const DataHead& head, uint32_t child,
                                              uint64_t payload_bytes) const {
  BPS_RETURN_IF_ERROR(check_head(head, child, payload_bytes));
  auto found = keys_.find(head.key);
  const KeyState* state = found == keys_.end() ? nullptr : &found->second;
  const uint64_t last_round = state ? state->last_round[child] : 0;
  if (head.round <= last_round) return Verdict::kRepeat;
  if (state && state->arrived_count > 0 && state->first.round == last_round) {
    return data_loss(children_.describe[child] + ": " + describe(head.key) + ": " +
                     describe_round(head.round) + " before the answer to " + describe_round(last_round));
  }
  return refusal(head, state).is_ok() ? Verdict::kAccept : Verdict::kRefuse;
}

Status Aggregator::check_head(const DataHead& head, uint32_t child, uint64_t payload_bytes) const {
  BPS_CHECK(child < num_children()) << "child " << child;
  auto expected = [&](const char* field, uint64_t want, uint64_t got) {
    return data_loss(children_.describe[child] + ": " + describe(head.key) + ": " + field + ": expected " +
                     std::to_string(want) + ", got " + std::to_string(got));
  };
  if (head.round == 0) return expected("round", 1, 0);
  if (head.type == DataType::kFailed) return Status::ok();
  if (!is_contribution(head.type)) {
    return expected("type", static_cast<uint64_t>(DataType::kPushPull), static_cast<uint64_t>(head.type));
  }
  if (is_stored(head.op)) {
    return data_loss(children_.describe[child] + ": " + describe(head.key) + ": expected a reduction, got " +
                     std::string(to_string(head.op)));
  }
  const bool is_broadcast = head.op == ReduceOp::kBroadcast;
  if (is_broadcast && head.root >= children_.of_rank.size()) {
    return expected("root, at most", children_.of_rank.size() - 1, head.root);
  }
  const bool has_values = !is_broadcast || child_of_rank(head.root) == static_cast<int32_t>(child);
  const uint64_t due_bytes = has_values ? head.bytes : 0;
  if (payload_bytes != due_bytes) return expected("payload bytes", due_bytes, payload_bytes);
  return Status::ok();
}

// Why a contribution cannot succeed; ok if it may.
Status Aggregator::refusal(const DataHead& head, const KeyState* state) const {
  const uint64_t round = head.round;
  BPS_RETURN_IF_ERROR(failed_);
  if (!failed_tensors_.empty()) {
    auto found = failed_tensors_.find(number_of(head.key));
    if (found != failed_tensors_.end()) BPS_RETURN_IF_ERROR(found->second.find(round));
  }
  if (state) BPS_RETURN_IF_ERROR(state->failures.find(round));
  const bool has_moved = head.type == DataType::kMoved;
  if (!has_moved && state && state->arrived_count > 0 && round < state->first.round) {
    return has_gone_on(children_.describe[state->first_child], round, state->first.round);
  }
  for (uint32_t child : gone_children_) {
    if (has_moved && lingers_[child]) continue;
    if (!state || state->last_round[child] < round) return gone_[child];
  }
  return Status::ok();
}

Aggregator::KeyState& Aggregator::state_of(const Key& key) {
  auto [found, is_new] = keys_.try_emplace(key);
  KeyState& state = found->second;
  if (is_new) {
    state.key = key;
    state.last_round.resize(num_children());
  }
  return state;
}

Aggregator::KeyState& Aggregator::state_of_failure(const Key& key) {
  if (!keys_.contains(key)) unused_keys_.push_back(key);
  if (unused_keys_.size() > kMaxUnusedKeys) {
    const auto oldest = keys_.find(unused_keys_.front());
    if (oldest != keys_.end() && !oldest->second.is_used) keys_.erase(oldest);
    unused_keys_.pop_front();
  }
  return state_of(key);
}

bool Aggregator::forget(const Key& key) {
  const auto found = keys_.find(key);
  if (found == keys_.end()) return true;
  if (found->second.arrived_count > 0) return false;
  keys_.erase(found);
  return true;
}

void Aggregator::add_tensors(std::set<uint64_t>& numbers) const {
  for (const auto& [key, state] : keys_) {
    if (state.is_used) numbers.insert(number_of(key));
  }
}

void Aggregator::on_contribution(const DataHead& head, uint32_t child, TimeUs now,
                                 AggregationActions& actions) {
  KeyState& state = state_of(head.key);
  state.is_used = true;
  if (head.round <= state.last_round[child]) return;  // admitted twice, on two connections
  leave_behind(state, child, head.round,
               has_gone_on(children_.describe[child], state.first.round, head.round), actions);
  // Evaluated as in admit(), before this contribution counts: a machine may be gone because of one
  // of its ranks and still contribute.
  Status why = refusal(head, &state);
  state.last_round[child] = head.round;
  if (!why.is_ok()) {
    // Fails the round for the others as well: the refused child counts as arrived, so nobody would
    // wait for it. (An open one waits for a child that lingers.)
    if (state.arrived_count > 0 && state.first.round == head.round) return fail_round(state, why, actions);
    const bool is_news = state.failures.find(head.round).is_ok();
    note_failure(state, head.round, why);
    actions.push_back(Fail{head, {child}, std::move(why), is_news});
    return;
  }
  if (head.type == DataType::kMoved && is_past(state, head.round, child)) {
    actions.push_back(Park{head, {child}});
    return;
  }
  if (state.arrived_count == 0) {
    state.first = head;
    state.first.type = DataType::kPushPull;
    state.first.plan = {};
    state.first_child = child;
    state.is_moved = false;
    state.wait = gathering_.add(&state, now);
  }
  state.is_moved = state.is_moved || head.type == DataType::kMoved;
  BPS_CHECK(head.round == state.first.round) << "round " << head.round << " during " << state.first.round;
  ++state.arrived_count;
  if (!agree(head, state.first)) {
    fail_round(state,
               invalid_argument(describe_round(head.round) + ": " + children_.describe[state.first_child] +
                                " asks for " + describe_request(state.first) + ", " +
                                children_.describe[child] + " for " + describe_request(head)),
               actions);
    return;
  }
  state.first.priority = std::max(state.first.priority, head.priority);
  if (child_of_rank(0) == static_cast<int32_t>(child)) state.first.plan = head.plan;
  if (state.arrived_count == num_children()) {
    actions.push_back(Complete{state.first});
    end_round(state);
  }
}

void Aggregator::on_failed_contribution(const DataHead& head, uint32_t child, const Status& why,
                                        AggregationActions& actions) {
  KeyState& state = state_of_failure(head.key);
  if (head.round <= state.last_round[child]) return;
  leave_behind(state, child, head.round, why, actions);
  state.last_round[child] = head.round;
  // The others may have failed this round for another reason and collect the next one already.
  if (state.arrived_count > 0 && state.first.round == head.round) {
    fail_round(state, why, actions);
    std::erase(std::get<Fail>(actions.back()).children, child);
  } else if (state.failures.find(head.round).is_ok()) {
    note_failure(state, head.round, why);
    actions.push_back(Fail{head, {}, why, true});
  }
}

void Aggregator::leave_behind(KeyState& state, uint32_t child, uint64_t round, const Status& why,
                              AggregationActions& actions) {
  const bool waits = state.arrived_count > 0 && state.last_round[child] != state.first.round;
  if (!waits || state.first.round >= round) return;
  state.is_moved ? park_round(state, actions) : fail_round(state, why, actions);
}

void Aggregator::end_round(KeyState& state) {
  gathering_.remove(state.wait);
  state.arrived_count = 0;
}

void Aggregator::note_failure(KeyState& state, uint64_t round, const Status& why) {
  state.failures.forget(*std::min_element(state.last_round.begin(), state.last_round.end()));
  state.failures.add(round, why);
}

void Aggregator::fail_round(KeyState& state, const Status& why, AggregationActions& actions) {
  Fail fail{state.first, arrived(state), why, true};
  note_failure(state, state.first.round, why);
  end_round(state);
  actions.push_back(std::move(fail));
}

// Whether another child has had an outcome of the round, or has gone on to a later one.
bool Aggregator::is_past(const KeyState& state, uint64_t round, uint32_t child) const {
  if (state.arrived_count > 0 && state.first.round == round) return false;
  for (uint32_t other = 0; other < num_children(); ++other) {
    if (other != child && state.last_round[other] >= round) return true;
  }
  return false;
}

// The other children have had an outcome of the round, so it has not failed.
void Aggregator::park_round(KeyState& state, AggregationActions& actions) {
  Park park{state.first, arrived(state)};
  end_round(state);
  actions.push_back(std::move(park));
}

std::vector<uint32_t> Aggregator::arrived(const KeyState& state) const {
  std::vector<uint32_t> children;
  for (uint32_t child = 0; child < num_children(); ++child) {
    if (state.last_round[child] == state.first.round) children.push_back(child);
  }
  return children;
}

void Aggregator::on_holds(const Key& key, uint64_t round, uint32_t child, AggregationActions& actions) {
  KeyState& state = state_of(key);
  if (state.arrived_count > 0 && state.first.round == round && state.last_round[child] != round)
    park_round(state, actions);
  state.last_round[child] = std::max(state.last_round[child], round);
}

template <typename Predicate>
void Aggregator::fail_rounds_if(Predicate predicate, const Status& why, AggregationActions& actions) {
  gathering_.for_each([&](auto wait) {
    KeyState& state = *wait->what;
    if (predicate(state)) fail_round(state, why, actions);  // removes it from the list
  });
}

void Aggregator::on_child_gone(uint32_t child, const Status& why, AggregationActions& actions) {
  BPS_CHECK(child < num_children() && !why.is_ok()) << "child " << child;
  if (!gone_[child].is_ok() && !lingers_[child]) return;
  if (gone_[child].is_ok()) gone_children_.push_back(child);
  gone_[child] = why;
  lingers_[child] = false;
  fail_rounds_if([child](const KeyState& state) { return state.last_round[child] != state.first.round; }, why,
                 actions);
}

void Aggregator::on_child_lingers(uint32_t child, const Status& why, AggregationActions& actions) {
  BPS_CHECK(child < num_children() && !why.is_ok()) << "child " << child;
  if (!gone_[child].is_ok()) return;
  gone_children_.push_back(child);
  gone_[child] = why;
  lingers_[child] = true;
  fail_rounds_if(
      [child](const KeyState& state) {
        return !state.is_moved && state.last_round[child] != state.first.round;
      },
      why, actions);
}

void Aggregator::fail_tensor(uint64_t number, uint64_t last_round, const Status& why,
                             AggregationActions& actions) {
  BPS_CHECK(!why.is_ok()) << "a tensor fails for a reason";
  FailureHistory& failures = failed_tensors_[number];
  if (!failures.find(last_round).is_ok()) return;
  failures.add(last_round, why);
  fail_rounds_if(
      [number, last_round](const KeyState& state) {
        return number_of(state.key) == number && state.first.round <= last_round;
      },
      why, actions);
}

void Aggregator::fail_all(const Status& why, AggregationActions& actions) {
  BPS_CHECK(!why.is_ok()) << "a job ends for a reason";
  if (!failed_.is_ok()) return;
  failed_ = why;
  fail_rounds_if([](const KeyState&) { return true; }, why, actions);
}

void Aggregator::on_tick(TimeUs now, AggregationActions& actions) {
  gathering_.for_each_timed_out(now, [&](auto wait) {
    KeyState& state = *wait->what;
    const std::string text = describe_round(state.first.round) + describe_wait(*wait, now);
    fail_round(state, deadline_exceeded(text), actions);
  });
  gathering_.warn(now, [&](const auto& oldest, size_t count) {
    const DataHead& first = oldest.what->first;
    std::string text =
        describe_round(first.round) + " of " + describe_partition(first.key) + describe_wait(oldest, now);
    if (count > 1) text += "; so have " + std::to_string(count - 1) + " more partitions";
    actions.push_back(Stalled{number_of(first.key), {}, std::move(text)});
  });
}

std::string Aggregator::describe_wait(const WaitingList<KeyState*>::Wait& wait, TimeUs now) const {
  std::vector<std::string> missing;
  for (uint32_t child = 0; child < num_children(); ++child) {
    if (wait.what->last_round[child] != wait.what->first.round) missing.push_back(children_.describe[child]);
  }
  return " has waited " + seconds(now - wait.started_us) + " for " + enumerate(missing);
}

}  // namespace byteps::protocol
