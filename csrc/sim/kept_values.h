// What ranks contribute to tensors that services keep, and what must hold of every answer, whatever the order of
// events. An element counts how many contributions of each rank are in it, in digits of its own, beside the seed's
// value.
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

  // The rank begins its next round of the tensor: what it contributes.
  void begin(size_t tensor, uint32_t rank, ReduceOp op, MutableBytes out);
  // It has failed, for this reason.
  void fail(size_t tensor, uint32_t rank, const Status& why);
  // It was answered; "", or what is wrong with the answer:
  //   a partition is one state, not a mixture; every contribution is in it once at most, and none that has waited too
  //   long for others
  //   the rank's own contributions are in it, and all that an answer to this rank had before
  //   with staleness s, the answer to round r has all that all ranks contributed up to round r - s
  //   after a barrier that all have reached (`at_end`), all that was ever contributed
  std::string check(size_t tensor, uint32_t rank, Bytes answer, bool at_end);

 private:
  using Counts = std::vector<uint64_t>;  // of contributions, by rank
  struct Member {
    std::vector<uint32_t> begun{0};  // by round: contributions up to it
    uint32_t failed = 0;             // of them
    uint32_t timed_out = 0;          // of those, where no partition can have succeeded
    bool contributes = false;        // in the round that is in flight
    std::vector<Counts> seen;        // in the last answer, by partition
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
