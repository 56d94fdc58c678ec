#include "sim/scale_bound.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "protocol/pacing.h"

namespace byteps::sim {
namespace {

using protocol::ReducerHost;

uint32_t count_machines(const std::vector<ReducerHost>& reducer_hosts) {
  return static_cast<uint32_t>(std::ranges::count(reducer_hosts, false, &ReducerHost::is_server));
}

// As they join a job: ranks machine by machine, then servers.
std::vector<protocol::NodeInfo> nodes_of(const ScaleOptions& options) {
  std::vector<protocol::NodeInfo> nodes;
  for (size_t host = 0; host < options.reducer_hosts.size(); ++host) {
    const ReducerHost& reducer_host = options.reducer_hosts[host];
    protocol::NodeInfo node;
    node.role = reducer_host.is_server ? protocol::Role::kServer : protocol::Role::kWorker;
    node.machine = std::to_string(host);
    node.nic_mbps = static_cast<uint32_t>(std::max(1.0, std::round(reducer_host.nic_mbps)));
    const uint32_t useful = protocol::useful_shards(reducer_host.nic_mbps);
    node.endpoints = {{"tcp", std::vector<std::string>(std::min(options.threads, useful))}};
    nodes.insert(nodes.end(), reducer_host.is_server ? 1 : options.ranks_per_machine, node);
  }
  return nodes;
}

// The speeds of what the cards carry of tensors.
std::vector<ReducerHost> payload_of(std::vector<ReducerHost> reducer_hosts) {
  for (ReducerHost& each : reducer_hosts)
    each.nic_mbps = protocol::payload_bytes_per_s(each.nic_mbps) * 8 / 1e6;
  return reducer_hosts;
}

}  // namespace

Status check_cluster(const ScaleOptions& options) {
  const uint64_t machines = count_machines(options.reducer_hosts);
  const uint64_t servers = options.reducer_hosts.size() - machines;
  if (machines * options.ranks_per_machine + servers > protocol::kMaxNodes) {
    return invalid_argument("a job has at most " + std::to_string(protocol::kMaxNodes) + " processes, not " +
                            std::to_string(machines) + " machines of " +
                            std::to_string(options.ranks_per_machine) + " and " + std::to_string(servers) +
                            " servers");
  }
  for (size_t i = 0; i < options.reducer_hosts.size(); ++i) {
    if (options.reducer_hosts[i].nic_mbps > 0) continue;
    return invalid_argument("simulation: reducer_host " + std::to_string(i) +
                            ": expected the speed of its card, got " +
                            std::to_string(options.reducer_hosts[i].nic_mbps) + " Mbit/s");
  }
  return Status::ok();
}

protocol::Tree tree_of(const ScaleOptions& options) {
  return {nodes_of(options), count_machines(options.reducer_hosts) * options.ranks_per_machine};
}

double bound_of(const ScaleOptions& options, const protocol::Tree& tree, const std::vector<double>& shares,
                uint64_t bytes) {
  const double ranks = options.ranks_per_machine;
  const double machines = tree.num_machines();
  const auto all = static_cast<double>(bytes);
  double longest = protocol::predicted_seconds(payload_of(tree.reducer_hosts()), shares, bytes);
  const auto consider = [&](double summed_bytes, double threads) {
    longest = std::max(longest, summed_bytes / threads / options.sum_bytes_per_s);
  };
  // Contributions of the ranks are read once to be summed, and results written to each rank.
  if (ranks > 1) consider(2 * ranks * all, ranks * tree.num_shards(0));
  for (uint32_t host = 0; machines > 1 && host < shares.size(); ++host) {
    const bool is_server = host >= tree.num_machines();
    const uint32_t node =
        is_server ? tree.num_workers() + host - tree.num_machines() : tree.ranks_of(host).front();
    // A thread sums for each connection that leads to it from one machine.
    consider(machines * shares[host] * all, tree.num_connections(node, node));
  }
  return longest;
}

Result<double> bound_seconds(const ScaleOptions& options, uint64_t bytes) {
  BPS_RETURN_IF_ERROR(check_cluster(options));
  const protocol::Tree tree = tree_of(options);
  const auto shares = protocol::reducer_host_shares(tree.reducer_hosts(), options.placement);
  if (!shares) return shares.status();
  return bound_of(options, tree, *shares, bytes);
}

}  // namespace byteps::sim
