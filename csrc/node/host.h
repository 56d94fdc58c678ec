// What this process tells others of the machine it runs on.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/config.h"
#include "base/status.h"
#include "node/waiting.h"
#include "transport/address.h"

namespace byteps::node {

std::string host_name();

// Equal on all processes that can share memory as transport/shm does: same boot of the same kernel, same network
// namespace (which Unix sockets with abstract names belong to).
std::string machine_id();

// Cores that this process may run on.
int usable_cores();

// What config.scheduler_host stands for. A name that means nothing yet is looked up again and again until
// `deadline_us`, as records of hosts that start together come late; what is waited for is logged. kUnavailable, kAborted.
Result<std::vector<transport::Address>> await_scheduler_host(const NodeConfig& config, TimeUs deadline_us,
                                                             const KeepWaiting& keep_waiting);

// The address that this process hands out: config.node_host, else that of config.interface, else the one this
// machine uses to reach the scheduler, whose host stands for `scheduler`. Never a loopback address that /etc/hosts gives
// to this machine's own name, which other machines could not reach.
Result<std::string> own_address(const NodeConfig& config, const std::vector<transport::Address>& scheduler);

// Speed of this process's network card per direction, in Mbit/s: config.nic_mbps, else what the kernel says of the
// interface that carries `own_ip`. 0: unknown.
double nic_mbps(const NodeConfig& config, const std::string& own_ip);

// What the kernel says of an interface, if it has hardware to ask: an interface of hardware's own number; that of the
// interface below where there is one (VLANs); of bonds of hardware the kernel's sum. 0: unknown. The number of another
// virtual interface means nothing: veth pairs say 10000 whatever is behind them.
// `net`: as /sys/class/net is.
double kernel_mbps(const std::string& interface, const std::string& net = "/sys/class/net");

// What a scheduler in this process listens on, so that config.scheduler_host reaches it: that address, or all
// addresses ("0.0.0.0") where the name leads to an address this machine does not carry itself.
Result<std::string> scheduler_bind_address(const NodeConfig& config,
                                           const std::vector<transport::Address>& scheduler);

}  // namespace byteps::node
