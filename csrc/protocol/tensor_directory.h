// The names of tensors in a job, and the root locations of their partitions. Pure.
//
// A name may stand for tensors of different sizes over time. Its partitions are those of the
// largest; a smaller tensor uses the first ones. So the list of a name's locations only grows, and
// every rank gets the same list whenever it asks. Each partition scale (protocol/plan.h) has a list
// of its own, balanced as if no other existed, because one scale is in use at a time.
//
// Shares may change while the job runs (protocol/link_speeds.h). Lists that ranks know never
// change, so each *placement* of a name (protocol/plan.h) has lists of its own, made with the
// shares of the moment at which the first rank asked for it. The lists of a name's current and
// previous placement are kept: a rank uses the next placement only after all ranks have got the
// locations of the current one, and with them contributed to a round.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "protocol/message.h"
#include "protocol/partition.h"
#include "protocol/root_assigner.h"

namespace byteps::protocol {

class TensorDirectory {
 public:
  // Binds at most `max_tensors` names; they stay for the whole job.
  TensorDirectory(std::vector<std::string> describe_rank, RootAssigner assigner, PartitionRule partition_rule,
                  size_t max_tensors = kMaxTensors);

  // The scheduler's answer to a Declare.
  struct Answer {
    Control message;      // Placed or Refused
    bool to_all = false;  // send to all nodes, not only to the sender of the Declare
  };
  // The first declaration of a name fixes whether services store the tensor and, if so, its size
  // and dtype. A contradicting declaration makes the name unusable for all ranks: others may wait
  // in a round for the rank that cannot take part.
  Answer declare(uint32_t rank, const Declare& declare);

  // A round has failed for `rank`. All nodes are told once: services fail the rest of that round
  // and all earlier ones, which can no longer complete. Empty if they have been told.
  std::optional<Refused> fail_round(uint32_t rank, const RoundFailed& failed);

  // Lists that are made from now on follow the shares of `assigner`, which is unused.
  void change_shares(RootAssigner assigner);

  // Empty if no name has this number.
  std::string name_of(uint32_t number) const;

 private:
  struct First {
    uint32_t rank;
    DType dtype;
    uint64_t bytes;
    TensorMode mode;
  };
  struct Locations {
    std::vector<RootLocation> of_partition;
    uint64_t shares = 0;  // value of shares_number_ with which it was begun
  };
  struct Tensor {
    uint32_t number = 0;
    std::optional<First> first;  // the first declaration
    uint8_t placement = 0;
    uint8_t previous_placement = 0;
    std::map<std::pair<uint8_t, uint8_t>, Locations> locations;  // key: placement, partition scale
    Status conflict;
    std::array<uint64_t, 4> failed_rounds{};  // the last ones, because every rank may report them
    size_t next_failed = 0;
  };

  // Null if there are too many names.
  Tensor* find_or_bind(const std::string& name);
  Status agrees(const First& first, uint32_t rank, const Declare& declare) const;
  Placed place(Tensor& tensor, const Declare& declare);
  Locations& locations_for(Tensor& tensor, const Declare& declare);

  std::vector<std::string> describe_rank_;
  RootAssigner unused_assigner_;
  std::map<uint8_t, RootAssigner> assigners_;  // key: partition scale
  uint64_t shares_number_ = 0;                 // number of calls of change_shares()
  PartitionRule partition_rule_;
  size_t max_tensors_;
  std::unordered_map<std::string, Tensor> tensors_;
  std::vector<const std::string*> names_;  // indexed by number - 1; points into tensors_
};

}  // namespace byteps::protocol
