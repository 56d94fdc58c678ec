// All links of one process at one level of the tree: one for each shard of each service that it may send to.
//
// A lane is a link and the loop it lives on. Any thread may call; the work is posted to the lanes' loops.
#pragma once

#include <initializer_list>
#include <memory>
#include <vector>

#include "worker/link.h"

namespace byteps::worker {

struct ShardLink {
  transport::EventLoop* loop;
  std::unique_ptr<Link> link;
};

class ShardLinks {
 public:
  // The lanes to the shards of the next service (node number), in the order of shards; empty: none of its shards is
  // ever sent to. For all services, in order, before the first use.
  void add_service(std::vector<ShardLink> links) { services_.push_back(std::move(links)); }

  bool leads_to(uint32_t service) const { return service < services_.size() && !services_[service].empty(); }
  // Every child must choose alike: a shard sums what reaches it. Precondition: leads_to(service).
  ShardLink& at(uint32_t service, uint16_t shard_index) {
    std::vector<ShardLink>& links = services_[service];
    return links[shard_index % links.size()];
  }

  // As of Link, for all concerned.
  void peer_left(uint32_t service);
  void fail(const Status& why);
  // Calls `done`, on a loop of theirs, when all links have left or their grace period has expired.
  static void leave(std::initializer_list<ShardLinks*> all, const Status& why, GracePeriod grace_period,
                    UniqueFunction<void()> done);

 private:
  template <typename F>
  void for_each(F&& f);

  std::vector<std::vector<ShardLink>> services_;  // by service, by shard
};

}  // namespace byteps::worker
