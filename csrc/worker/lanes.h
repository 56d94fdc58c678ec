// All links of one process at one level of the tree: one for each shard of each service that it may send to.
//
// A lane is a link and the loop it lives on. Any thread may call; the work is posted to the lanes' loops.
#pragma once

#include <initializer_list>
#include <memory>
#include <vector>

#include "worker/link.h"

namespace byteps::worker {

struct Lane {
  transport::EventLoop* loop;
  std::unique_ptr<Link> link;
};

class Lanes {
 public:
  // The lanes to the shards of the next service (node number), in the order of shards; empty: none of its shards is
  // ever sent to. For all services, in order, before the first use.
  void add_service(std::vector<Lane> lanes) { services_.push_back(std::move(lanes)); }

  bool leads_to(uint32_t service) const { return service < services_.size() && !services_[service].empty(); }
  // Every child must choose alike: a shard sums what reaches it. Precondition: leads_to(service).
  Lane& at(uint32_t service, uint16_t lane) {
    std::vector<Lane>& lanes = services_[service];
    return lanes[lane % lanes.size()];
  }

  // As of Link, for all concerned.
  void peer_left(uint32_t service);
  void fail(const Status& why);
  // Blocks until all links have left, as long as `patience` lasts for one of them.
  static void leave(std::initializer_list<Lanes*> all, const Status& why, Patience patience);

 private:
  template <typename F>
  void for_each(F&& f);

  std::vector<std::vector<Lane>> services_;  // by service, by shard
};

}  // namespace byteps::worker
