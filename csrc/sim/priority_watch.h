// That priority takes effect on a connection: what leaves between the moment in which something is offered and the one in
// which it leaves itself is at least as urgent, but for what the credit allowed to be ahead (protocol/outbox).
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "protocol/outbox.h"
#include "sim/world.h"

namespace byteps::sim {

class PriorityWatch {
 public:
  // `outbox`: of the connection's port. `peer`: for findings.
  PriorityWatch(World& world, VirtualProcess& process, std::string peer, const protocol::Outbox& outbox)
      : world_(world), process_(process), peer_(std::move(peer)), outbox_(outbox) {}

  // Before it is pushed; a number to tell left() by.
  uint64_t offered(int32_t priority, uint64_t bytes);
  // It is written; before the port hears of it. Reports what had to wait for too much.
  void left(uint64_t ticket);
  // Of what has been offered nothing more leaves.
  void close() { waiting_.clear(); }

 private:
  struct Offered {
    int32_t priority;
    uint64_t bytes;
    uint64_t less_urgent_bytes = 0;  // left before it
  };

  void look_at_credit() { most_ahead_bytes_ = std::max(most_ahead_bytes_, outbox_.credit_bytes()); }

  World& world_;
  VirtualProcess& process_;
  const std::string peer_;
  const protocol::Outbox& outbox_;
  uint64_t last_ticket_ = 0;
  uint64_t most_ahead_bytes_ = 0;  // credit or one partition, as they have been so far
  std::map<uint64_t, Offered> waiting_;
};

}  // namespace byteps::sim
