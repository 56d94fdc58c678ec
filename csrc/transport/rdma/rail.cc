#include "transport/rdma/rail.h"

#include <sys/epoll.h>

#include <utility>
#include <vector>

#include "base/log.h"

namespace byteps::transport::rdma {

Rail::Rail(std::unique_ptr<Nic> nic) : nic_(std::move(nic)), registrations_(*nic_) {}

Status Rail::state() const {
  MutexLock lock(mutex_);
  return state_;
}

void Rail::attach(const std::shared_ptr<NicLoop>& loop) {
  MutexLock lock(mutex_);
  loops_[loop.get()] = loop;
}

void Rail::detach(NicLoop* loop) {
  MutexLock lock(mutex_);
  loops_.erase(loop);
}

void Rail::read_events() {
  MutexLock lock(events_mutex_);
  const std::string name = nic_->info().to_string();
  while (true) {
    switch (nic_->next_event()) {
      case NicEvent::kNone: return;
      case NicEvent::kPortDown:
        BPS_LOG(kWarning) << "RDMA: " << name << " is down: what is in flight is sent again when it is up";
        break;
      case NicEvent::kPortUp: BPS_LOG(kWarning) << "RDMA: " << name << " is up again"; break;
      case NicEvent::kGone: return on_gone();
    }
  }
}

void Rail::on_gone() {
  const Status why = unavailable("RDMA: the device " + nic_->info().device + " was removed or has failed");
  // The event loops of loops_ exist while the lock is held.
  MutexLock lock(mutex_);
  if (!state_.is_ok()) return;  // the NIC may report this repeatedly
  state_ = why;
  for (const auto& [raw, weak] : loops_) {
    raw->loop().post([weak = weak, why] {
      if (const auto loop = weak.lock()) loop->on_gone(why);
    });
  }
}

Result<std::shared_ptr<NicLoop>> NicLoop::create(EventLoop& loop, std::shared_ptr<Rail> rail) {
  BPS_RETURN_IF_ERROR(rail->state());
  std::shared_ptr<NicLoop> self(new NicLoop(loop, std::move(rail)));
  BPS_RETURN_IF_ERROR(self->open());
  self->rail_->attach(self);
  return self;
}

NicLoop::NicLoop(EventLoop& loop, std::shared_ptr<Rail> rail)
    : loop_(EpollLoop::from(loop)),
      rail_(std::move(rail)),
      arena_(rail_->registrations()),
      channel_handler_([this] { read_channel(); }),
      event_handler_([this] { rail_->read_events(); }) {}

Status NicLoop::open() {
  auto channel = rail_->nic().make_channel();
  if (!channel) return channel.status();
  channel_ = std::move(*channel);
  BPS_RETURN_IF_ERROR(loop_.watch(channel_->fd(), EPOLLIN, &channel_handler_));
  watches_channel_ = true;
  BPS_RETURN_IF_ERROR(loop_.watch(rail_->nic().event_fd(), EPOLLIN, &event_handler_));
  watches_events_ = true;
  return Status::ok();
}

NicLoop::~NicLoop() {
  rail_->detach(this);
  if (watches_channel_) loop_.unwatch(channel_->fd());
  if (watches_events_) loop_.unwatch(rail_->nic().event_fd());
}

Result<std::unique_ptr<QueuePair>> NicLoop::make_queue_pair(NicClient* client,
                                                            const QueuePairOptions& options) {
  BPS_RETURN_IF_ERROR(rail_->state());
  return rail_->nic().make_queue_pair(*channel_, client, options);
}

Status NicLoop::state() {
  rail_->read_events();
  return rail_->state();
}

void NicLoop::read_channel() {
  // Each client has at most one event, so this bound avoids a read that finds nothing.
  for (size_t left = clients_.size(); left > 0; --left) {
    void* const tag = channel_->next();
    if (tag == nullptr) return;
    auto* const client = static_cast<NicClient*>(tag);
    if (clients_.contains(client)) client->on_completions();
  }
}

void NicLoop::on_gone(const Status& why) {
  if (std::exchange(watches_events_, false)) loop_.unwatch(rail_->nic().event_fd());
  for (NicClient* client : std::vector(clients_.begin(), clients_.end())) {
    if (clients_.contains(client)) client->on_nic_gone(why);
  }
}

}  // namespace byteps::transport::rdma
