// The connection of a machine's services to the roots: links of the worker at Level::kCluster.
#pragma once

#include <unordered_map>
#include <vector>

#include "base/annotations.h"
#include "summation/reduction_level.h"
#include "worker/shard_links.h"

namespace byteps::node {

class NodeParentLink final : public summation::ParentLink, public worker::LinkEvents {
 public:
  // `lost` is called when a link breaks (LinkEvents::on_link_lost).
  using LostCallback = UniqueFunction<void(uint32_t service, const Status& why)>;
  // `num_rank_indices`: Tree::num_rank_indices().
  NodeParentLink(uint32_t rank, uint32_t num_rank_indices, LostCallback lost)
      : rank_(rank), lost_(std::move(lost)), links_(num_rank_indices) {}

  // Must be filled before the first use, with links whose events go to this object.
  worker::ShardLinks& links() { return links_; }

  // Any thread. A rank of the machine may have heard of a new server before this process has.
  bool reaches(uint32_t root_node) const override {
    return root_node >= links_.num_services() || links_.leads_to(root_node);
  }
  void push_pull(transport::EventLoop& loop, const protocol::DataHead& head, Bytes partial,
                 MutableBytes result, UniqueFunction<void(const Result<protocol::Plan>&)> done) override;
  void fail_round(const protocol::DataHead& head, const Status& why) override;
  // Links to the next service have been added.
  void on_service_added();

  // Called on the loops of the links.
  void on_completed(worker::OutgoingPartition partition, const Result<protocol::Plan>& outcome) override;
  void on_link_lost(uint32_t service, const Status& why) override { lost_(service, why); }
  void on_outcomes_moved(std::vector<protocol::DataHead> outcomes) override { links_.move(outcomes); }
  void on_partitions_moved(std::vector<worker::OutgoingPartition> partitions) override {
    links_.move(std::move(partitions));
  }

 private:
  struct Pending {
    transport::EventLoop* loop;
    UniqueFunction<void(const Result<protocol::Plan>&)> done;
  };

  void enqueue(worker::OutgoingPartition outgoing);

  const uint32_t rank_;
  LostCallback lost_;
  worker::ShardLinks links_;
  Mutex mutex_;
  uint64_t last_handle_ BPS_GUARDED_BY(mutex_) = 0;
  std::unordered_map<uint64_t, Pending> pending_ BPS_GUARDED_BY(mutex_);
  std::vector<worker::OutgoingPartition> early_ BPS_GUARDED_BY(mutex_);  // to services not added yet
};

}  // namespace byteps::node
