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
#include "protocol/placement.h"
#include "protocol/tree.h"

namespace byteps::protocol {

inline constexpr size_t kMaxTensors = 1u << 20;

// Hands out places: sites by their shares, and turns evenly, by bytes at every moment. A turn loads its rank on every
// machine, where that sums the machine; on the site it loads the root as well, and one of its shards. Each partition
// gets the turn that has the least of these together.
class PlaceGiver {
 public:
  // `shares` by site of `tree`.
  PlaceGiver(const Tree& tree, std::vector<double> shares);
  Place next(uint64_t bytes);
  // Counts a place that another giver gave.
  void charge(const Place& place, uint64_t bytes);

 private:
  struct Loads {
    std::vector<uint64_t> by_turn;  // bytes
    std::vector<uint64_t> by_lane;
  };
  void charge_turn(Loads& here, size_t turn, uint64_t bytes);

  Placer sites_;
  std::vector<uint16_t> lane_of_turn_;
  // All sites together; turns that are alike for the ranks of all machines are one entry of rank_bytes_.
  std::vector<uint64_t> turn_bytes_;
  std::vector<uint64_t> rank_bytes_;
  std::vector<Loads> loads_;  // by site
};

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
  // The first declaration binds the name. One with another dtype or size spoils it for everybody: those who
  // declared it before may wait in a round for the rank that cannot take part.
  Answer declare(uint32_t rank, const Declare& declare);

 private:
  struct Tensor {
    uint32_t first_rank;
    DType dtype;
    uint64_t bytes;
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
