#include "node/parent_link.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace byteps::node {

void NodeParentLink::push_pull(transport::EventLoop& loop, const protocol::DataHead& head, Bytes partial,
                               MutableBytes result,
                               UniqueFunction<void(const Result<protocol::Plan>&)> done) {
  // All ranks of the machine have contributed, and so has this process, which knows the root then.
  if (!links_.leads_to(head.root_node)) {
    const Status why =
        data_loss("contribution: node " + std::to_string(head.root_node) + " cannot be the root of it");
    return loop.post([done = std::move(done), why]() mutable { done(why); });
  }
  worker::OutgoingPartition outgoing{
      .handle = 0, .head = head, .input = partial, .output = result, .failure = {}};
  {
    MutexLock lock(mutex_);
    outgoing.handle = ++last_handle_;
    pending_[outgoing.handle] = {&loop, std::move(done)};
  }
  enqueue(std::move(outgoing));
}

void NodeParentLink::fail_round(const protocol::DataHead& head, const Status& why) {
  worker::OutgoingPartition outgoing{.handle = 0, .head = head, .input = {}, .output = {}, .failure = why};
  {
    MutexLock lock(mutex_);
    if (head.root_node >= links_.num_services()) return early_.push_back(std::move(outgoing));
  }
  enqueue(std::move(outgoing));
}

void NodeParentLink::on_service_added() {
  std::vector<worker::OutgoingPartition> due;
  {
    MutexLock lock(mutex_);
    const uint32_t num_services = links_.num_services();
    const auto is_due = [=](const auto& early) { return early.head.root_node < num_services; };
    const auto first_due = std::stable_partition(early_.begin(), early_.end(), std::not_fn(is_due));
    due.assign(std::make_move_iterator(first_due), std::make_move_iterator(early_.end()));
    early_.erase(first_due, early_.end());
  }
  for (worker::OutgoingPartition& outgoing : due) enqueue(std::move(outgoing));
}

void NodeParentLink::enqueue(worker::OutgoingPartition outgoing) {
  outgoing.head.rank = rank_;
  worker::ShardLink& link = links_.at(outgoing.head.root_node, outgoing.head.serving_index);
  std::vector<worker::OutgoingPartition> one;
  one.push_back(std::move(outgoing));
  link.loop->post(
      [link = link.link.get(), one = std::move(one)]() mutable { link->enqueue(std::move(one)); });
}

// Always posted, even if the loop is the link's own, so that a service is never called back from
// within its own call.
void NodeParentLink::on_completed(worker::OutgoingPartition partition,
                                  const Result<protocol::Plan>& outcome) {
  Pending pending;
  {
    MutexLock lock(mutex_);
    const auto found = pending_.find(partition.handle);
    pending = std::move(found->second);
    pending_.erase(found);
  }
  pending.loop->post([done = std::move(pending.done), outcome]() mutable { done(outcome); });
}

}  // namespace byteps::node
