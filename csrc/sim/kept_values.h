// The contributions of ranks to stored tensors (asynchronous training), and checks of the answers
// that hold whatever the order of events. An element counts the contributions of each rank in
// digits of its own, beside the value of the seed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "protocol/partition.h"
#include "sim/scenario.h"

namespace byteps::sim {

class KeptValues {
 public:
  explicit KeptValues(const Scenario& scenario) : scenario_(scenario) {}

  // The rank begins its next round of the tensor: writes its contribution to `out`.
  void begin(size_t tensor, uint32_t rank, ReduceOp op, MutableBytes out);
  // The round that it has begun has failed with `why`.
  void fail(size_t tensor, uint32_t rank, const Status& why);
  // The round that it has begun was answered. Returns "" or what is wrong:
  //   a partition must be one state, not a mixture of two
  //   each contribution is in it at most once, and none that has failed by its deadline
  //   the rank's own contributions are in it, and all that earlier answers to this rank had
  //   with staleness s, the answer to round r has all contributions of all ranks up to round r - s
  //   after a barrier of all ranks (`at_end`), it has all contributions
  std::string check(size_t tensor, uint32_t rank, Bytes answer, bool at_end);

 private:
  using Counts = std::vector<uint64_t>;  // number of contributions, by rank
  struct Member {
    std::vector<uint32_t> begun{0};  // by round: number of contributions up to it
    uint32_t failed = 0;             // number of contributions that failed
    uint32_t timed_out = 0;          // number of those of which no partition was added
    bool contributes = false;        // whether the round in flight contributes
    std::vector<Counts> seen;        // by partition: counts in the last answer
  };
  using Members = std::vector<Member>;  // by rank

  Members& members_of(size_t tensor);
  protocol::Partitioning cut_of(const TensorPlan& tensor) const;
  std::string check_counts(const TensorPlan& tensor, const Members& members, uint32_t rank,
                           const Counts& counts, const Counts& seen, bool at_end) const;

  const Scenario& scenario_;
  std::map<size_t, Members> members_;
};

}  // namespace byteps::sim
