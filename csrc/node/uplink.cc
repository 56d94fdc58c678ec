#include "node/uplink.h"

#include <utility>
#include <vector>

namespace byteps::node {

void NodeUplink::push_pull(transport::EventLoop& loop, const protocol::DataHead& head, Bytes partial,
                           MutableBytes result, UniqueFunction<void(const Result<protocol::Plan>&)> done) {
  worker::Outgoing outgoing{.handle = 0, .head = head, .input = partial, .output = result, .failure = {}};
  {
    MutexLock lock(mutex_);
    outgoing.handle = ++last_handle_;
    pending_[outgoing.handle] = {&loop, std::move(done)};
  }
  enqueue(std::move(outgoing));
}

void NodeUplink::fail_round(const protocol::DataHead& head, const Status& why) {
  enqueue({.handle = 0, .head = head, .input = {}, .output = {}, .failure = why});
}

void NodeUplink::enqueue(worker::Outgoing outgoing) {
  outgoing.head.rank = rank_;
  worker::Lane& lane = lanes_.at(outgoing.head.top, outgoing.head.lane);
  std::vector<worker::Outgoing> one;
  one.push_back(std::move(outgoing));
  lane.loop->post(
      [link = lane.link.get(), one = std::move(one)]() mutable { link->enqueue(std::move(one)); });
}

// Posted even where the loop is the link's own: a service is never called back from inside a call of its own.
void NodeUplink::on_settled(uint64_t handle, const Result<protocol::Plan>& outcome) {
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
