#include "sim/priority_watch.h"

namespace byteps::sim {

uint64_t PriorityWatch::offered(int32_t priority, uint64_t bytes) {
  look_at_credit();
  most_ahead_bytes_ = std::max(most_ahead_bytes_, bytes);
  waiting_[++last_ticket_] = {priority, bytes};
  return last_ticket_;
}

void PriorityWatch::left(uint64_t ticket) {
  look_at_credit();
  const auto node = waiting_.extract(ticket);
  if (node.empty()) return;  // reported late
  const Offered& gone = node.mapped();
  if (gone.less_urgent_bytes > most_ahead_bytes_) {
    world_.report(process_, "on the way to " + peer_ + ", " + std::to_string(gone.less_urgent_bytes) +
                                " less urgent bytes went ahead, and at most " +
                                std::to_string(most_ahead_bytes_) + " may");
  }
  for (auto& [other, waits] : waiting_) {
    if (waits.priority > gone.priority) waits.less_urgent_bytes += gone.bytes;
  }
}

}  // namespace byteps::sim
