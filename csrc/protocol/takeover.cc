#include "protocol/takeover.h"

#include <algorithm>
#include <string>
#include <utility>

#include "protocol/rounds.h"
#include "protocol/text.h"

namespace byteps::protocol {

Takeover::Takeover(Children children, WaitLimits limits) : children_(std::move(children)), parked_(limits) {}

void Takeover::on_holds(const DataHead& head, AggregationActions& actions) {
  Round& round = keys_[head.key][head.round];
  if (std::ranges::find(round.holders, head.rank) == round.holders.end()) round.holders.push_back(head.rank);
  fetch(round, actions);
}

void Takeover::park(const DataHead& head, const std::vector<uint32_t>& children, TimeUs now,
                    AggregationActions& actions) {
  if (children.empty()) return;
  Round& round = keys_[head.key][head.round];
  if (round.waiting.empty()) {
    round.head = head;
    round.wait = parked_.add({head.key, head.round}, now);
  }
  round.waiting.insert(round.waiting.end(), children.begin(), children.end());
  fetch(round, actions);
}

void Takeover::fetch(Round& round, AggregationActions& actions) {
  if (round.is_fetched || round.waiting.empty() || round.holders.empty()) return;
  round.is_fetched = true;
  DataHead head = round.head;
  head.type = DataType::kFetch;
  actions.emplace_back(Fetch{head, round.holders.front()});
}

bool Takeover::expects(const DataHead& head) const {
  const auto found = keys_.find(head.key);
  if (found == keys_.end()) return false;
  const auto round = found->second.find(head.round);
  return round != found->second.end() && round->second.is_fetched &&
         round->second.holders.front() == head.rank;
}

std::vector<uint32_t> Takeover::take(const DataHead& head) {
  Round& round = keys_.at(head.key).at(head.round);
  round.is_fetched = false;  // others may come, and fetch it again
  return take_waiting(round);
}

std::vector<uint32_t> Takeover::take_waiting(Round& round) {
  if (!round.waiting.empty()) parked_.remove(round.wait);
  return std::exchange(round.waiting, {});
}

void Takeover::on_complete(const Key& key, uint64_t round) {
  const auto found = keys_.find(key);
  if (found == keys_.end()) return;
  std::erase_if(found->second,
                [round](const auto& each) { return each.first < round && each.second.waiting.empty(); });
  if (found->second.empty()) keys_.erase(found);
}

void Takeover::forget(const Key& key) {
  const auto found = keys_.find(key);
  const auto waits = [](const auto& round) { return !round.second.waiting.empty(); };
  if (found != keys_.end() && std::ranges::none_of(found->second, waits)) keys_.erase(found);
}

bool Takeover::waits(const Key& key, uint32_t child) const {
  const auto found = keys_.find(key);
  return found != keys_.end() && std::ranges::any_of(found->second, [child](const auto& round) {
           return std::ranges::find(round.second.waiting, child) != round.second.waiting.end();
         });
}

const std::string& Takeover::describe(uint32_t rank) const {
  return children_.describe[static_cast<size_t>(children_.of_rank[rank])];
}

void Takeover::fail(Round& round, const Status& why, AggregationActions& actions) {
  round.is_fetched = false;
  actions.emplace_back(Fail{round.head, take_waiting(round), why, true});
}

template <typename Predicate>
void Takeover::fail_if(Predicate predicate, const Status& why, AggregationActions& actions) {
  parked_.for_each([&](auto wait) {
    const auto [key, number] = wait->what;
    Round& round = keys_.at(key).at(number);
    if (predicate(key, number, round)) fail(round, why, actions);  // removes it from the list
  });
}

void Takeover::on_rank_gone(uint32_t rank, AggregationActions& actions) {
  for (auto& [key, rounds] : keys_) {
    for (auto& [number, round] : rounds) {
      const bool was_asked = round.is_fetched && round.holders.front() == rank;
      if (std::erase(round.holders, rank) == 0) continue;
      if (was_asked) round.is_fetched = false;
      const bool is_lost = round.holders.empty() && !round.waiting.empty();
      is_lost ? fail(round, unavailable(describe(rank) + ", which has the result, has left the job"), actions)
              : fetch(round, actions);
    }
  }
}

void Takeover::fail_tensor(uint64_t number, uint64_t last_round, const Status& why,
                           AggregationActions& actions) {
  fail_if([number, last_round](const Key& key, uint64_t round,
                               const Round&) { return number_of(key) == number && round <= last_round; },
          why, actions);
}

void Takeover::fail_all(const Status& why, AggregationActions& actions) {
  fail_if([](const Key&, uint64_t, const Round&) { return true; }, why, actions);
}

void Takeover::on_tick(TimeUs now, AggregationActions& actions) {
  parked_.for_each_timed_out(now, [&](auto wait) {
    const auto [key, number] = wait->what;
    Round& round = keys_.at(key).at(number);
    std::vector<std::string> holders;
    for (const uint32_t rank : round.holders) holders.push_back(describe(rank));
    const std::string whom = holders.empty() ? "a rank that has its result" : enumerate(holders);
    fail(round,
         deadline_exceeded(describe_round(number) + " has waited " + seconds(now - wait->started_us) +
                           " for " + whom + ", after the loss of the server that summed it"),
         actions);
  });
  parked_.warn(now, [](const auto&, size_t) {});  // the same ranks are waited for as in other rounds
}

}  // namespace byteps::protocol
