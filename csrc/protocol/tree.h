// The tree of summation services above every partition: which contributions meet where. Pure.
//
//   rank -> [machine service] -> root
//
// On a machine with several ranks, one of its services first sums their contributions in the order
// of the ranks; the root then sums the machines in the order of their first ranks. The shape
// depends only on which ranks share a machine, so a sum is the same bit for bit wherever its root
// is. A RootLocation says which services take part:
//   reducer_host   the host of the root: a worker machine (the process that also serves the
//                  partition there), or a server
//   serving_index  selects the rank that serves the partition on each machine, and the shard
//                  of each service
// In a job of one machine the process that serves the partition sums it alone, unless the root is a
// server.
//
// Servers may be lost and others may come while the job runs: they take the next node numbers. None
// of this changes the shape, or what a RootLocation means.
//
// Stored tensors (protocol/staleness_tracker.h) do not go through a tree: each rank contributes to
// the root directly, because the root has to know the progress of every rank.
//
// Source: two levels of summation: Jiang et al., OSDI 2020, section 4.2.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "protocol/message.h"
#include "protocol/placement.h"

namespace byteps::protocol {

// The children of a summation service at one level.
struct Children {
  std::vector<std::string> describe;  // descriptions for messages, by child
  // Index of the child that contributes for a rank; -1: not below this service.
  std::vector<int32_t> of_rank;
};

// The children of a parameter store: every rank is a child of its own.
Children each_rank(std::vector<std::string> describe_rank);

// Weight of each child in a mean: the number of ranks below it, divided by the greatest common
// divisor of these numbers.
struct Weights {
  std::vector<uint32_t> of_child;
  uint32_t total = 0;
};
Weights weights(const Children& children);

// The service that a node sends a partition to.
struct Parent {
  uint32_t node = 0;
  Level level = Level::kCluster;
  bool operator==(const Parent&) const = default;
};

class Tree {
 public:
  // `nodes` in the order of Roster::nodes.
  Tree(const std::vector<NodeInfo>& nodes, uint32_t num_workers);
  // With the servers that have been lost and that have come since the start.
  explicit Tree(const Roster& roster);

  uint32_t num_workers() const { return static_cast<uint32_t>(machine_of_rank_.size()); }
  uint32_t num_nodes() const { return static_cast<uint32_t>(num_shards_.size()); }
  // Machines that have workers.
  uint32_t num_machines() const { return static_cast<uint32_t>(ranks_.size()); }
  uint32_t num_reducer_hosts() const { return num_machines() + num_nodes() - num_workers(); }
  // Serving indices are smaller than this. Index = shard index * ranks_period_ + rank index.
  uint32_t num_serving_indices() const { return ranks_period_ * shards_period_; }
  uint32_t num_shard_indices() const { return shards_period_; }
  uint32_t num_rank_indices() const { return ranks_period_; }
  // The roots of one reducer host use this many consecutive rank indices and shard indices only.
  // All, unless so many machines have so many connections to it that each gets few and small
  // partitions.
  uint32_t rank_indices_of_host() const { return rank_indices_of_host_; }
  uint32_t shard_indices_of_host() const { return shard_indices_of_host_; }
  // The connections that serve in turn between two nodes and the others of their machines, where
  // the root is at `to`.
  uint32_t num_connections(uint32_t from, uint32_t to) const;
  // Contributions and answers can take turns (protocol/outbox.h) between the workers of two machines
  // that had no servers at the start. Between more machines, or with servers, connections of other
  // peers use the card meanwhile.
  bool can_take_turns() const { return can_take_turns_; }
  // Whether those of the two nodes do.
  bool take_turns(uint32_t one, uint32_t other) const;
  // They do where they can (Roster::takes_turns).
  void let_take_turns() { takes_turns_ = can_take_turns_; }
  // The largest number of connections that serve in turn.
  uint32_t most_connections() const;
  bool has_machine_level() const { return num_machines() < num_workers(); }

  const std::string& describe(uint32_t rank) const { return describe_rank_[rank]; }
  uint32_t machine_of(uint32_t rank) const { return machine_of_rank_[rank]; }
  // Ascending; never empty.
  const std::vector<uint32_t>& ranks_of(uint32_t machine) const { return ranks_[machine]; }
  // The reducer host of a server.
  uint32_t reducer_host_of(uint32_t server) const { return num_machines() + server - num_workers(); }
  // The server is lost: it is marked in reducer_hosts(), and leaves its card to others.
  void lose(uint32_t server);
  // A server has come. Its number is num_nodes().
  void add(const NodeInfo& server);
  // The speeds of all network cards, by node.
  void set_speeds(const std::vector<uint32_t>& nic_mbps);
  // Input of the placement. A server on a machine with workers shares that machine's network card.
  const std::vector<ReducerHost>& reducer_hosts() const { return reducer_hosts_; }

  // kDataLoss if the reducer host or the serving index is out of range.
  Status check(const RootLocation& location) const;
  // The node that hosts the root. Precondition, here and below: check(location) is ok.
  uint32_t root(const RootLocation& location) const;
  // The service that `rank` contributes to.
  Parent parent_of(uint32_t rank, const RootLocation& location) const;
  // The service that every rank contributes to if the tensor is stored.
  Parent parameter_store_of(const RootLocation& location) const { return {root(location), Level::kRanks}; }
  // Selects the shard of each service; equal on all ranks (see shard()).
  uint16_t shard_index(const RootLocation& location) const { return shard_index(location.serving_index); }
  uint16_t shard_index(uint16_t serving_index) const {
    return static_cast<uint16_t>(serving_index / ranks_period_);
  }
  uint32_t shard(uint32_t node, uint16_t shard_index) const { return shard_index % num_shards_[node]; }
  uint32_t num_shards(uint32_t node) const { return num_shards_[node]; }
  // Sums of a machine's service are final if the node of the root is below this number.
  uint32_t num_final_roots() const { return num_machines() == 1 ? num_workers() : 0; }
  // Whether `from` may contribute to `to` at this level. If not, they need no connection.
  bool connects(uint32_t from, uint32_t to, Level level) const;

  // The ranks of `machine`: the children of its services at the machine level.
  Children children_on(uint32_t machine) const;
  // The machines: the children of any service at the cluster level.
  Children machines() const;

 private:
  // The rank that serves the partition on a machine.
  uint32_t serving(uint32_t machine, const RootLocation& location) const;
  struct Server {
    std::string machine;
    double nic_mbps = 0;
  };
  void choose_indices_of_host();
  void add_server(const NodeInfo& server);
  // Servers of one machine have equal parts of its card.
  void share_cards();

  std::vector<std::string> describe_rank_;
  std::vector<uint32_t> machine_of_rank_;
  std::vector<std::vector<uint32_t>> ranks_;  // indexed by machine
  std::map<std::string, uint32_t> machines_;  // with workers, by name
  std::vector<Server> servers_;               // by number of the node, from num_workers() on
  std::vector<uint32_t> num_shards_;          // indexed by node
  // Within one period every rank of a machine (every shard of a node) is selected equally often, or
  // nearly so.
  uint32_t ranks_period_ = 1;
  uint32_t shards_period_ = 1;
  uint32_t rank_indices_of_host_ = 1;
  uint32_t shard_indices_of_host_ = 1;
  bool can_take_turns_ = false;
  bool takes_turns_ = false;
  std::vector<ReducerHost> reducer_hosts_;
};

}  // namespace byteps::protocol
