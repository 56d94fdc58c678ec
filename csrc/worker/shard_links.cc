#include "worker/shard_links.h"

#include <algorithm>
#include <utility>

#include "base/countdown.h"

namespace byteps::worker {

template <typename F>
void ShardLinks::for_each(F&& f) {
  MutexLock lock(mutex_);
  for (std::vector<ShardLink>& links : services_) {
    for (ShardLink& link : links) f(link);
  }
}

template <typename F>
void ShardLinks::for_each_of(uint32_t service, F&& f) {
  MutexLock lock(mutex_);
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
  for_each_of(service, [bytes_per_s](ShardLink& link) {
    link.loop->post([link = link.link.get(), bytes_per_s] { link->pace(bytes_per_s); });
  });
}

void ShardLinks::add_sent_traffic(const transport::EventLoop& loop, std::vector<protocol::Flow>& flows) {
  for_each([&](const ShardLink& link) {
    if (link.loop != &loop) return;
    const auto sent = link.link->sent_traffic();
    if (sent)
      flows.push_back({link.link->service(), false, sent->bytes, static_cast<uint64_t>(sent->busy_us)});
  });
}

void ShardLinks::peer_left(uint32_t service) {
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
  bool has_successors = false;
  uint64_t losses = 0;  // 0: nothing is stated
  size_t num_links = 0;
  {
    MutexLock lock(mutex_);
    has_successors = successors_.has_value();
    if (successors_) successors_->lose(removed.node, removed.weights_ppb);
    if (states_losses_ && removed.stores) losses = ++losses_;
    num_links = services_[removed.node].size();
  }
  if (!has_successors) {
    return for_each_of(removed.node, [&](ShardLink& link) {
      link.loop->post([link = link.link.get(), why = unavailable(removed.text)] { link->fail(why); });
    });
  }
  const auto move_on = [](ShardLink& link) {
    link.loop->post([link = link.link.get()] { link->move_on(); });
  };
  const auto all_have_said = Countdown::start(num_links, [this, node = removed.node, losses, move_on] {
    if (losses > 0) state(losses);
    for_each_of(node, move_on);
  });
  for_each_of(removed.node, [&](ShardLink& link) {
    link.loop->post([link = link.link.get(), all_have_said] {
      link->fail_over();
      all_have_said->report();
    });
  });
}

// To services that are lost as well, it says nothing.
void ShardLinks::state(uint64_t losses) {
  for_each([losses](ShardLink& link) {
    link.loop->post([link = link.link.get(), losses] { link->say_stated(losses); });
  });
}

template <typename T, typename HeadOf>
std::vector<std::pair<ShardLink*, std::vector<T>>> ShardLinks::by_successor(std::vector<T> all,
                                                                            HeadOf&& head_of) {
  std::vector<std::pair<ShardLink*, std::vector<T>>> groups;
  MutexLock lock(mutex_);
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
  for (OutgoingPartition& each : partitions) each.head.type = protocol::DataType::kMoved;
  auto groups = by_successor(std::move(partitions), [](const OutgoingPartition& each) { return each.head; });
  for (auto& [link, of_link] : groups) {
    link->loop->post(
        [link = link->link.get(), moved = std::move(of_link)]() mutable { link->enqueue(std::move(moved)); });
  }
}

void ShardLinks::move(const std::vector<protocol::DataHead>& outcomes) {
  for (auto& [link, of_link] : by_successor(outcomes, [](const protocol::DataHead& head) { return head; })) {
    link->loop->post([link = link->link.get(), moved = std::move(of_link)] { link->say_holds(moved); });
  }
}

void ShardLinks::fail(const Status& why) {
  for_each([&why](ShardLink& link) { link.loop->post([link = link.link.get(), why] { link->fail(why); }); });
}

void ShardLinks::leave(std::initializer_list<ShardLinks*> all, const Status& why, GracePeriod grace_period,
                       UniqueFunction<void()> done) {
  size_t count = 0;
  for (ShardLinks* const links : all) links->for_each([&count](ShardLink&) { ++count; });
  const auto countdown = Countdown::start(count, std::move(done));
  for (ShardLinks* const links : all) {
    links->for_each([&](ShardLink& link) {
      link.loop->post([link = link.link.get(), why, grace_period, countdown] {
        link->leave(why, grace_period, [countdown] { countdown->report(); });
      });
    });
  }
}

}  // namespace byteps::worker
