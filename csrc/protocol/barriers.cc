#include "protocol/barriers.h"

#include <algorithm>
#include <utility>

#include "protocol/text.h"

namespace byteps::protocol {

Barriers::Barriers(std::vector<std::string> describe_rank, TimeUs timeout_us)
    : describe_rank_(std::move(describe_rank)),
      timeout_us_(timeout_us),
      last_sequence_(describe_rank_.size()) {}

Status Barriers::on_arrival(uint32_t rank, uint32_t sequence, TimeUs now, Answers& answers) {
  const auto last = rounds_.find(last_sequence_[rank]);
  const bool waits = last != rounds_.end() && last->second.failure.is_ok();
  if (sequence != last_sequence_[rank] + 1 || waits) {
    return data_loss("barrier " + std::to_string(sequence) +
                     (waits ? " before the end of barrier " : " after barrier ") +
                     std::to_string(last_sequence_[rank]));
  }
  last_sequence_[rank] = sequence;
  if (Status why = departure(sequence); !why.is_ok()) {
    answers.push_back({rank, sequence, std::move(why)});
    return Status::ok();
  }
  Round& round = rounds_.try_emplace(sequence, Round{{}, now, {}}).first->second;
  if (round.failure.is_ok()) {
    round.waiting.push_back(rank);
  } else {
    answers.push_back({rank, sequence, round.failure});
  }
  if (std::ranges::min(last_sequence_) >= sequence) {
    for (uint32_t waiting : round.waiting) answers.push_back({waiting, sequence, Status::ok()});
    rounds_.erase(sequence);
  }
  return Status::ok();
}

// Why the barrier cannot complete any more; ok if every rank that it lacks is still in the job.
Status Barriers::departure(uint32_t sequence) const {
  for (uint32_t rank : left_) {
    if (last_sequence_[rank] < sequence)
      return unavailable("barrier: " + describe_rank_[rank] + " has left the job");
  }
  return Status::ok();
}

void Barriers::restart_waits(TimeUs now) {
  for (auto& [sequence, round] : rounds_) round.started_us = now;
}

void Barriers::on_left(uint32_t rank, Answers& answers) {
  left_.push_back(rank);
  for (auto round = rounds_.begin(); round != rounds_.end();) {
    const Status why = departure(round->first);
    for (uint32_t waiting : round->second.waiting) {
      if (!why.is_ok()) answers.push_back({waiting, round->first, why});
    }
    round = why.is_ok() ? std::next(round) : rounds_.erase(round);
  }
}

void Barriers::on_tick(TimeUs now, Answers& answers) {
  for (auto& [sequence, round] : rounds_) {
    if (!round.failure.is_ok() || now - round.started_us < timeout_us_) continue;
    round.failure = deadline_exceeded("barrier: has waited " + seconds(now - round.started_us) + " for " +
                                      missing(sequence));
    for (uint32_t waiting : round.waiting) answers.push_back({waiting, sequence, round.failure});
    round.waiting.clear();
  }
}

TimeUs Barriers::next_tick_us() const {
  TimeUs next = kNever;
  for (const auto& [sequence, round] : rounds_) {
    if (round.failure.is_ok()) next = std::min(next, round.started_us + timeout_us_);
  }
  return next;
}

std::string Barriers::missing(uint32_t sequence) const {
  std::vector<std::string> names;
  for (uint32_t rank = 0; rank < last_sequence_.size(); ++rank) {
    if (last_sequence_[rank] < sequence) names.push_back(describe_rank_[rank]);
  }
  return enumerate(names);
}

}  // namespace byteps::protocol
