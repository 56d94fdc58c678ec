// The way from a machine's services to the roots, as node/parent_link is.
#pragma once

#include <map>

#include "sim/sim_lanes.h"
#include "sim/sim_tier.h"
#include "sim/world.h"

namespace byteps::sim {

class SimUplink final : public ParentLink, public LinkEvents {
 public:
  using LostCallback = UniqueFunction<void(uint32_t service, const Status& why)>;
  SimUplink(World& world, VirtualProcess& process, uint32_t rank, LostCallback lost)
      : world_(world), process_(process), rank_(rank), lost_(std::move(lost)) {}

  SimLanes& links() { return links_; }

  bool reaches(uint32_t root_node) const override { return links_.leads_to(root_node); }
  void push_pull(const protocol::DataHead& head, const View& partial, const View& result,
                 UniqueFunction<void(const Result<protocol::Plan>&)> done) override;
  void fail_round(const protocol::DataHead& head, const Status& why) override;
  void on_completed(uint64_t handle, const Result<protocol::Plan>& outcome) override;
  void on_link_lost(uint32_t service, const Status& why) override { lost_(service, why); }

 private:
  void enqueue(OutgoingPartition partition);

  World& world_;
  VirtualProcess& process_;
  const uint32_t rank_;
  LostCallback lost_;
  SimLanes links_;
  uint64_t last_handle_ = 0;
  std::map<uint64_t, UniqueFunction<void(const Result<protocol::Plan>&)>> pending_;
};

}  // namespace byteps::sim
