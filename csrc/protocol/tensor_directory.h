// The names that are bound to tensors in a job, and where their partitions go. Pure.
//
// A tensor is placed once for each cut (protocol/plan.h) that is asked for, and every rank gets the same answer. The
// places of one cut are balanced among themselves, as if no other existed: one is in use at a time. A tensor that
// another cut would leave in the same pieces keeps the places of its first one; nobody asks for others.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "protocol/message.h"
#include "protocol/partition.h"
#include "protocol/place_giver.h"

namespace byteps::protocol {

inline constexpr size_t kMaxTensors = 1u << 20;

class TensorDirectory {
 public:
  // At most `max_tensors` names are bound: they are kept for the whole job.
  TensorDirectory(std::vector<std::string> describe_rank, PlaceGiver places, PartitionRule partition_rule,
                  size_t max_tensors = kMaxTensors);

  // What the scheduler answers to a Declare.
  struct Answer {
    Control message;      // Placed or Refused
    bool to_all = false;  // every node has to know, not only who asked
  };
  // The first declaration binds the name. One with another dtype, size or upkeep spoils it for everybody: those who
  // declared it before may wait in a round for the rank that cannot take part.
  Answer declare(uint32_t rank, const Declare& declare);

 private:
  struct Tensor {
    uint32_t first_rank;
    DType dtype;
    uint64_t bytes;
    Upkeep upkeep;
    std::map<uint8_t, Placed> placed;  // by cut; 0 is always there
    Status conflict;
  };

  Answer bind(uint32_t rank, const Declare& declare);
  Answer place(Tensor& tensor, const Declare& declare);
  Result<Partitioning> partition(const Tensor& tensor, uint8_t cut) const;
  bool stays(const Tensor& tensor, uint8_t cut) const;
  PlaceGiver& giver(uint8_t cut);

  std::vector<std::string> describe_rank_;
  PlaceGiver no_places_given_;
  std::map<uint8_t, PlaceGiver> givers_;  // by cut
  PartitionRule partition_rule_;
  size_t max_tensors_;
  uint32_t last_number_ = 0;
  std::unordered_map<std::string, Tensor> tensors_;
};

}  // namespace byteps::protocol
