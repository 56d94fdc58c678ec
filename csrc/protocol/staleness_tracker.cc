#include "protocol/staleness_tracker.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "protocol/text.h"

namespace byteps::protocol {
namespace {

// "25 elements of float32 from rank 0 with staleness 3".
std::string describe_contribution(const DataHead& head) {
  const bool bounded = head.staleness != kUnboundedStaleness;
  return describe_tensor(head) + " from rank " + std::to_string(head.root) + " with " +
         (bounded ? "staleness " + std::to_string(head.staleness) : "unbounded staleness");
}

bool fit_together(const DataHead& a, const DataHead& b) {
  return a.dtype == b.dtype && a.bytes == b.bytes && a.shape == b.shape && a.root == b.root &&
         a.staleness == b.staleness;
}

}  // namespace

StalenessTracker::StalenessTracker(Children ranks, WaitLimits limits)
    : ranks_(std::move(ranks)), waiting_(limits), gone_(num_children()) {}

Result<StalenessTracker::Verdict> StalenessTracker::admit(const DataHead& head,
                                                          uint64_t payload_bytes) const {
  BPS_RETURN_IF_ERROR(check(head, payload_bytes));
  const auto found = keys_.find(head.key);
  const KeyState* state = found == keys_.end() ? nullptr : &found->second;
  const uint64_t last_round = state ? state->last_round[head.rank] : 0;
  const bool waits = state && state->waits[head.rank] != none_;
  const bool comes_again = head.type == DataType::kMoved && head.round == last_round && !waits;
  if (head.round <= last_round) return comes_again ? Verdict::kAccept : Verdict::kRepeat;
  const auto broken = [&](const std::string& what) {
    return data_loss(ranks_.describe[head.rank] + ": " + protocol::describe(head.key) + ": " + what);
  };
  if (head.round != last_round + 1) {
    return broken("expected round " + std::to_string(last_round + 1) + ", got " + std::to_string(head.round));
  }
  if (waits) {
    return broken("round " + std::to_string(head.round) + " before the answer to round " +
                  std::to_string(last_round));
  }
  return refusal(state, head).is_ok() ? Verdict::kAccept : Verdict::kRefuse;
}

Status StalenessTracker::check(const DataHead& head, uint64_t payload_bytes) const {
  BPS_CHECK(head.rank < num_children()) << "rank " << head.rank;
  const auto expected = [&](const char* field, const std::string& want, uint64_t got) {
    return data_loss(ranks_.describe[head.rank] + ": " + protocol::describe(head.key) + ": " + field +
                     ": expected " + want + ", got " + std::to_string(got));
  };
  if (!is_contribution(head.type)) return expected("type", "2", static_cast<uint64_t>(head.type));
  if (!is_stored(head.op)) return expected("reduction", "7 or 8", static_cast<uint64_t>(head.op));
  if (head.round == 0) return expected("round", "1", 0);
  if (head.root >= num_children()) return expected("root", "a rank of the job", head.root);
  const uint64_t due_bytes = has_values(head) ? head.bytes : 0;
  if (payload_bytes != due_bytes) return expected("payload bytes", std::to_string(due_bytes), payload_bytes);
  return Status::ok();
}

bool StalenessTracker::lacks(const KeyState* state, const DataHead& head, uint32_t rank) {
  if ((!state || !state->has_value) && head.root == rank) return true;
  if (head.staleness == kUnboundedStaleness) return false;
  return (state ? state->last_round[rank] : 0) + uint64_t{head.staleness} < head.round;
}

Status StalenessTracker::refusal(const KeyState* state, const DataHead& head) const {
  BPS_RETURN_IF_ERROR(failure(head.key));
  if (state) BPS_RETURN_IF_ERROR(state->failure);
  for (const uint32_t rank : gone_ranks_) {
    // Includes its own: what was refused stays refused, as no rank advances after it has gone.
    if (rank == head.rank || lacks(state, head, rank)) return gone_[rank];
  }
  return Status::ok();
}

Status StalenessTracker::failure(const Key& key) const {
  const auto found = failed_tensors_.find(number_of(key));
  return failed_.is_ok() && found != failed_tensors_.end() ? found->second : failed_;
}

StalenessTracker::KeyState& StalenessTracker::state_of(const DataHead& head) {
  const auto [found, is_new] = keys_.try_emplace(head.key);
  KeyState& state = found->second;
  if (is_new) {
    state.first = head;
    state.last_round.resize(num_children());
    state.last_failed.resize(num_children());
    state.waits.resize(num_children(), none_);
    state.slowest_count = num_children();
  }
  return state;
}

void StalenessTracker::on_contribution(const DataHead& head, TimeUs now, StalenessActions& actions) {
  KeyState& state = state_of(head);
  if (head.round <= state.last_round[head.rank]) {
    // Else it was admitted twice, on two connections.
    if (head.type == DataType::kMoved) answer_again(state, head, actions);
    return;
  }
  Status why = refusal(&state, head);
  if (why.is_ok() && !fit_together(head, state.first)) {
    why = state.failure = invalid_argument(
        ranks_.describe[state.first.rank] + " asks for " + describe_contribution(state.first) + ", " +
        ranks_.describe[head.rank] + " for " + describe_contribution(head));
    fail_waits(
        [&](const Contribution& waiting) { return waiting.state == &state ? state.failure : Status::ok(); },
        actions);
  }
  bool concerns_others = gone_[head.rank].is_ok() && advance(state, head.rank);
  if (!why.is_ok()) {
    state.last_failed[head.rank] = true;
    actions.push_back(Fail{head, {head.rank}, why, false});
  } else {
    state.waits[head.rank] = waiting_.add({&state, head}, now);
    if (!state.has_value && head.op == ReduceOp::kSeed && head.root == head.rank) {
      state.has_value = concerns_others = true;
      actions.push_back(StoreFirstValue{head});
    }
  }
  if (concerns_others) {
    answer_ready(state, actions);
  } else if (why.is_ok() && may_answer(state, head)) {
    actions.push_back(Answer{head.key, {end_wait(state.waits[head.rank])}});
  }
}

void StalenessTracker::answer_again(const KeyState& state, const DataHead& head,
                                    StalenessActions& actions) const {
  Status why = refusal(&state, head);
  if (why.is_ok() && state.last_failed[head.rank])
    why = aborted("round " + std::to_string(head.round) + " of " + ranks_.describe[head.rank] +
                  " has failed on a server that was lost after that");
  if (why.is_ok()) {
    actions.emplace_back(Answer{head.key, {head}, true});
  } else {
    actions.emplace_back(Fail{head, {head.rank}, why, false});
  }
}

std::vector<uint64_t> StalenessTracker::included(const Key& key) const {
  const KeyState& state = keys_.at(key);
  std::vector<uint64_t> rounds;
  for (uint32_t rank = 0; rank < num_children(); ++rank) {
    const uint64_t over = state.last_round[rank] - (state.waits[rank] == none_ ? 0 : 1);
    rounds.push_back(2 * over + (state.last_failed[rank] ? 1 : 0));
  }
  return rounds;
}

void StalenessTracker::restore(const DataHead& first, const std::vector<uint64_t>& rounds) {
  BPS_CHECK(!keys_.contains(first.key) && rounds.size() == num_children()) << protocol::describe(first.key);
  KeyState& state = state_of(first);
  state.has_value = true;
  for (uint32_t rank = 0; rank < num_children(); ++rank) {
    state.last_round[rank] = rounds[rank] / 2;
    state.last_failed[rank] = rounds[rank] % 2 != 0;
  }
  count_slowest(state);
}

bool StalenessTracker::advance(KeyState& state, uint32_t rank) {
  const bool was_slowest = state.last_round[rank]++ == state.slowest_round;
  if (!was_slowest || --state.slowest_count > 0) return false;
  count_slowest(state);
  return true;
}

void StalenessTracker::count_slowest(KeyState& state) {
  const std::vector<uint64_t>& rounds = state.last_round;
  state.slowest_round = *std::min_element(rounds.begin(), rounds.end());
  state.slowest_count = static_cast<uint32_t>(std::count(rounds.begin(), rounds.end(), state.slowest_round));
}

bool StalenessTracker::may_answer(const KeyState& state, const DataHead& head) {
  const bool in_bound =
      head.staleness == kUnboundedStaleness || head.round <= state.slowest_round + uint64_t{head.staleness};
  return state.has_value && in_bound;
}

void StalenessTracker::answer_ready(KeyState& state, StalenessActions& actions) {
  Answer answer{state.first.key, {}};
  for (const Waits::Iterator wait : state.waits) {
    if (wait != none_ && may_answer(state, wait->what.head)) answer.heads.push_back(end_wait(wait));
  }
  if (!answer.heads.empty()) actions.emplace_back(std::move(answer));
}

DataHead StalenessTracker::end_wait(Waits::Iterator wait) {
  const DataHead head = wait->what.head;
  wait->what.state->waits[head.rank] = none_;
  wait->what.state->last_failed[head.rank] = false;
  waiting_.remove(wait);
  return head;
}

void StalenessTracker::fail(Waits::Iterator wait, const Status& why, StalenessActions& actions) {
  KeyState& state = *wait->what.state;
  const DataHead head = end_wait(wait);
  state.last_failed[head.rank] = true;
  actions.push_back(Fail{head, {head.rank}, why, false});
}

template <typename Why>
void StalenessTracker::fail_waits(Why why, StalenessActions& actions) {
  waiting_.for_each([&](Waits::Iterator wait) {
    const Status reason = why(wait->what);
    if (!reason.is_ok()) fail(wait, reason, actions);
  });
}

void StalenessTracker::on_child_gone(uint32_t rank, const Status& why, StalenessActions& actions) {
  BPS_CHECK(rank < num_children() && !why.is_ok()) << "rank " << rank;
  if (!gone_[rank].is_ok()) return;
  gone_[rank] = why;
  gone_ranks_.push_back(rank);
  fail_waits(
      [&](const Contribution& waiting) {
        const bool needs_it = waiting.head.rank != rank && lacks(waiting.state, waiting.head, rank);
        return needs_it ? why : Status::ok();
      },
      actions);
}

// Ranks have no common rounds of a stored tensor: it fails as a whole or continues.
void StalenessTracker::fail_tensor(uint64_t number, uint64_t last_round, const Status& why,
                                   StalenessActions& actions) {
  BPS_CHECK(!why.is_ok()) << "a tensor fails for a reason";
  if (last_round != kEveryRound || !failed_tensors_.try_emplace(number, why).second) return;
  fail_waits(
      [&](const Contribution& waiting) { return number_of(waiting.head.key) == number ? why : Status::ok(); },
      actions);
}

void StalenessTracker::fail_all(const Status& why, StalenessActions& actions) {
  BPS_CHECK(!why.is_ok()) << "a job ends for a reason";
  if (!failed_.is_ok()) return;
  failed_ = why;
  fail_waits([&](const Contribution&) { return why; }, actions);
}

void StalenessTracker::on_tick(TimeUs now, StalenessActions& actions) {
  waiting_.for_each_timed_out(
      now, [&](auto wait) { fail(wait, deadline_exceeded(describe(*wait, now)), actions); });
  waiting_.warn(now, [&](const auto& oldest, size_t count) {
    const Key& key = oldest.what.head.key;
    std::string text = describe_partition(key) + ": " + describe(oldest, now);
    if (count > 1) text += "; so have " + std::to_string(count - 1) + " more contributions";
    actions.push_back(Stalled{number_of(key), {}, std::move(text)});
  });
}

std::string StalenessTracker::describe(const Waits::Wait& wait, TimeUs now) const {
  const auto& [state, head] = wait.what;
  std::vector<std::string> missing;
  for (uint32_t rank = 0; rank < num_children(); ++rank) {
    if (lacks(state, head, rank)) missing.push_back(ranks_.describe[rank]);
  }
  return "round " + std::to_string(head.round) + " of " + ranks_.describe[head.rank] + " has waited " +
         seconds(now - wait.started_us) + " for " + enumerate(missing);
}

}  // namespace byteps::protocol
