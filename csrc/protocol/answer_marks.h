// Which of a shard's answers all its children have received, so that no child has to hold them for
// another one any more (worker/held_results.h).
//
// From time to time the shard sends each child a mark, behind all answers so far, and each child
// confirms it. When all have, the mark is stable: the shard tells the children. Nothing is sent in
// a job that is idle: after the last answer come two marks, since children keep what is younger
// than the mark before the stable one.
//
// Pure.
#pragma once

#include <cstdint>
#include <set>

#include "base/clock.h"

namespace byteps::protocol {

class AnswerMarks {
 public:
  // `period_us`: between two marks, and from an answer to the first one; kNever: there are none.
  explicit AnswerMarks(TimeUs period_us) : period_us_(period_us) {}

  // A child is sent an answer.
  void on_answer(TimeUs now_us);
  // When to call begin(); kNever while a mark is not stable, or if there is nothing to mark.
  TimeUs next_us() const { return next_us_; }
  // Returns the number of a new mark, from 1, which goes to all children that are connected.
  uint64_t begin(std::set<uint32_t> children, TimeUs now_us);
  // The child has confirmed the mark. Returns whether the mark has become stable.
  bool on_confirmed(uint32_t child, uint64_t mark);
  // The child has left in order, so it needs no answer any more. Returns as on_confirmed().
  bool on_left(uint32_t child);
  // The connection of a child has ended otherwise. It may get answers that it has not received from
  // the successor of this service, so nothing becomes stable any more.
  void on_lost();
  uint64_t last() const { return last_; }

 private:
  bool take(uint32_t child);
  void schedule_next();

  TimeUs period_us_;
  TimeUs next_us_ = kNever;
  TimeUs begun_us_ = 0;             // the last mark
  uint64_t last_ = 0;               // number of the last mark
  int wanted_ = 0;                  // number of marks to come, without further answers
  std::set<uint32_t> unconfirmed_;  // children that have not confirmed the last mark
};

}  // namespace byteps::protocol
