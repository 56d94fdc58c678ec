// Which node sums the partitions of a server that is lost. Pure.
//
// The successor of a root is the same on all nodes, whenever they hear of a loss and of however
// many: it depends on the key and on which servers are lost, and a later loss moves only the keys
// of the server that is lost then (rendezvous hashing). Each living reducer host has points in
// proportion to its share at the start of the job, a server that has come as many as the largest
// share; the host with the point of the largest hash wins.
//
// Successors bridge the time until the next placement, which the scheduler makes without the lost
// server (protocol/tensor_directory.h).
//
// Source: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", IEEE/ACM
// Transactions on Networking 6, 1998.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "protocol/message.h"
#include "protocol/tree.h"

namespace byteps::protocol {

class Successors {
 public:
  // `shares_ppb`: Roster::shares_ppb, by reducer host. Hosts without a share are successors only if
  // all hosts with one are lost.
  Successors(Tree tree, const std::vector<uint32_t>& shares_ppb);

  // Precondition: `server` is the number of a server that is not lost.
  void lose(uint32_t server);
  // A server has come. It succeeds only those that are lost after that: all nodes hear of both in
  // the same order.
  void add(const NodeInfo& server);
  bool is_lost(uint32_t node) const;
  // The node that sums the partition instead of `head.root_node`, or that node if it is not lost.
  uint32_t root(const DataHead& head) const;

 private:
  Tree tree_;
  std::vector<uint32_t> points_;              // by reducer host
  std::map<uint32_t, size_t> hosts_at_loss_;  // by lost server: the number of reducer hosts then
};

}  // namespace byteps::protocol
