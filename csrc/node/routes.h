// Chooses the transport to the service of each other node: the best one (node/transports.h) that
// reaches it and that both ends have.
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

  // Lets `service` listen by all transports of this process; returns the addresses.
  Result<std::vector<protocol::Endpoint>> listen(summation::Service& service);

  // Counts of the memory that this process has registered with network cards.
  transport::rdma::RegistrationCounts rdma_counts() const;

  // Connects to a shard of the service of `node`, which must live until `done` is called. If the
  // best transport for the two fails and is not required, logs that once per node, and takes the
  // next one.
  void connect(transport::EventLoop& loop, const protocol::NodeInfo& self, const protocol::NodeInfo& node,
               size_t shard, transport::ConnectCallback done);

 private:
  Routes(const NodeConfig& config, Transports transports);

  // What connect() has to do.
  struct Request {
    transport::EventLoop& loop;
    const protocol::NodeInfo& self;
    const protocol::NodeInfo& node;
    size_t shard;
    transport::ConnectCallback done;
  };
  // Connects by transports_[index] or a later one.
  void connect_from(size_t index, Request request);
  void fall_back(size_t index, Request request, const Status& why);
  void connect_by(size_t index, const std::string& address, Request request);
  void log_fallback(const OpenTransport& from, const protocol::NodeInfo& node, const Status& why);

  const TimeUs timeout_us_;
  const Transports transports_;
  Mutex mutex_;
  std::set<std::string> fallbacks_ BPS_GUARDED_BY(mutex_);  // nodes whose fallback has been logged
};

}  // namespace byteps::node
