#include "node/transports.h"

#include <algorithm>
#include <random>
#include <utility>

#include "node/rdma.h"
#include "protocol/plan.h"
#include "transport/resume/resuming_transport.h"
#include "transport/shm/shm_transport.h"
#include "transport/tcp/tcp_transport.h"

namespace byteps::node {
namespace {

using Opened = Result<std::unique_ptr<transport::Transport>>;

transport::StreamOptions stream_options(const NodeConfig& config) {
  transport::StreamOptions options;
  options.credentials = {config.secret, config.job_id, config.loopback_only};
  options.handshake_timeout_s = config.timeout_s;
  return options;
}

OpenTransport open_shm(const NodeConfig& config, std::shared_ptr<transport::SharedPool> pool) {
  const auto open = [&]() -> Opened {
    if (config.role != "worker") return unimplemented("for workers only");
    if (!config.shm) return unimplemented("BYTEPS_SHM is 0");
    transport::ShmOptions options;
    options.stream = stream_options(config);
    const auto configured_bytes = static_cast<size_t>(config.partition_bytes);
    const size_t partition_bytes =
        config.autotune ? std::max<size_t>(configured_bytes, protocol::kMaxScaledBytes) : configured_bytes;
    options.arena_bytes = std::max(options.arena_bytes, 2 * partition_bytes);
    options.pool = std::move(pool);
    auto shm = transport::make_shm_transport(std::move(options));
    BPS_RETURN_IF_ERROR(shm->viable());
    return shm;
  };
  return {.name = "shm",
          .title = "shared memory",
          .reach = Reach::kWorkersOfOneMachine,
          .listen_ip = "@",
          .is_expected = true,
          .absence_level = config.shm ? log::Level::kWarning : log::Level::kInfo,
          .transport = open()};
}

std::unique_ptr<transport::Transport> make_resuming_tcp(const NodeConfig& config) {
  std::random_device random;
  return transport::make_resuming_transport(
      make_tcp(config), {.nonce = uint64_t{random()} << 32 | random(), .limit_us = resume_limit_us(config)});
}

OpenTransport open_rdma(const NodeConfig& config, const std::string& ip) {
  return {.name = "rdma",
          .title = "RDMA",
          .reach = Reach::kBetweenMachines,
          .listen_ip = ip,
          .is_required = config.transport == "rdma",
          .transport = ip.empty() ? Opened(unimplemented("not opened"))
                                  : make_rdma(config, ip, make_resuming_tcp(config))};
}

OpenTransport open_tcp(const NodeConfig& config, const std::string& ip) {
  return {.name = "tcp", .title = "TCP", .listen_ip = ip, .transport = make_resuming_tcp(config)};
}

}  // namespace

std::unique_ptr<transport::Transport> make_tcp(const NodeConfig& config) {
  return transport::make_tcp_transport(stream_options(config));
}

std::unique_ptr<transport::Transport> make_control_tcp(const NodeConfig& config) {
  return make_resuming_tcp(config);
}

TimeUs resume_limit_us(const NodeConfig& config) { return 3 * seconds_to_us(config.timeout_s) / 4; }

// Best first. A new transport is a folder in csrc/transport/ and a row here.
Transports open_transports(const NodeConfig& config, const std::string& ip,
                           std::shared_ptr<transport::SharedPool> shared_pool) {
  Transports transports;
  transports.push_back(open_shm(config, std::move(shared_pool)));
  transports.push_back(open_rdma(config, ip));
  transports.push_back(open_tcp(config, ip));
  return transports;
}

}  // namespace byteps::node
