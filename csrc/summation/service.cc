#include "summation/service.h"

#include <atomic>
#include <utility>

#include "base/event_flag.h"
#include "summation/child.h"

namespace byteps::summation {

Service::Service(const std::vector<transport::EventLoop*>& loops, Metrics& metrics, ShardEvents& events) {
  for (transport::EventLoop* loop : loops) shards_.push_back(std::make_unique<Shard>(*loop, metrics, events));
  listeners_.resize(shards_.size());
}

Service::~Service() {
  for (size_t i = 0; i < shards_.size(); ++i) {
    transport::EventLoop& loop = shards_[i]->loop();
    const auto destroy = [this, i] {
      listeners_[i].reset();
      shards_[i].reset();
    };
    if (!loop.run_and_wait(destroy)) destroy();
  }
}

Status Service::listen(transport::Transport& transport, const std::string& ip) {
  for (size_t i = 0; i < shards_.size(); ++i) {
    Shard& shard = *shards_[i];
    Status status;
    shard.loop().run_and_wait([&] {
      auto listener = transport.listen(shard.loop(), {ip, 0},
                                       [&shard](auto connection) { shard.adopt(std::move(connection)); });
      if (listener) listeners_[i] = std::move(*listener);
      status = listener.status();
    });
    if (!status) return status.with_context("summation service cannot listen");
  }
  return Status::ok();
}

std::vector<std::string> Service::addresses() const {
  std::vector<std::string> addresses;
  for (const auto& listener : listeners_) {
    if (listener) addresses.push_back(listener->address().to_string());
  }
  return addresses;
}

template <typename F>
void Service::post_each(F f) {
  for (const auto& shard : shards_) {
    shard->loop().post([target = shard.get(), f] { f(*target); });
  }
}

void Service::start(const std::vector<std::string>& describe, uint32_t epoch,
                    protocol::AggregationLimits limits) {
  post_each([=](Shard& shard) { shard.start(describe, epoch, limits); });
}

void Service::fail_tensor(uint32_t tensor, const Status& why) {
  post_each([=](Shard& shard) { shard.fail_tensor(tensor, why); });
}

void Service::child_left(uint32_t child) {
  post_each([=](Shard& shard) { shard.child_left(child); });
}

void Service::fail(const Status& why) {
  post_each([=](Shard& shard) { shard.fail(why); });
}

void Service::leave(TimeUs deadline_us) {
  struct Pending {
    std::atomic<size_t> shards;
    EventFlag none_left;
  };
  const auto pending = std::make_shared<Pending>();  // shared: a shard may report after the deadline
  pending->shards = shards_.size();
  post_each([=](Shard& shard) {
    shard.leave(deadline_us, [pending] {
      if (pending->shards.fetch_sub(1) == 1) pending->none_left.set();
    });
  });
  while (pending->none_left.wait(deadline_us) == EventFlag::Wake::kInterrupted) {
  }
}

}  // namespace byteps::summation
