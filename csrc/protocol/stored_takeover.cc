#include "protocol/stored_takeover.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>

#include "protocol/text.h"

namespace byteps::protocol {
namespace {

constexpr uint64_t kGone = std::numeric_limits<uint64_t>::max();

// Each answer contains more rounds than the one before.
bool is_newer(const StoredTakeover::Rounds& a, const StoredTakeover::Rounds& b) {
  const auto count = [](const StoredTakeover::Rounds& rounds) {
    return std::accumulate(rounds.begin(), rounds.end(), uint64_t{0});
  };
  return b.empty() || count(a) > count(b);
}

std::string name_of(uint32_t rank) { return "rank " + std::to_string(rank); }

}  // namespace

void StoredTakeover::on_contribution(const DataHead& head, TimeUs now, Actions& actions) {
  Pending& pending = pending_[head.key];
  if (pending.waiting.empty()) pending.wait = waits_.add(head.key, now);
  pending.waiting.emplace(head.rank, head);
  settle(head.key, pending, actions);
}

bool StoredTakeover::waits(const Key& key, uint32_t rank) const {
  const auto found = pending_.find(key);
  return found != pending_.end() && found->second.waiting.contains(rank);
}

void StoredTakeover::on_holds(const DataHead& head, Rounds rounds) {
  if (rounds.size() != stated_.size() || settled_.contains(head.key)) return;
  Pending& pending = pending_[head.key];
  if (pending.is_fetched || !is_newer(rounds, pending.rounds)) return;
  pending.head = head;
  pending.rounds = std::move(rounds);
}

void StoredTakeover::on_stated(uint32_t rank, uint64_t losses, Actions& actions) {
  stated_[rank] = std::max(stated_[rank], std::min(losses, kGone - 1));
  settle_all(actions);
}

void StoredTakeover::on_rank_gone(uint32_t rank, Actions& actions) {
  stated_[rank] = kGone;
  for (auto& [key, pending] : pending_) {
    if (pending.rounds.empty() || pending.head.rank != rank) continue;
    pending.is_fetched = false;
    pending.lost = unavailable(describe(key) + ": " + name_of(rank) +
                               ", which had the value after the loss of the server that stored it, has left "
                               "the job");
  }
  settle_all(actions);
}

uint64_t StoredTakeover::most_stated() const {
  uint64_t most = 0;
  for (const uint64_t losses : stated_) {
    if (losses != kGone) most = std::max(most, losses);
  }
  return most;
}

bool StoredTakeover::all_have_stated() const {
  return std::ranges::all_of(stated_, [most = most_stated()](uint64_t losses) { return losses >= most; });
}

void StoredTakeover::settle_all(Actions& actions) {
  if (!all_have_stated()) return;
  std::vector<Key> keys;
  for (const auto& [key, pending] : pending_) keys.push_back(key);
  for (const Key& key : keys) settle(key, pending_.at(key), actions);
}

void StoredTakeover::settle(const Key& key, Pending& pending, Actions& actions) {
  if (pending.waiting.empty()) return;
  if (!pending.lost.is_ok()) return lose(pending, actions);
  if (pending.is_fetched || !all_have_stated()) return;
  if (pending.rounds.empty()) {
    settled_.insert(key);
    actions.emplace_back(BeginAnew{take_waiting(pending)});
    pending_.erase(key);
  } else {
    pending.is_fetched = true;
    DataHead head = pending.head;
    head.type = DataType::kFetch;
    actions.emplace_back(Fetch{head, pending.head.rank});
  }
}

bool StoredTakeover::expects(const DataHead& head) const {
  const auto found = pending_.find(head.key);
  if (found == pending_.end() || !found->second.is_fetched) return false;
  const DataHead& fetched = found->second.head;
  return head.rank == fetched.rank && head.round == fetched.round;
}

StoredTakeover::Restored StoredTakeover::take(const Key& key) {
  const auto found = pending_.find(key);
  Restored restored{std::move(found->second.rounds), take_waiting(found->second)};
  pending_.erase(found);
  settled_.insert(key);
  return restored;
}

void StoredTakeover::lose(Pending& pending, Actions& actions) {
  actions.emplace_back(Lose{take_waiting(pending), pending.lost});
}

std::vector<DataHead> StoredTakeover::take_waiting(Pending& pending) {
  if (!pending.waiting.empty()) waits_.remove(pending.wait);
  std::vector<DataHead> heads;
  for (const auto& [rank, head] : std::exchange(pending.waiting, {})) heads.push_back(head);
  return heads;
}

std::vector<DataHead> StoredTakeover::take_waiting(std::optional<uint64_t> number) {
  std::vector<DataHead> heads;
  for (auto& [key, pending] : pending_) {
    if (!number || number_of(key) == *number)
      std::ranges::copy(take_waiting(pending), std::back_inserter(heads));
  }
  return heads;
}

void StoredTakeover::on_tick(TimeUs now, Actions& actions) {
  waits_.for_each_timed_out(now, [&](Waits::Iterator wait) {
    Pending& pending = pending_.at(wait->what);
    pending.lost = deadline_exceeded(describe(wait->what) + ": " + describe_wait(*wait, now));
    pending.is_fetched = false;
    lose(pending, actions);
  });
  waits_.warn(now, [&](const Waits::Wait& oldest, size_t) {
    actions.emplace_back(Stalled{
        number_of(oldest.what), {}, describe_partition(oldest.what) + ": " + describe_wait(oldest, now)});
  });
}

std::string StoredTakeover::describe_wait(const Waits::Wait& wait, TimeUs now) const {
  const Pending& pending = pending_.at(wait.what);
  std::vector<std::string> ranks;
  for (uint32_t rank = 0; rank < stated_.size(); ++rank) {
    if (pending.is_fetched ? rank == pending.head.rank : stated_[rank] < most_stated())
      ranks.push_back(name_of(rank));
  }
  return "a push_pull has waited " + seconds(now - wait.started_us) + " for " + enumerate(ranks) +
         (pending.is_fetched ? " to send the value" : " to say what it holds") +
         ", after the loss of the server that stored it";
}

}  // namespace byteps::protocol
