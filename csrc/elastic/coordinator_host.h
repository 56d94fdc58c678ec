// The coordinator of an elastic job in a process with threads of its own: the launcher's.
#pragma once

#include <memory>
#include <string>

#include "base/config.h"
#include "base/event_flag.h"
#include "cluster/coordinator.h"
#include "node/environment.h"

namespace byteps::elastic {

// All methods: any thread but that of its loop ("bps-coordinator").
class CoordinatorHost {
 public:
  // Listens on config.scheduler_fd if that is set, else on the first free one of
  // config.scheduler_ports at config.scheduler_host, an address of this machine. Of `config` it uses
  // these, the secret, the job's id, the version, timeout_s and start_timeout_s; `options` has the
  // rest. Errors: as Coordinator::listen.
  static Result<std::unique_ptr<CoordinatorHost>> create(const NodeConfig& config,
                                                         protocol::CoordinatorOptions options);
  ~CoordinatorHost();

  const transport::Address& address() const { return coordinator_->address(); }
  cluster::Coordinator::Counts counts() { return coordinator_->counts(); }
  // Blocks until the job has ended: ok if all workers have left in order, else why it has failed.
  Status wait(const KeepWaiting& keep_waiting);
  // Ends the job: its members get `text` as the error.
  void shutdown(const std::string& text) { coordinator_->shutdown(text); }

 private:
  CoordinatorHost() = default;

  std::unique_ptr<node::Environment> environment_;
  std::unique_ptr<transport::Transport> tcp_;
  std::unique_ptr<transport::EventLoop> loop_;
  std::unique_ptr<cluster::Coordinator> coordinator_;
};

}  // namespace byteps::elastic
