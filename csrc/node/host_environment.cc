#include <unistd.h>

#include <atomic>
#include <random>
#include <utility>

#include "base/log.h"
#include "node/environment.h"
#include "node/host.h"
#include "transport/epoll_loop.h"
#include "worker/completion_thread.h"

namespace byteps::node {
namespace {

std::atomic<bool> log_is_named = false;

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
  Transports open_transports(const NodeConfig& config, const std::string& ip,
                             std::shared_ptr<transport::SharedPool> shared_pool) override {
    return node::open_transports(config, ip, std::move(shared_pool));
  }
  std::unique_ptr<transport::Transport> make_tcp(const NodeConfig& config) override {
    return node::make_tcp(config);
  }
  std::unique_ptr<transport::Transport> make_control_tcp(const NodeConfig& config) override {
    return node::make_control_tcp(config);
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
  bool has_gpu() override { return node::has_gpu(); }
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
