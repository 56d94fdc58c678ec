// How a node reaches the services of others: through shared memory those of its own machine, else by TCP.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/annotations.h"
#include "base/clock.h"
#include "base/config.h"
#include "base/status.h"
#include "protocol/message.h"
#include "summation/service.h"
#include "transport/transport.h"

namespace byteps::node {

// Threads: any. Has to outlive the connections and listeners made through it.
class Routes {
 public:
  explicit Routes(const NodeConfig& config);

  transport::Transport& tcp() { return *tcp_; }
  // What `service` can be reached at through shared memory; none: not to be used by this process.
  Result<std::vector<std::string>> listen_locally(summation::Service& service);

  // To a shard of the service of `node`, which outlives the call's answer. Where the ranks of one machine cannot
  // share memory it is by TCP, and the log says why, once for each of them.
  void connect(transport::EventLoop& loop, const protocol::NodeInfo& self, const protocol::NodeInfo& node,
               size_t shard, transport::ConnectCallback done);

 private:
  void connect_to(transport::Transport& transport, transport::EventLoop& loop, const std::string& address,
                  transport::ConnectCallback done) const;
  // Why not through shared memory to that shard; ok: it may be tried.
  Status may_share_memory(const protocol::NodeInfo& node, size_t shard) const;
  void tell_detour(const protocol::NodeInfo& node, const Status& why);

  const bool wants_shm_;
  const TimeUs timeout_us_;
  const std::unique_ptr<transport::Transport> tcp_;
  const Result<std::unique_ptr<transport::Transport>> shm_;  // an error: not to be used, and why
  Mutex mutex_;
  std::set<int32_t> detours_ BPS_GUARDED_BY(mutex_);  // ranks of this machine that are reached by TCP
};

}  // namespace byteps::node
