#include "node/routes.h"

#include <utility>

#include "transport/rdma/rdma_transport.h"

namespace byteps::node {

Routes::Routes(const NodeConfig& config, Transports transports)
    : wants_shm_(config.shm),
      demands_rdma_(config.transport == "rdma"),
      timeout_us_(seconds_to_us(config.timeout_s)),
      transports_(std::move(transports)) {}

Result<std::unique_ptr<Routes>> Routes::open(const NodeConfig& config, Transports transports) {
  std::unique_ptr<Routes> routes(new Routes(config, std::move(transports)));
  const Status no_rdma = routes->transports_.rdma.status();
  if (no_rdma.is_ok() || config.role == "scheduler") return routes;
  if (routes->demands_rdma_) return no_rdma.with_context("BYTEPS_TRANSPORT is rdma");
  if (no_rdma.code() == StatusCode::kUnimplemented) {
    BPS_LOG(kInfo) << "no RDMA: " << no_rdma.message();
  } else {
    BPS_LOG(kWarning) << "no RDMA, TCP instead: " << no_rdma.message();
  }
  return routes;
}

Result<std::vector<std::string>> Routes::listen_locally(summation::Service& service) {
  if (!transports_.shm) return std::vector<std::string>{};
  return service.listen(**transports_.shm, {"@", 0});
}

Result<std::vector<std::string>> Routes::listen_by_rdma(summation::Service& service, const std::string& ip) {
  if (!transports_.rdma) return std::vector<std::string>{};
  return service.listen(**transports_.rdma, {ip, 0});
}

transport::rdma::RegistrationCounts Routes::rdma_counts() const {
  if (!transports_.rdma) return {};
  return transport::registration_counts(**transports_.rdma);
}

// Never uses a network card within a machine: the payload would cross the card twice.
void Routes::connect(transport::EventLoop& loop, const protocol::NodeInfo& self,
                     const protocol::NodeInfo& node, size_t shard, transport::ConnectCallback done) {
  const bool is_near = node.machine == self.machine;
  if (is_near && node.role == protocol::Role::kWorker) {
    const auto level = wants_shm_ ? log::Level::kWarning : log::Level::kInfo;
    const TransportCandidate shm{"shared memory", transports_.shm, node.local_addresses, level, false};
    connect_or_fall_back(loop, shm, node, shard, std::move(done));
  } else if (is_near || (!transports_.rdma && node.rdma_addresses.empty())) {
    connect_to(*transports_.tcp, loop, node.addresses[shard], std::move(done));
  } else {
    // The side without RDMA has logged it already.
    const auto level = transports_.rdma ? log::Level::kWarning : log::Level::kInfo;
    const TransportCandidate rdma{"RDMA", transports_.rdma, node.rdma_addresses, level, demands_rdma_};
    connect_or_fall_back(loop, rdma, node, shard, std::move(done));
  }
}

void Routes::connect_or_fall_back(transport::EventLoop& loop, const TransportCandidate& way,
                                  const protocol::NodeInfo& node, size_t shard,
                                  transport::ConnectCallback done) {
  const auto fall_back = [this, &loop, way, &node, shard](const Status& why,
                                                          transport::ConnectCallback& then) {
    if (way.demanded) return then(why.with_context(std::string(way.name) + " with " + node.describe()));
    log_fallback(way, node, why);
    connect_to(*transports_.tcp, loop, node.addresses[shard], std::move(then));
  };
  if (!way.transport) return fall_back(way.transport.status(), done);
  if (shard >= way.addresses.size()) {
    return fall_back(unimplemented("it offers none; its own log may say why"), done);
  }
  connect_to(**way.transport, loop, way.addresses[shard],
             [fall_back, done = std::move(done)](auto connection) mutable {
               connection ? done(std::move(connection)) : fall_back(connection.status(), done);
             });
}

void Routes::connect_to(transport::Transport& transport, transport::EventLoop& loop,
                        const std::string& address, transport::ConnectCallback done) const {
  auto parsed = transport::parse_address(address);
  if (!parsed) return done(parsed.status());
  transport.connect(loop, *parsed, loop.now_us() + timeout_us_, std::move(done));
}

void Routes::log_fallback(const TransportCandidate& way, const protocol::NodeInfo& node, const Status& why) {
  {
    MutexLock lock(mutex_);
    if (!fallbacks_.insert(node.describe()).second) return;
  }
  const std::string text =
      std::string("no ") + way.name + " with " + node.describe() + ", TCP instead: " + why.message();
  if (way.level == log::Level::kWarning) {
    BPS_LOG(kWarning) << text;
  } else {
    BPS_LOG(kInfo) << text;
  }
}

}  // namespace byteps::node
