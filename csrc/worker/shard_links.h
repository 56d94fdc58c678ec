// All links of a process at one level of the tree: one to each shard of each service that it may
// send to.
//
// Thread-safe: all work is posted to the loops of the links.
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <vector>

#include "base/annotations.h"
#include "protocol/successors.h"
#include "worker/link.h"

namespace byteps::worker {

struct ShardLink {
  transport::EventLoop* loop;  // the only thread that uses `link`
  std::unique_ptr<Link> link;
};

class ShardLinks {
 public:
  // `num_rank_indices`: Tree::num_rank_indices().
  explicit ShardLinks(uint32_t num_rank_indices) : num_rank_indices_(num_rank_indices) {}

  // Adds the links to the next service, indexed by shard; empty if nothing is ever sent to it.
  // Services have the numbers of their nodes.
  void add_service(std::vector<ShardLink> links);

  uint32_t num_services() const;
  bool leads_to(uint32_t service) const;
  // The link for partitions with this serving index, which is equal on all children: all
  // contributions to a partition must reach the same shard. Valid as long as this object.
  // Precondition: leads_to(service).
  ShardLink& at(uint32_t service, uint16_t serving_index);

  // The job goes on when a server is lost. Call before any other method but add_service().
  // `states_losses`: for stored tensors (protocol/stored_takeover.h).
  void follow(protocol::Successors successors, bool states_losses = false);
  // As Successors::add, for a server whose links are added as well; without follow(), nothing.
  void add_successor(const protocol::NodeInfo& server);
  // The server is lost: what it has not answered goes to the successors of its roots. Without
  // follow(), its partitions fail.
  void lose(const protocol::Removed& removed);
  // As LinkEvents, whose owner passes them on. Partitions wait until all links to all services that
  // are lost have told of their outcomes: one may be for a partition that had a successor already,
  // which is lost now.
  void move(std::vector<OutgoingPartition> partitions);
  void move(const std::vector<protocol::DataHead>& outcomes);

  // As Link::pace, for the links to `service`.
  void pace(uint32_t service, uint64_t bytes_per_s);
  // Adds what the links of `loop` have sent since they were connected. On the thread of `loop`.
  void add_sent_traffic(const transport::EventLoop& loop, std::vector<protocol::Flow>& flows);
  // As Link's methods, for the links to `service` and for all links.
  void peer_left(uint32_t service);
  void fail(const Status& why);
  // Calls Link::leave for all links in `all`, then `done`, on one of their loops.
  static void leave(std::initializer_list<ShardLinks*> all, const Status& why, GracePeriod grace_period,
                    UniqueFunction<void()> done);

 private:
  template <typename F>
  void for_each(F&& f) BPS_REQUIRES(mutex_);
  template <typename F>
  void for_each_of(uint32_t service, F&& f) BPS_REQUIRES(mutex_);
  ShardLink& link_at(uint32_t service, uint16_t serving_index) BPS_REQUIRES(mutex_);
  // A link to a lost service has told of its outcomes.
  void on_told() BPS_EXCLUDES(mutex_);
  // If all links have, states the losses and lets partitions move.
  void go_on_if_all_is_told() BPS_REQUIRES(mutex_);
  // Passes what waits to the links of the successors.
  void post_waiting() BPS_REQUIRES(mutex_);
  // Nothing waits any more: it fails with `why`.
  void end(const Status& why) BPS_REQUIRES(mutex_);
  // Groups `all` by the link to the successor of each one's root. To be posted under the same lock,
  // so that every link gets it before the next loss.
  template <typename T, typename HeadOf>
  std::vector<std::pair<ShardLink*, std::vector<T>>> by_successor(std::vector<T> all, HeadOf&& head_of)
      BPS_REQUIRES(mutex_);

  const uint32_t num_rank_indices_;
  mutable Mutex mutex_;
  std::vector<std::vector<ShardLink>> services_ BPS_GUARDED_BY(mutex_);  // indexed by node, shard
  std::optional<protocol::Successors> successors_ BPS_GUARDED_BY(mutex_);
  bool states_losses_ BPS_GUARDED_BY(mutex_) = false;
  uint64_t losses_ BPS_GUARDED_BY(mutex_) = 0;  // number of losses to be stated
  uint64_t stated_ BPS_GUARDED_BY(mutex_) = 0;  // number of losses that were stated last
  // Number of links to lost services that have not told of their outcomes, and what waits for them.
  size_t untold_ BPS_GUARDED_BY(mutex_) = 0;
  std::vector<OutgoingPartition> waiting_ BPS_GUARDED_BY(mutex_);
  Status ended_ BPS_GUARDED_BY(mutex_);  // not ok: by end()
};

}  // namespace byteps::worker
