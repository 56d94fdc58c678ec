#include "node/parent_link.h"

#include <utility>
#include <vector>

namespace byteps::node {

void NodeParentLink::push_pull(transport::EventLoop& loop, const protocol::DataHead& head, Bytes partial,
                               MutableBytes result,
                               UniqueFunction<void(const Result<protocol::Plan>&)> done) {
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
  enqueue({.handle = 0, .head = head, .input = {}, .output = {}, .failure = why});
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
void NodeParentLink::on_completed(uint64_t handle, const Result<protocol::Plan>& outcome) {
  Pending pending;
  {
    MutexLock lock(mutex_);
    const auto found = pending_.find(handle);
    pending = std::move(found->second);
    pending_.erase(found);
  }
  pending.loop->post([done = std::move(pending.done), outcome]() mutable { done(outcome); });
}

}  // namespace byteps::node
