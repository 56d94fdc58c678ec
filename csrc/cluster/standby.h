// The standby of the scheduler (protocol/standby.h) on one event loop.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cluster/relocation.h"
#include "cluster/scheduler.h"
#include "protocol/standby.h"
#include "transport/transport.h"

namespace byteps::cluster {

// Destroyed on a thread other than the loop's, after the loop has stopped. Everything else happens on
// the loop.
class Standby {
 public:
  // `control_tcp`: for the connections of a scheduler. `tcp`: as Scheduler's. `scheduler`: where the
  // scheduler is, and may be started again.
  Standby(transport::EventLoop& loop, transport::Transport& control_tcp, transport::Transport& tcp,
          std::vector<transport::Address> scheduler)
      : loop_(loop), control_tcp_(control_tcp), tcp_(tcp), scheduler_addresses_(std::move(scheduler)) {}

  // Listens for the nodes, which come when the scheduler is lost. Their connections wait until
  // take_over().
  Result<transport::Address> listen(const std::string& ip);
  // kDataLoss if the scheduler must not send this message now.
  Status on_replicate(const protocol::Replicate& message);
  // The scheduler is lost: this is the scheduler from now on.
  void take_over();
  // The process leaves. Calls `done` when all workers have left, if it is the scheduler.
  void leave(UniqueFunction<void()> done);
  // The process leaves, although the job goes on or has failed: as Scheduler::shutdown, if it is the
  // scheduler.
  void shutdown(const std::string& text, TimeUs deadline_us, UniqueFunction<void()> done);
  // The loop's thread cannot go on: as Scheduler::give_up.
  void give_up(const Status& why);
  // After the loop has stopped. As Scheduler::known_tensors, if it is the scheduler.
  std::set<uint64_t> known_tensors() const;

 private:
  void accept(std::unique_ptr<transport::Connection> connection);

  transport::EventLoop& loop_;
  transport::Transport& control_tcp_;
  transport::Transport& tcp_;
  const std::vector<transport::Address> scheduler_addresses_;
  std::unique_ptr<transport::Listener> listener_;
  std::vector<std::unique_ptr<transport::Connection>> waiting_;
  protocol::SchedulerReplica replica_;
  std::unique_ptr<Scheduler> scheduler_;    // null: not the scheduler
  std::unique_ptr<Relocation> relocation_;  // likewise
};

}  // namespace byteps::cluster
