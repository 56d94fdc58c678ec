// Everything that a node takes from outside its job: event loops, transports, facts of the host,
// random numbers, and the thread that runs callbacks. A process has that of
// make_host_environment(); the simulator has one in virtual time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/status.h"
#include "base/unique_function.h"
#include "node/transports.h"
#include "protocol/nic_survey.h"
#include "transport/address.h"
#include "transport/event_loop.h"
#include "worker/handle_table.h"

namespace byteps::node {

// All methods: any thread.
class Environment {
 public:
  virtual ~Environment() = default;

  // `on_out_of_memory` is called on the loop if it is out of memory and cannot go on.
  virtual Result<std::unique_ptr<transport::EventLoop>> make_loop(
      const std::string& name, UniqueFunction<void(const Status&)> on_out_of_memory) = 0;
  // As the function of node/transports.h.
  virtual Transports open_transports(const NodeConfig& config, const std::string& ip,
                                     std::shared_ptr<transport::SharedPool> shared_pool) = 0;
  // As the functions of node/transports.h: to measure network cards, and for the connections to the
  // scheduler.
  virtual std::unique_ptr<transport::Transport> make_tcp(const NodeConfig& config) = 0;
  virtual std::unique_ptr<transport::Transport> make_control_tcp(const NodeConfig& config) = 0;
  // Runs the callbacks of push_pulls.
  virtual std::unique_ptr<worker::Completions> make_completions() = 0;

  // The facts: as the functions of node/host.h.
  virtual std::string host_name() = 0;
  virtual std::string machine_id() = 0;
  virtual int usable_cores() = 0;
  virtual Result<std::string> own_address(const NodeConfig& config,
                                          const std::vector<transport::Address>& scheduler) = 0;
  virtual Result<std::string> scheduler_bind_address(const NodeConfig& config,
                                                     const std::vector<transport::Address>& scheduler) = 0;
  virtual bool has_gpu() { return false; }
  virtual double nic_mbps(const NodeConfig& config, const std::string& own_ip) = 0;
  virtual uint64_t process_id() = 0;

  // When this node forgets names.
  virtual protocol::NameLimits name_limits() { return {}; }
  // Round trips from which on a path is long (protocol/nic_survey.h).
  virtual TimeUs long_path_us() { return protocol::kLongPathUs; }

  virtual uint32_t random_number() = 0;
  // The process is now known as `name` ("r3", "server 1"), for log lines.
  virtual void on_named(const std::string& name) = 0;
};

// The environment of a node in a process of its own: threads, sockets, and the facts of this host.
// The first one of a process names the log; others that exist at the same time do not.
std::unique_ptr<Environment> make_host_environment();

}  // namespace byteps::node
