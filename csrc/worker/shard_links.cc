#include "worker/shard_links.h"

#include <atomic>

#include "base/event_flag.h"

namespace byteps::worker {

template <typename F>
void ShardLinks::for_each(F&& f) {
  for (std::vector<ShardLink>& links : services_) {
    for (ShardLink& link : links) f(link);
  }
}

void ShardLinks::peer_left(uint32_t service) {
  for (ShardLink& link : services_[service]) {
    link.loop->post([link = link.link.get()] { link->peer_left(); });
  }
}

void ShardLinks::fail(const Status& why) {
  for_each([&why](ShardLink& link) { link.loop->post([link = link.link.get(), why] { link->fail(why); }); });
}

void ShardLinks::leave(std::initializer_list<ShardLinks*> all, const Status& why, GracePeriod grace_period) {
  struct Pending {
    std::atomic<size_t> links{1};
    EventFlag none_left;
  };
  const auto pending = std::make_shared<Pending>();  // shared: a lane may report after the deadline
  const auto done = [pending] {
    if (pending->links.fetch_sub(1) == 1) pending->none_left.set();
  };
  for (ShardLinks* const links : all) {
    links->for_each([&](ShardLink& link) {
      pending->links.fetch_add(1);
      link.loop->post(
          [link = link.link.get(), why, grace_period, done] { link->leave(why, grace_period, done); });
    });
  }
  done();
  while (pending->none_left.wait(grace_period.outer_deadline_us()) == EventFlag::Wake::kInterrupted) {
  }
}

}  // namespace byteps::worker
