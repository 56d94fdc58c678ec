// Assigns ranks: checks the nodes that join, and orders the nodes of the complete job. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "protocol/message.h"

namespace byteps::protocol {

// The nodes of a job that is still joining, in the order in which they joined.
class Numbering {
 public:
  // `num_workers` = 0: taken from the first worker that joins; servers may join before it. At most
  // kMaxNodes nodes in all.
  Numbering(uint32_t num_workers, uint32_t num_servers);

  // kInvalidArgument, naming the node, if it does not fit the job: it expects other numbers of
  // nodes, its rank is out of range or taken, the job is complete, or its package version differs.
  Status add(const Join& join);

  // kInvalidArgument if its package version differs from that of the others.
  Status check_version(const Join& join) const;

  bool complete() const;
  uint32_t num_workers() const { return num_workers_; }
  const std::vector<NodeInfo>& joined() const { return joined_; }
  // "rank 2, rank 3 and server 0" or, where nodes join without numbers, "2 workers and 1 server".
  std::string missing() const;

  // All nodes with their numbers, workers by rank, then servers; each with its index in joined().
  // Ranks that no node asked for are assigned machine by machine, in the order of the machines'
  // first workers, so that workers of a machine are neighbors. Precondition: complete().
  struct Numbered {
    NodeInfo node;
    size_t joined_index;
  };
  std::vector<Numbered> number() const;

 private:
  Status check(const Join& join) const;
  Status check_counts(const Join& join) const;
  Status check_number(const NodeInfo& node) const;
  uint32_t expected(Role role) const { return role == Role::kWorker ? num_workers_ : num_servers_; }
  size_t count(Role role) const;
  std::vector<std::string> missing_of(Role role) const;

  uint32_t num_workers_;
  uint32_t num_servers_;
  std::vector<NodeInfo> joined_;
  std::string version_;  // version of the first node
  std::map<std::pair<Role, int32_t>, size_t> taken_;
};

}  // namespace byteps::protocol
