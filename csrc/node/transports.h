// The transports of a process, and between which processes each is used.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "base/status.h"
#include "transport/shm/shared_pool.h"
#include "transport/transport.h"

namespace byteps::node {

enum class Reach : uint8_t {
  kWorkersOfOneMachine,
  kBetweenMachines,  // the payload would cross a network card twice within a machine
  kEverywhere
};

struct OpenTransport {
  std::string name;   // the same in all processes of a job; sent to the others
  std::string title;  // for messages
  Reach reach = Reach::kEverywhere;
  std::string listen_ip;     // address at which services listen; the port is chosen
  bool is_required = false;  // connections fail instead of using a later transport
  // false: nothing is logged if neither end of a connection has it.
  bool is_expected = false;
  // Level of the log line about a connection for which this process does not have it.
  log::Level absence_level = log::Level::kInfo;
  // The error says why this process does not have it.
  Result<std::unique_ptr<transport::Transport>> transport;
};

// Best first: a connection uses the first one that reaches the other process and that both ends
// have. The last one is TCP, which every process has.
using Transports = std::vector<OpenTransport>;

// The TCP transport of a process; also for `byteps doctor`.
std::unique_ptr<transport::Transport> make_tcp(const NodeConfig& config);
// That of the connections to the scheduler, which survive resets (transport/resume).
std::unique_ptr<transport::Transport> make_control_tcp(const NodeConfig& config);

// How long the end that connects tries to make a connection anew (transport/resume). The other end
// waits 1.25 times as long, which is less than the time after which a silent node is lost.
TimeUs resume_limit_us(const NodeConfig& config);

// The transports of this host, for a process with the address `ip`; empty for a scheduler alone.
// `shared_pool`: memory of shared memory's connections, or null.
Transports open_transports(const NodeConfig& config, const std::string& ip,
                           std::shared_ptr<transport::SharedPool> shared_pool);

}  // namespace byteps::node
