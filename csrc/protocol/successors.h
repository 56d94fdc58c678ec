// Which node sums the partitions of a server that is lost. Pure.
//
// The successor of a root is the same on all nodes, whenever they hear of a loss and of however
// many: it depends on the key, on the weights that the scheduler has sent with the news of the
// root's loss, and on which of the hosts with a weight are lost. A later loss moves only the keys
// of the server that is lost then (rendezvous hashing). Each reducer host has points in proportion
// to its weight; the living host with the point of the largest hash wins. Servers that come after a
// loss have no weight for it.
//
// Successors bridge the time until the next placement, which the scheduler makes without the lost
// server (protocol/tensor_directory.h). The weights are those of successor_weights(), so that
// meanwhile all hosts have about the shares of that placement.
//
// Source: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", IEEE/ACM
// Transactions on Networking 6, 1998.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "protocol/message.h"
#include "protocol/tree.h"

namespace byteps::protocol {

// In parts per billion. What each host's share grows by when a server is lost, and if none grows,
// the shares: the shares of the lost server, distributed so, make `after` of `before`.
std::vector<uint32_t> successor_weights(const std::vector<double>& before, const std::vector<double>& after);

class Successors {
 public:
  explicit Successors(Tree tree) : tree_(std::move(tree)) {}

  // `weights_ppb`: Removed::weights_ppb. Living hosts without a weight are successors only if all
  // hosts with one are lost. Precondition: `server` is the number of a server that is not lost.
  void lose(uint32_t server, const std::vector<uint32_t>& weights_ppb);
  // A server has come.
  void add(const NodeInfo& server) { tree_.add(server); }
  bool is_lost(uint32_t node) const { return points_.contains(node); }
  // The node that sums the partition instead of `head.root_node`, or that node if it is not lost.
  uint32_t root(const DataHead& head) const;

 private:
  Tree tree_;
  std::map<uint32_t, std::vector<uint32_t>> points_;  // by lost server; of each reducer host then
};

}  // namespace byteps::protocol
