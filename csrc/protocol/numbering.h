// Who gets which rank: checks of the nodes that join, and the order of the complete job. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "protocol/message.h"

namespace byteps::protocol {

// The nodes of a job that is still joining, in the order of their coming.
class Numbering {
 public:
  // 0 workers: as the first node says that was told; servers may come before it. Not more than kMaxNodes in all.
  Numbering(uint32_t num_workers, uint32_t num_servers);

  // kInvalidArgument, naming the joiner, if it does not fit the job: counts that contradict those known, a rank
  // out of range or taken, one node too many, another version of the package.
  Status add(const Join& join);

  bool complete() const;
  uint32_t num_workers() const { return num_workers_; }
  const std::vector<NodeInfo>& joined() const { return joined_; }
  // "rank 2, rank 3 and server 0" or, where nodes come without numbers, "2 workers and 1 server".
  std::string missing() const;

  // The nodes with all numbers, workers by rank, then servers; each with its index in joined(). Ranks not asked for
  // go to machines in the order of their first worker, so that workers of a machine are neighbours.
  // Precondition: complete().
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
  std::string version_;  // of the first
  std::map<std::pair<Role, int32_t>, size_t> taken_;
};

}  // namespace byteps::protocol
