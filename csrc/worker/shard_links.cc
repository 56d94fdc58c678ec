#include "worker/shard_links.h"

#include <utility>

#include "base/countdown.h"

namespace byteps::worker {

template <typename F>
void ShardLinks::for_each(F&& f) {
  for (std::vector<ShardLink>& links : services_) {
    for (ShardLink& link : links) f(link);
  }
}

void ShardLinks::pace(uint32_t service, uint64_t bytes_per_s) {
  for (ShardLink& link : services_[service]) {
    link.loop->post([link = link.link.get(), bytes_per_s] { link->pace(bytes_per_s); });
  }
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
  for (ShardLink& link : services_[service]) {
    link.loop->post([link = link.link.get()] { link->peer_left(); });
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
