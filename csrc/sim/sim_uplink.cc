#include "sim/sim_uplink.h"

#include <utility>

namespace byteps::sim {

void SimUplink::push_pull(const protocol::DataHead& head, const View& partial, const View& result,
                          UniqueFunction<void(const Result<protocol::Plan>&)> done) {
  pending_[++last_handle_] = std::move(done);
  enqueue({.handle = last_handle_, .head = head, .input = partial, .output = result});
}

void SimUplink::fail_round(const protocol::DataHead& head, const Status& why) {
  enqueue({.handle = 0, .head = head, .input = {}, .output = {}, .failure = why});
}

void SimUplink::enqueue(OutgoingPartition partition) {
  partition.head.rank = rank_;
  process_.soon([this, partition = std::move(partition)]() mutable {
    SimLink& link = links_.at(partition.head.root_node, partition.head.shard_index);
    link.enqueue({std::move(partition)});
  });
}

void SimUplink::on_completed(uint64_t handle, const Result<protocol::Plan>& outcome) {
  const auto found = pending_.find(handle);
  if (found == pending_.end()) return world_.report(process_, "a partial sum is settled twice");
  process_.soon([done = std::move(found->second), outcome]() mutable { done(outcome); });
  pending_.erase(found);
}

}  // namespace byteps::sim
