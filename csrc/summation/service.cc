#include "summation/service.h"

#include <utility>

#include "base/countdown.h"
#include "summation/child.h"

namespace byteps::summation {

Service::Service(const std::vector<ShardLoop>& loops, Metrics& metrics, ShardEvents& events) {
  for (const ShardLoop& each : loops) {
    const auto index = static_cast<uint32_t>(shards_.size());
    shards_.push_back(std::make_unique<Shard>(index, *each.loop, *each.outbox, metrics, events));
  }
  listeners_.resize(shards_.size());
}

Service::~Service() {
  for (size_t i = 0; i < shards_.size(); ++i) {
    transport::EventLoop& loop = shards_[i]->loop();
    const auto destroy = [this, i] {
      listeners_[i].clear();
      shards_[i].reset();
    };
    if (!loop.run_and_wait(destroy)) destroy();
  }
}

Result<std::vector<std::string>> Service::listen(transport::Transport& transport,
                                                 const transport::Address& address) {
  std::vector<std::string> addresses;
  for (size_t i = 0; i < shards_.size(); ++i) {
    Shard& shard = *shards_[i];
    Status status;
    shard.loop().run_and_wait([&] {
      auto listener = transport.listen(shard.loop(), address,
                                       [&shard](auto connection) { shard.adopt(std::move(connection)); });
      status = listener.status();
      if (!status.is_ok()) return;
      addresses.push_back((*listener)->address().to_string());
      listeners_[i].push_back(std::move(*listener));
    });
    if (!status.is_ok()) return status.with_context("summation service cannot listen");
  }
  return addresses;
}

template <typename F>
void Service::post_each(F f) {
  for (const auto& shard : shards_) {
    shard->loop().post([target = shard.get(), f] { f(*target); });
  }
}

void Service::start(const Position& position) {
  post_each([=](Shard& shard) { shard.start(position); });
}

void Service::pace(const std::vector<uint64_t>& bytes_per_s) {
  post_each([=](Shard& shard) { shard.pace(bytes_per_s); });
}

void Service::fail_tensor(uint64_t number, uint64_t last_round, const Status& why) {
  post_each([=](Shard& shard) { shard.fail_tensor(number, last_round, why); });
}

void Service::forget(std::vector<protocol::ForgottenKeys> keys) {
  const auto shared = std::make_shared<const std::vector<protocol::ForgottenKeys>>(std::move(keys));
  post_each([=](Shard& shard) { shard.forget(*shared); });
}

void Service::restart_waits() {
  post_each([](Shard& shard) { shard.restart_waits(); });
}

void Service::rank_left(uint32_t rank, bool lingers) {
  post_each([=](Shard& shard) { shard.rank_left(rank, lingers); });
}

std::set<uint64_t> Service::summed_tensors() const {
  std::set<uint64_t> numbers;
  for (const auto& shard : shards_) shard->add_summed_tensors(numbers);
  return numbers;
}

void Service::abandon(const Status& why) {
  post_each([=](Shard& shard) { shard.abandon(why); });
}

void Service::fail(const Status& why) {
  post_each([=](Shard& shard) { shard.fail(why); });
}

void Service::leave(GracePeriod grace_period, UniqueFunction<void()> done) {
  const auto all_left = Countdown::start(
      shards_.size(), [this, done = std::move(done)]() mutable { stop_listening(std::move(done)); });
  post_each([=](Shard& shard) { shard.leave(grace_period, [all_left] { all_left->report(); }); });
}

// Not left to the destructor, because uncollected garbage may keep this object alive.
void Service::stop_listening(UniqueFunction<void()> done) {
  const auto all_stopped = Countdown::start(shards_.size(), std::move(done));
  for (size_t i = 0; i < shards_.size(); ++i) {
    shards_[i]->loop().post([this, i, all_stopped] {
      listeners_[i].clear();
      all_stopped->report();
    });
  }
}

}  // namespace byteps::summation
