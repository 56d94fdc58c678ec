#include "node/host_environment.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <utility>

#include "base/log.h"
#include "node/host.h"
#include "node/rdma.h"
#include "protocol/plan.h"
#include "transport/epoll_loop.h"
#include "transport/shm/shm_transport.h"
#include "transport/tcp/tcp_transport.h"
#include "worker/completion_thread.h"

namespace byteps::node {
namespace {

std::atomic<bool> log_is_named = false;

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

class HostEnvironment final : public Environment {
 public:
  HostEnvironment() : names_log_(!log_is_named.exchange(true)) {}
  ~HostEnvironment() override {
    if (names_log_) log_is_named = false;
  }

  Result<std::unique_ptr<transport::EventLoop>> make_loop(
      const std::string& name, UniqueFunction<void(const Status&)> on_out_of_memory) override {
    auto loop = transport::EpollLoop::create(name, std::move(on_out_of_memory));
    if (!loop) return loop.status();
    return Result<std::unique_ptr<transport::EventLoop>>(std::move(*loop));
  }
  Transports open_transports(const NodeConfig& config, const std::string& ip) override {
    using Opened = Result<std::unique_ptr<transport::Transport>>;
    return {make_tcp(config), make_shm(config),
            ip.empty() ? Opened(unimplemented("not opened")) : make_rdma(config, ip)};
  }
  std::unique_ptr<worker::Completions> make_completions() override {
    return std::make_unique<worker::CompletionThread>();
  }
  std::string host_name() override { return node::host_name(); }
  std::string machine_id() override { return node::machine_id(); }
  int usable_cores() override { return node::usable_cores(); }
  Result<std::string> own_address(const NodeConfig& config,
                                  const std::vector<transport::Address>& scheduler) override {
    return node::own_address(config, scheduler);
  }
  Result<std::string> scheduler_bind_address(const NodeConfig& config,
                                             const std::vector<transport::Address>& scheduler) override {
    return node::scheduler_bind_address(config, scheduler);
  }
  double nic_mbps(const NodeConfig& config, const std::string& own_ip) override {
    return node::nic_mbps(config, own_ip);
  }
  uint64_t process_id() override { return static_cast<uint64_t>(getpid()); }
  uint32_t random_number() override { return std::random_device{}(); }
  void on_named(const std::string& name) override {
    if (names_log_) log::set_prefix(name);
  }

 private:
  const bool names_log_;
};

}  // namespace

std::unique_ptr<Environment> make_host_environment() { return std::make_unique<HostEnvironment>(); }

}  // namespace byteps::node
