// The tree of summation services above every partition: whose contributions meet where. Pure.
//
//   rank -> [machine service] -> root
//
// The ranks of a machine that has several are summed by a service of that machine first, in the order of their ranks;
// then the root sums the machines in the order of their first ranks. The shape depends on nothing but which ranks
// share a machine, so that a sum is the same bit for bit wherever its root is. Where the services are is a Place:
//   reducer_host  who is the root: a machine with workers (then one of its processes), or a server
//   turn  which of a machine's ranks serves the partition on that machine, and which shard of each service
// A root on a worker machine lives in the process that serves the partition on that machine as well. In a job of one
// machine that process alone sums, unless the root is a server.
// What services keep (protocol/staleness_tracker.h) does not go through a tree: each rank speaks to the root itself, which has to
// know how far each of them is.
// Source: DESIGN, section 1; Jiang et al., OSDI 2020, section 4.2 (two levels of summation).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "protocol/message.h"
#include "protocol/placement.h"

namespace byteps::protocol {

// The children of a summation service at one level, and which of them speaks for which rank.
struct Children {
  std::vector<std::string> describe;  // by child
  std::vector<int32_t> of_rank;       // -1: not below this service
};

// Of any service for what it keeps: all ranks, each for itself.
Children each_rank(std::vector<std::string> describe_rank);

// How much each child counts in a mean: by the number of ranks that it speaks for, over what these numbers have in common.
struct Weights {
  std::vector<uint32_t> of_child;
  uint32_t total = 0;
};
Weights weights(const Children& children);

// Whom a node sends a partition to.
struct Parent {
  uint32_t node = 0;
  Level level = Level::kCluster;
  bool operator==(const Parent&) const = default;
};

class Tree {
 public:
  // `nodes` as in a Roster.
  Tree(const std::vector<NodeInfo>& nodes, uint32_t num_workers);

  uint32_t num_workers() const { return static_cast<uint32_t>(machine_of_rank_.size()); }
  uint32_t num_nodes() const { return static_cast<uint32_t>(num_shards_.size()); }
  uint32_t num_machines() const { return static_cast<uint32_t>(ranks_.size()); }  // with workers
  uint32_t num_reducer_hosts() const { return num_machines() + num_nodes() - num_workers(); }
  // Places have turns below this.
  uint32_t num_serving_indices() const { return ranks_period_ * shards_period_; }
  // Turns are a lane (below this) times the number of turns in one lane, plus the turn of ranks.
  uint32_t num_shard_indices() const { return shards_period_; }
  bool has_machine_level() const { return num_machines() < num_workers(); }

  const std::string& describe(uint32_t rank) const { return describe_rank_[rank]; }
  uint32_t machine_of(uint32_t rank) const { return machine_of_rank_[rank]; }
  // Ascending; never empty.
  const std::vector<uint32_t>& ranks_of(uint32_t machine) const { return ranks_[machine]; }
  // What placement has to know of them. Servers on one machine share its network card.
  const std::vector<ReducerHost>& reducer_hosts() const { return reducer_hosts_; }

  // kDataLoss: no such reducer_host or turn.
  Status check(const RootLocation& location) const;
  // The node that hosts the root. Precondition, also below: check(place).
  uint32_t root(const RootLocation& location) const;
  // Whom `rank` contributes to.
  Parent parent_of(uint32_t rank, const RootLocation& location) const;
  // Whom every rank contributes to if the root keeps the partition's value.
  Parent parameter_store_of(const RootLocation& location) const { return {root(location), Level::kRanks}; }
  // Which shard of `node` the partition goes through is this modulo its number of shards: alike for all ranks.
  uint16_t shard_index(const RootLocation& location) const {
    return static_cast<uint16_t>(location.serving_index / ranks_period_);
  }
  uint32_t shard(uint32_t node, uint16_t shard_index) const { return shard_index % num_shards_[node]; }
  uint32_t num_shards(uint32_t node) const { return num_shards_[node]; }
  // The sums of a machine's service are final where the root is a node below this.
  uint32_t num_final_roots() const { return num_machines() == 1 ? num_workers() : 0; }
  // May `from` ever contribute to `to` at this level? What has no way needs no connection.
  bool connects(uint32_t from, uint32_t to, Level level) const;

  // Of a service of `machine`, at the level of machines: its ranks.
  Children children_on(uint32_t machine) const;
  // Of any service at the level of the cluster: the machines.
  Children machines() const;

 private:
  // The rank that serves the partition on a machine.
  uint32_t serving(uint32_t machine, const RootLocation& location) const;
  void add_reducer_hosts(const std::vector<NodeInfo>& nodes, const std::map<std::string, uint32_t>& machines);

  std::vector<std::string> describe_rank_;
  std::vector<uint32_t> machine_of_rank_;
  std::vector<std::vector<uint32_t>> ranks_;  // by machine
  std::vector<uint32_t> num_shards_;          // by node
  // Among so many turns (lanes) each rank of every machine (shard of every node) has as many as the others, or nearly.
  uint32_t ranks_period_ = 1;
  uint32_t shards_period_ = 1;
  std::vector<ReducerHost> reducer_hosts_;
};

}  // namespace byteps::protocol
