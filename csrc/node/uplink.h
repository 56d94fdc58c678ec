// The way from a machine's services to the roots: worker links at the level of the cluster.
#pragma once

#include <string>
#include <unordered_map>

#include "base/annotations.h"
#include "summation/uplink.h"
#include "worker/lanes.h"

namespace byteps::node {

class NodeUplink final : public summation::Uplink, public worker::LinkEvents {
 public:
  // `lost` hears of links that break (LinkEvents::on_link_lost).
  using LostCallback = UniqueFunction<void(uint32_t service, const Status& why)>;
  NodeUplink(uint32_t rank, LostCallback lost) : rank_(rank), lost_(std::move(lost)) {}

  // To fill before the first use, with lanes whose links have this object for events.
  worker::Lanes& lanes() { return lanes_; }

  // Any thread.
  bool reaches(uint32_t top) const override { return lanes_.leads_to(top); }
  void push_pull(transport::EventLoop& loop, const protocol::DataHead& head, Bytes partial,
                 MutableBytes result, UniqueFunction<void(const Result<protocol::Plan>&)> done) override;
  void fail_round(const protocol::DataHead& head, const Status& why) override;

  // On the links' loops.
  void on_settled(uint64_t handle, const Result<protocol::Plan>& outcome) override;
  void on_link_lost(uint32_t service, const Status& why) override { lost_(service, why); }

 private:
  struct Pending {
    transport::EventLoop* loop;
    UniqueFunction<void(const Result<protocol::Plan>&)> done;
  };

  void enqueue(worker::Outgoing outgoing);

  const uint32_t rank_;
  LostCallback lost_;
  worker::Lanes lanes_;
  Mutex mutex_;
  uint64_t last_handle_ BPS_GUARDED_BY(mutex_) = 0;
  std::unordered_map<uint64_t, Pending> pending_ BPS_GUARDED_BY(mutex_);
};

}  // namespace byteps::node
