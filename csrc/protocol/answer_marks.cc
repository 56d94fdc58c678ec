#include "protocol/answer_marks.h"

#include <utility>

namespace byteps::protocol {

void AnswerMarks::on_answer(TimeUs now_us) {
  if (period_us_ == kNever) return;
  wanted_ = 2;
  if (next_us_ == kNever && unconfirmed_.empty()) next_us_ = now_us + period_us_;
}

uint64_t AnswerMarks::begin(std::set<uint32_t> children, TimeUs now_us) {
  begun_us_ = now_us;
  next_us_ = kNever;
  --wanted_;
  unconfirmed_ = std::move(children);
  if (unconfirmed_.empty()) schedule_next();
  return ++last_;
}

bool AnswerMarks::on_confirmed(uint32_t child, uint64_t mark) { return mark == last_ && take(child); }

bool AnswerMarks::on_left(uint32_t child) { return take(child); }

void AnswerMarks::on_lost() {
  unconfirmed_.clear();
  period_us_ = next_us_ = kNever;
}

// Whether it was the last child that had not confirmed.
bool AnswerMarks::take(uint32_t child) {
  if (unconfirmed_.erase(child) == 0 || !unconfirmed_.empty()) return false;
  schedule_next();
  return true;
}

void AnswerMarks::schedule_next() {
  if (wanted_ > 0) next_us_ = begun_us_ + period_us_;
}

}  // namespace byteps::protocol
