// How a node reaches the services of others: through shared memory those of its own machine; those of others by RDMA
// where both ends have it; else by TCP.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/annotations.h"
#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "base/status.h"
#include "protocol/message.h"
#include "summation/service.h"
#include "transport/rdma/registrations.h"
#include "transport/transport.h"

namespace byteps::node {

// Threads: any. Has to outlive the connections and listeners made through it.
class Routes {
 public:
  explicit Routes(const NodeConfig& config);

  transport::Transport& tcp() { return *tcp_; }
  // Before the next two, once: RDMA, for a process that hands out `ip`. An error only where it is demanded
  // (BYTEPS_TRANSPORT=rdma); else the log says why there is none.
  Status open_rdma(const NodeConfig& config, const std::string& ip);
  // What `service` can be reached at through shared memory; none: not to be used by this process.
  Result<std::vector<std::string>> listen_locally(summation::Service& service);
  // The same by RDMA.
  Result<std::vector<std::string>> listen_by_rdma(summation::Service& service, const std::string& ip);

  // What network cards know of this process's memory.
  transport::rdma::RegistrationCounts rdma_counts() const;

  // To a shard of the service of `node`, which outlives the call's answer. What is not by the best way for the two is by
  // TCP, unless RDMA is demanded, and the log says why, once for each of them.
  void connect(transport::EventLoop& loop, const protocol::NodeInfo& self, const protocol::NodeInfo& node,
               size_t shard, transport::ConnectCallback done);

 private:
  // A better one than TCP.
  struct TransportCandidate {
    const char* name;  // for messages
    const Result<std::unique_ptr<transport::Transport>>& transport;
    const std::vector<std::string>& addresses;  // of the other node's shards
    log::Level level;                           // of what is said when it cannot be gone
    bool demanded;
  };

  void connect_to(transport::Transport& transport, transport::EventLoop& loop, const std::string& address,
                  transport::ConnectCallback done) const;
  // By `transport`, or else, if `why_not` or an attempt forbids that, by TCP.
  void connect_or_fall_back(transport::EventLoop& loop, const TransportCandidate& way,
                            const protocol::NodeInfo& node, size_t shard, transport::ConnectCallback done);
  void log_fallback(const TransportCandidate& way, const protocol::NodeInfo& node, const Status& why);

  const bool wants_shm_;
  const bool demands_rdma_;
  const TimeUs timeout_us_;
  const std::unique_ptr<transport::Transport> tcp_;
  // An error: not to be used, and why.
  const Result<std::unique_ptr<transport::Transport>> shm_;
  Result<std::unique_ptr<transport::Transport>> rdma_;
  Mutex mutex_;
  std::set<std::string> fallbacks_ BPS_GUARDED_BY(mutex_);  // nodes that are reached by TCP instead
};

}  // namespace byteps::node
