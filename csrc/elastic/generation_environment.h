// The environment of a node that is one generation of an elastic member: that of the process, but
// for the ends of push_pulls, which the member handles on the thread where they happen.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "node/environment.h"

namespace byteps::elastic {

// Calls back at once, on the thread of the post.
class ImmediateCompletions final : public worker::Completions {
 public:
  void post(worker::OnDone on_done, Status status) override { on_done(status); }
  void close() override {}
};

class GenerationEnvironment final : public node::Environment {
 public:
  explicit GenerationEnvironment(std::unique_ptr<node::Environment> process) : process_(std::move(process)) {}

  std::unique_ptr<worker::Completions> make_completions() override {
    return std::make_unique<ImmediateCompletions>();
  }
  void on_named(const std::string&) override {}  // ranks of generations are not those of the program

  Result<std::unique_ptr<transport::EventLoop>> make_loop(
      const std::string& name, UniqueFunction<void(const Status&)> on_out_of_memory) override {
    return process_->make_loop(name, std::move(on_out_of_memory));
  }
  node::Transports open_transports(const NodeConfig& config, const std::string& ip,
                                   std::shared_ptr<transport::SharedPool> shared_pool) override {
    return process_->open_transports(config, ip, std::move(shared_pool));
  }
  std::unique_ptr<transport::Transport> make_tcp(const NodeConfig& config) override {
    return process_->make_tcp(config);
  }
  std::unique_ptr<transport::Transport> make_control_tcp(const NodeConfig& config) override {
    return process_->make_control_tcp(config);
  }
  std::string host_name() override { return process_->host_name(); }
  std::string machine_id() override { return process_->machine_id(); }
  int usable_cores() override { return process_->usable_cores(); }
  Result<std::string> own_address(const NodeConfig& config,
                                  const std::vector<transport::Address>& scheduler) override {
    return process_->own_address(config, scheduler);
  }
  Result<std::string> scheduler_bind_address(const NodeConfig& config,
                                             const std::vector<transport::Address>& scheduler) override {
    return process_->scheduler_bind_address(config, scheduler);
  }
  bool has_gpu() override { return process_->has_gpu(); }
  double nic_mbps(const NodeConfig& config, const std::string& own_ip) override {
    return process_->nic_mbps(config, own_ip);
  }
  uint64_t process_id() override { return process_->process_id(); }
  protocol::NameLimits name_limits() override { return process_->name_limits(); }
  TimeUs long_path_us() override { return process_->long_path_us(); }
  uint32_t random_number() override { return process_->random_number(); }

 private:
  const std::unique_ptr<node::Environment> process_;
};

}  // namespace byteps::elastic
