// Chooses the transport to the service of each other node: shared memory on the same machine; RDMA
// between machines if both ends have it; otherwise TCP.
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
#include "node/environment.h"
#include "protocol/message.h"
#include "summation/service.h"
#include "transport/rdma/registrations.h"
#include "transport/transport.h"

namespace byteps::node {

// All methods: any thread. Must outlive the connections and listeners made through it.
class Routes {
 public:
  // Fails only if RDMA is required (BYTEPS_TRANSPORT=rdma) and cannot be used; otherwise logs why
  // there is none.
  static Result<std::unique_ptr<Routes>> open(const NodeConfig& config, Transports transports);

  transport::Transport& tcp() { return *transports_.tcp; }
  // Lets `service` listen for shared memory; returns its addresses, one per shard. Empty: this
  // process does not use shared memory.
  Result<std::vector<std::string>> listen_locally(summation::Service& service);
  // The same over RDMA.
  Result<std::vector<std::string>> listen_by_rdma(summation::Service& service, const std::string& ip);

  // Counts of the memory that this process has registered with network cards.
  transport::rdma::RegistrationCounts rdma_counts() const;

  // Connects to a shard of the service of `node`, which must live until `done` is called. Falls
  // back to TCP if the best transport for the two nodes fails, unless RDMA is required; logs the
  // reason once per node.
  void connect(transport::EventLoop& loop, const protocol::NodeInfo& self, const protocol::NodeInfo& node,
               size_t shard, transport::ConnectCallback done);

 private:
  Routes(const NodeConfig& config, Transports transports);

  // A transport that is better than TCP.
  struct TransportCandidate {
    const char* name;  // for messages
    const Result<std::unique_ptr<transport::Transport>>& transport;
    const std::vector<std::string>& addresses;  // one per shard of the other node
    log::Level level;                           // level of the log line about a fallback
    bool demanded;
  };

  void connect_to(transport::Transport& transport, transport::EventLoop& loop, const std::string& address,
                  transport::ConnectCallback done) const;
  // Connects by the candidate; falls back to TCP if it cannot be used or fails.
  void connect_or_fall_back(transport::EventLoop& loop, const TransportCandidate& way,
                            const protocol::NodeInfo& node, size_t shard, transport::ConnectCallback done);
  void log_fallback(const TransportCandidate& way, const protocol::NodeInfo& node, const Status& why);

  const bool wants_shm_;
  const bool demands_rdma_;
  const TimeUs timeout_us_;
  const Transports transports_;
  Mutex mutex_;
  std::set<std::string> fallbacks_ BPS_GUARDED_BY(mutex_);  // nodes whose fallback has been logged
};

}  // namespace byteps::node
