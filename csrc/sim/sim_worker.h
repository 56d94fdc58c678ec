// The worker role of a process, as worker/worker is: from push_pulls to partitions on links and back.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "protocol/push_pull_table.h"
#include "sim/sim_lanes.h"
#include "sim/world.h"

namespace byteps::sim {

class WorkerEvents {
 public:
  virtual ~WorkerEvents() = default;
  virtual void send_to_scheduler(protocol::Control message) = 0;
  virtual void on_link_lost(uint32_t service, const Status& why) = 0;
  virtual void on_credit(uint64_t credit_bytes) = 0;
  virtual void on_handle_done(protocol::Handle handle, const Status& status) = 0;
};

class SimWorker final : public LinkEvents {
 public:
  SimWorker(World& world, VirtualProcess& process, uint32_t rank, protocol::Tree tree,
            const protocol::PartitionRule& rule, WorkerEvents& events);

  SimLanes& links() { return links_; }
  SimLanes& parameter_store_links() { return parameter_store_links_; }

  Status declare(const std::string& name, DType dtype, uint64_t bytes);
  Status push_pull(protocol::Handle handle, const protocol::PushPull& request, const View& input,
                   const View& output);
  Status on_placed(const protocol::Placed& placed);
  void on_refused(const protocol::Refused& refused);
  void peer_left(uint32_t service);
  void fail(const Status& why);
  void leave(GracePeriod grace_period, UniqueFunction<void()> done);

  void on_completed(protocol::Handle handle, const Result<protocol::Plan>& outcome) override;
  void on_link_lost(uint32_t service, const Status& why) override { events_.on_link_lost(service, why); }

 private:
  struct Buffers {
    View input;
    View output;
    size_t unsettled = 0;  // counted here, too, so that one settled twice is a finding and not an abort
  };

  // What one call starts, in the order of the links' first partitions.
  using Batch = std::pair<SimLink*, std::vector<OutgoingPartition>>;
  using Batches = std::vector<Batch>;

  void apply();
  void ask_for_another_plan();
  void change_plan(const protocol::Plan& plan);
  void start(const protocol::StartPartition& partition, Batches& batches);
  void fail(const protocol::FailPartition& failed, Batches& batches);
  static std::vector<OutgoingPartition>& batch_of(SimLink& link, Batches& batches);

  World& world_;
  VirtualProcess& process_;
  uint32_t rank_;
  WorkerEvents& events_;
  protocol::PushPullTable table_;
  SimLanes links_;
  SimLanes parameter_store_links_;
  std::map<protocol::Handle, Buffers> buffers_;
  protocol::TableActions actions_;
};

}  // namespace byteps::sim
