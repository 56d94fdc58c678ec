// All links of one process at one level, as worker/shard_links is.
#pragma once

#include <memory>
#include <vector>

#include "sim/sim_link.h"

namespace byteps::sim {

class SimLanes {
 public:
  // For all services, in order: a link for each shard; empty: never sent to.
  void add_service(std::vector<std::unique_ptr<SimLink>> links) { services_.push_back(std::move(links)); }

  bool leads_to(uint32_t service) const { return service < services_.size() && !services_[service].empty(); }
  SimLink& at(uint32_t service, uint16_t shard_index) {
    auto& links = services_.at(service);
    return *links.at(shard_index % links.size());
  }

  void peer_left(uint32_t service);
  void fail(const Status& why);
  // Calls `done` when all have left.
  void leave(const Status& why, GracePeriod grace_period, UniqueFunction<void()> done);

 private:
  template <typename F>
  void for_each(F&& f);

  std::vector<std::vector<std::unique_ptr<SimLink>>> services_;  // by service, by shard
};

}  // namespace byteps::sim
