#include "node/routes.h"

#include <algorithm>
#include <utility>

#include "node/rdma.h"
#include "protocol/plan.h"
#include "transport/rdma/rdma_transport.h"
#include "transport/shm/shm_transport.h"
#include "transport/tcp/tcp_transport.h"

namespace byteps::node {
namespace {

std::unique_ptr<transport::Transport> make_tcp(const NodeConfig& config) {
  transport::TcpOptions options;
  options.credentials = {config.secret, config.job_id, config.loopback_only};
  options.handshake_timeout_s = config.timeout_s;
  return transport::make_tcp_transport(std::move(options));
}

// The error says why ranks of this machine have to use TCP.
Result<std::unique_ptr<transport::Transport>> make_shm(const NodeConfig& config) {
  if (config.role != "worker") return unimplemented("for workers only");
  if (!config.shm) return unimplemented("BYTEPS_SHM is 0");
  transport::ShmOptions options;
  options.stream.credentials = {config.secret, config.job_id, config.loopback_only};
  options.stream.handshake_timeout_s = config.timeout_s;
  const auto configured_bytes = static_cast<size_t>(config.partition_bytes);
  const size_t partition_bytes =
      config.autotune ? std::max<size_t>(configured_bytes, protocol::kMaxScaledBytes) : configured_bytes;
  options.lend_bytes = std::max(options.lend_bytes, 2 * partition_bytes);
  auto shm = transport::make_shm_transport(std::move(options));
  BPS_RETURN_IF_ERROR(shm->viable());
  return shm;
}

}  // namespace

Routes::Routes(const NodeConfig& config)
    : wants_shm_(config.shm),
      demands_rdma_(config.transport == "rdma"),
      timeout_us_(seconds_to_us(config.timeout_s)),
      tcp_(make_tcp(config)),
      shm_(make_shm(config)),
      rdma_(unimplemented("not opened")) {}

Status Routes::open_rdma(const NodeConfig& config, const std::string& ip) {
  rdma_ = make_rdma(config, ip);
  if (rdma_) return Status::ok();
  if (demands_rdma_) return rdma_.status().with_context("BYTEPS_TRANSPORT is rdma");
  if (rdma_.status().code() == StatusCode::kUnimplemented) {
    BPS_LOG(kInfo) << "no RDMA: " << rdma_.status().message();
  } else {
    BPS_LOG(kWarning) << "no RDMA, TCP instead: " << rdma_.status().message();
  }
  return Status::ok();
}

Result<std::vector<std::string>> Routes::listen_locally(summation::Service& service) {
  if (!shm_) return std::vector<std::string>{};
  return service.listen(**shm_, {"@", 0});
}

Result<std::vector<std::string>> Routes::listen_by_rdma(summation::Service& service, const std::string& ip) {
  if (!rdma_) return std::vector<std::string>{};
  return service.listen(**rdma_, {ip, 0});
}

transport::rdma::RegistrationCounts Routes::rdma_counts() const {
  if (!rdma_) return {};
  return transport::registration_counts(**rdma_);
}

// Never uses a network card within a machine: the payload would cross the card twice.
void Routes::connect(transport::EventLoop& loop, const protocol::NodeInfo& self,
                     const protocol::NodeInfo& node, size_t shard, transport::ConnectCallback done) {
  const bool is_near = node.machine == self.machine;
  if (is_near && node.role == protocol::Role::kWorker) {
    const auto level = wants_shm_ ? log::Level::kWarning : log::Level::kInfo;
    const TransportCandidate shm{"shared memory", shm_, node.local_addresses, level, false};
    connect_or_fall_back(loop, shm, node, shard, std::move(done));
  } else if (is_near || (!rdma_ && node.rdma_addresses.empty())) {
    connect_to(*tcp_, loop, node.addresses[shard], std::move(done));
  } else {
    // The side without RDMA has logged it already.
    const auto level = rdma_ ? log::Level::kWarning : log::Level::kInfo;
    const TransportCandidate rdma{"RDMA", rdma_, node.rdma_addresses, level, demands_rdma_};
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
    connect_to(*tcp_, loop, node.addresses[shard], std::move(then));
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
