// Facts about this machine that a process tells the other nodes. All functions: any thread.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/config.h"
#include "base/event_flag.h"
#include "base/status.h"
#include "transport/address.h"

namespace byteps::node {

std::string host_name();

// A text that is equal in all processes that can share memory by transport/shm: same boot of the
// same kernel, same network namespace (abstract names of Unix sockets belong to one).
std::string machine_id();

// Number of cores that this process may run on.
int usable_cores();

// Whether this process sees the driver of an NVIDIA GPU. Does not load it.
bool has_gpu();

// Resolves config.scheduler_host. Blocks: retries until `deadline_us` while the name is unknown,
// because the records of hosts that start together may appear late, and logs the wait.
// kUnavailable: not resolved; kAborted: interrupted.
Result<std::vector<transport::Address>> await_scheduler_host(const NodeConfig& config, TimeUs deadline_us,
                                                             const KeepWaiting& keep_waiting);

// The address that this process gives to other nodes: config.node_host, else the address of
// config.interface, else the address from which this machine reaches the scheduler (`scheduler`:
// its addresses). Never the loopback address that /etc/hosts may give to this machine's own name.
Result<std::string> own_address(const NodeConfig& config, const std::vector<transport::Address>& scheduler);

// Speed of this process's network card in each direction, in Mbit/s: config.nic_mbps, else the
// kernel's value for the interface that has `own_ip`. 0: unknown.
double nic_mbps(const NodeConfig& config, const std::string& own_ip);

// The kernel's speed of an interface, in Mbit/s: the interface's own value if it is hardware; the
// value of the interface below it if there is exactly one (VLANs); the kernel's sum for a bond of
// hardware. 0: unknown. The values of other virtual interfaces mean nothing: veth pairs always
// report 10000. `net`: a folder with the layout of /sys/class/net.
double kernel_mbps(const std::string& interface, const std::string& net = "/sys/class/net");

// The address on which a scheduler in this process listens, so that config.scheduler_host reaches
// it. "0.0.0.0" (all addresses) if the name resolves to an address that this machine does not have.
Result<std::string> scheduler_bind_address(const NodeConfig& config,
                                           const std::vector<transport::Address>& scheduler);

}  // namespace byteps::node
