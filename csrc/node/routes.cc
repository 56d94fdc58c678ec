#include "node/routes.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "protocol/plan.h"
#include "transport/shm/shm_transport.h"
#include "transport/tcp/tcp_transport.h"

namespace byteps::node {
namespace {

std::unique_ptr<transport::Transport> make_tcp(const NodeConfig& config) {
  transport::TcpOptions options;
  options.credentials = {config.secret, config.job_id};
  return transport::make_tcp_transport(std::move(options));
}

// Else why ranks of this machine have to use TCP.
Result<std::unique_ptr<transport::Transport>> make_shm(const NodeConfig& config) {
  if (config.role != "worker") return unimplemented("for workers only");
  if (!config.shm) return unimplemented("BYTEPS_SHM is 0");
  transport::ShmOptions options;
  options.stream.credentials = {config.secret, config.job_id};
  const auto configured_bytes = static_cast<size_t>(config.partition_bytes);
  const size_t partition_bytes =
      config.autotune ? std::max<size_t>(configured_bytes, protocol::kMostCutBytes) : configured_bytes;
  options.lend_bytes = std::max(options.lend_bytes, 2 * partition_bytes);
  auto shm = transport::make_shm_transport(std::move(options));
  BPS_RETURN_IF_ERROR(shm->viable());
  return shm;
}

}  // namespace

Routes::Routes(const NodeConfig& config)
    : wants_shm_(config.shm),
      timeout_us_(seconds_to_us(config.timeout_s)),
      tcp_(make_tcp(config)),
      shm_(make_shm(config)) {}

Result<std::vector<std::string>> Routes::listen_locally(summation::Service& service) {
  if (!shm_) return std::vector<std::string>{};
  return service.listen(**shm_, {"@", 0});
}

void Routes::connect(transport::EventLoop& loop, const protocol::NodeInfo& self,
                     const protocol::NodeInfo& node, size_t shard, transport::ConnectCallback done) {
  const bool is_together = node.role == protocol::Role::kWorker && node.machine == self.machine;
  if (!is_together) return connect_to(*tcp_, loop, node.addresses[shard], std::move(done));
  if (const Status may = may_share_memory(node, shard); !may) {
    tell_detour(node, may);
    return connect_to(*tcp_, loop, node.addresses[shard], std::move(done));
  }
  connect_to(**shm_, loop, node.local_addresses[shard],
             [this, &loop, &node, shard, done = std::move(done)](auto connection) mutable {
               if (connection) return done(std::move(connection));
               tell_detour(node, connection.status());
               connect_to(*tcp_, loop, node.addresses[shard], std::move(done));
             });
}

void Routes::connect_to(transport::Transport& transport, transport::EventLoop& loop,
                        const std::string& address, transport::ConnectCallback done) const {
  auto parsed = transport::parse_address(address);
  if (!parsed) return done(parsed.status());
  transport.connect(loop, *parsed, now_us() + timeout_us_, std::move(done));
}

Status Routes::may_share_memory(const protocol::NodeInfo& node, size_t shard) const {
  if (!shm_) return shm_.status();
  if (shard < node.local_addresses.size()) return Status::ok();
  return unimplemented("it offers none; its own log may say why");
}

void Routes::tell_detour(const protocol::NodeInfo& node, const Status& why) {
  {
    MutexLock lock(mutex_);
    if (!detours_.insert(node.rank).second) return;
  }
  const std::string text = "no shared memory with " + node.describe() + ", TCP instead: " + why.message();
  if (wants_shm_) {
    BPS_LOG(kWarning) << text;
  } else {
    BPS_LOG(kInfo) << text;  // as asked for
  }
}

}  // namespace byteps::node
