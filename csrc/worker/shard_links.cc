#include "worker/shard_links.h"

#include <algorithm>
#include <utility>

#include "base/countdown.h"

namespace byteps::worker {

template <typename F>
void ShardLinks::for_each(F&& f) {
  for (std::vector<ShardLink>& links : services_) {
    for (ShardLink& link : links) f(link);
  }
}

template <typename F>
void ShardLinks::for_each_of(uint32_t service, F&& f) {
  for (ShardLink& link : services_[service]) f(link);
}

void ShardLinks::add_service(std::vector<ShardLink> links) {
  MutexLock lock(mutex_);
  services_.push_back(std::move(links));
}

uint32_t ShardLinks::num_services() const {
  MutexLock lock(mutex_);
  return static_cast<uint32_t>(services_.size());
}

bool ShardLinks::leads_to(uint32_t service) const {
  MutexLock lock(mutex_);
  return service < services_.size() && !services_[service].empty();
}

ShardLink& ShardLinks::at(uint32_t service, uint16_t serving_index) {
  MutexLock lock(mutex_);
  return link_at(service, serving_index);
}

ShardLink& ShardLinks::link_at(uint32_t service, uint16_t serving_index) {
  std::vector<ShardLink>& links = services_[service];
  return links[serving_index / num_rank_indices_ % links.size()];
}

void ShardLinks::pace(uint32_t service, uint64_t bytes_per_s) {
  MutexLock lock(mutex_);
  for_each_of(service, [bytes_per_s](ShardLink& link) {
    link.loop->post([link = link.link.get(), bytes_per_s] { link->pace(bytes_per_s); });
  });
}

void ShardLinks::add_sent_traffic(const transport::EventLoop& loop, std::vector<protocol::Flow>& flows) {
  MutexLock lock(mutex_);
  for_each([&](const ShardLink& link) {
    if (link.loop != &loop) return;
    const auto sent = link.link->sent_traffic();
    if (sent)
      flows.push_back({link.link->service(), false, sent->bytes, static_cast<uint64_t>(sent->busy_us)});
  });
}

void ShardLinks::peer_left(uint32_t service) {
  MutexLock lock(mutex_);
  for_each_of(service,
              [](ShardLink& link) { link.loop->post([link = link.link.get()] { link->peer_left(); }); });
}

void ShardLinks::follow(protocol::Successors successors, bool states_losses) {
  MutexLock lock(mutex_);
  successors_ = std::move(successors);
  states_losses_ = states_losses;
}

void ShardLinks::add_successor(const protocol::NodeInfo& server) {
  MutexLock lock(mutex_);
  if (successors_) successors_->add(server);
}

void ShardLinks::lose(const protocol::Removed& removed) {
  MutexLock lock(mutex_);
  if (!successors_) {
    return for_each_of(removed.node, [&](ShardLink& link) {
      link.loop->post([link = link.link.get(), why = unavailable(removed.text)] { link->fail(why); });
    });
  }
  successors_->lose(removed.node, removed.weights_ppb);
  if (states_losses_ && removed.stores) ++losses_;
  untold_ += services_[removed.node].size();
  for_each_of(removed.node, [this](ShardLink& link) {
    link.loop->post([this, link = link.link.get()] {
      link->fail_over();
      on_told();
    });
  });
  go_on_if_all_is_told();  // there may be no link
}

void ShardLinks::on_told() {
  MutexLock lock(mutex_);
  --untold_;
  go_on_if_all_is_told();
}

void ShardLinks::go_on_if_all_is_told() {
  if (untold_ > 0) return;
  if (std::exchange(stated_, losses_) != losses_) {
    for_each([losses = losses_](ShardLink& link) {  // to services that are lost, it says nothing
      link.loop->post([link = link.link.get(), losses] { link->say_stated(losses); });
    });
  }
  post_waiting();
}

void ShardLinks::post_waiting() {
  auto groups =
      by_successor(std::exchange(waiting_, {}), [](const OutgoingPartition& each) { return each.head; });
  for (auto& [link, of_link] : groups) {
    link->loop->post([link = link->link.get(), moved = std::move(of_link), ended = ended_]() mutable {
      ended.is_ok() ? link->enqueue(std::move(moved)) : link->refuse(std::move(moved), ended);
    });
  }
}

void ShardLinks::end(const Status& why) {
  if (ended_.is_ok()) ended_ = why;
  post_waiting();
}

template <typename T, typename HeadOf>
std::vector<std::pair<ShardLink*, std::vector<T>>> ShardLinks::by_successor(std::vector<T> all,
                                                                            HeadOf&& head_of) {
  std::vector<std::pair<ShardLink*, std::vector<T>>> groups;
  for (T& each : all) {
    const protocol::DataHead& head = head_of(each);
    ShardLink* const link = &link_at(successors_->root(head), head.serving_index);
    auto group = std::ranges::find(groups, link, [](const auto& of_link) { return of_link.first; });
    if (group == groups.end()) group = groups.insert(group, {link, {}});
    group->second.push_back(std::move(each));
  }
  return groups;
}

void ShardLinks::move(std::vector<OutgoingPartition> partitions) {
  MutexLock lock(mutex_);
  for (OutgoingPartition& each : partitions) {
    each.head.type = protocol::DataType::kMoved;
    waiting_.push_back(std::move(each));
  }
  if (untold_ == 0 || !ended_.is_ok()) post_waiting();
}

void ShardLinks::move(const std::vector<protocol::DataHead>& outcomes) {
  MutexLock lock(mutex_);
  for (auto& [link, of_link] : by_successor(outcomes, [](const protocol::DataHead& head) { return head; })) {
    link->loop->post([link = link->link.get(), moved = std::move(of_link)] { link->say_holds(moved); });
  }
}

void ShardLinks::fail(const Status& why) {
  MutexLock lock(mutex_);
  end(why);
  for_each([&why](ShardLink& link) { link.loop->post([link = link.link.get(), why] { link->fail(why); }); });
}

void ShardLinks::leave(std::initializer_list<ShardLinks*> all, const Status& why, GracePeriod grace_period,
                       UniqueFunction<void()> done) {
  size_t count = 0;
  for (ShardLinks* const links : all) {
    MutexLock lock(links->mutex_);
    links->for_each([&count](ShardLink&) { ++count; });
  }
  const auto countdown = Countdown::start(count, std::move(done));
  for (ShardLinks* const links : all) {
    MutexLock lock(links->mutex_);
    links->end(why);
    links->for_each([&](ShardLink& link) {
      link.loop->post([link = link.link.get(), why, grace_period, countdown] {
        link->leave(why, grace_period, [countdown] { countdown->report(); });
      });
    });
  }
}

}  // namespace byteps::worker
