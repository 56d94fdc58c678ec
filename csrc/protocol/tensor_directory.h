// The names of tensors in a job, and where their partitions go. Pure.
//
// A name may stand for tensors of other sizes from one push_pull to the next. Its partitions are those of the largest; a
// smaller tensor has the first of them. So the list of a name's places grows, and never changes otherwise: every rank
// gets the same, whenever it asks. There is a list for each cut (protocol/plan.h) that is asked for, balanced as if no
// other existed: one is in use at a time.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "protocol/message.h"
#include "protocol/partition.h"
#include "protocol/root_assigner.h"

namespace byteps::protocol {

class TensorDirectory {
 public:
  // At most `max_tensors` names are bound: they are kept for the whole job.
  TensorDirectory(std::vector<std::string> describe_rank, RootAssigner places, PartitionRule partition_rule,
                  size_t max_tensors = kMaxTensors);

  // What the scheduler answers.
  struct Answer {
    Control message;      // Placed or Refused
    bool to_all = false;  // every node has to know, not only who asked
  };
  // The first declaration says whether services keep the tensor, and of which size and dtype it then is for the whole
  // job. One that contradicts it spoils the name for everybody: others may wait in a round for the rank that cannot
  // take part.
  Answer declare(uint32_t rank, const Declare& declare);

  // A round has failed for `rank`. All nodes have to know of it, once: services fail what is left of it, and rounds
  // before it, which nobody can complete any more. None: they do.
  std::optional<Refused> fail_round(uint32_t rank, const RoundFailed& failed);

  // Empty: no name has this number.
  std::string name_of(uint32_t number) const;

 private:
  struct First {
    uint32_t rank;
    DType dtype;
    uint64_t bytes;
    TensorMode mode;
  };
  struct Tensor {
    uint32_t number = 0;
    std::optional<First> first;                           // declaration
    std::map<uint8_t, std::vector<RootLocation>> places;  // by cut
    Status conflict;
    std::array<uint64_t, 4> failed_rounds{};  // the last ones, so that all ranks may tell of them
    size_t next_failed = 0;
  };

  // Null: there are too many.
  Tensor* find_or_bind(const std::string& name);
  Status agrees(const First& first, uint32_t rank, const Declare& declare) const;
  Placed place(Tensor& tensor, const Declare& declare);

  std::vector<std::string> describe_rank_;
  RootAssigner no_places_given_;
  std::map<uint8_t, RootAssigner> givers_;  // by cut
  PartitionRule partition_rule_;
  size_t max_tensors_;
  std::unordered_map<std::string, Tensor> tensors_;
  std::vector<const std::string*> names_;  // by number - 1; in tensors_
};

}  // namespace byteps::protocol
