// Hands out the places of partitions: who is the root, and whose turn it is on every machine. Pure.
//
// Sites come by their shares (Placer). The turn is chosen so that at every moment the bytes are spread evenly, to a few
// partitions of the largest size, whatever the shapes of machines and the sizes of partitions, over
//   the ranks of each machine, each of which sums the machine for its part, and the shards of each of them;
//   the ranks of each reducer_host and the shards of each of them, for what has its root there.
// Ranks are chosen first, then shards: each time the choice that those are furthest behind with, taken together, who
// would get the partition. That is a greedy descent of the sum of the squares of all distances from an even spread.
#pragma once

#include <cstdint>
#include <vector>

#include "protocol/placement.h"
#include "protocol/tree.h"

namespace byteps::protocol {

class RootAssigner {
 public:
  // `shares` by reducer_host of `tree`.
  RootAssigner(const Tree& tree, std::vector<double> shares);
  RootLocation next(uint64_t bytes);

 private:
  // Those who take turns: the one that a number stands for is the remainder by their count.
  class LoadCounter {
   public:
    explicit LoadCounter(size_t members) : bytes_(members) {}
    size_t size() const { return bytes_.size(); }
    // Bytes beyond an even part; negative if behind.
    double ahead(uint32_t number) const {
      return static_cast<double>(bytes_[number % size()]) - static_cast<double>(total_bytes_) / size();
    }
    void charge(uint32_t number, uint64_t bytes) {
      bytes_[number % size()] += bytes;
      total_bytes_ += bytes;
    }

   private:
    std::vector<uint64_t> bytes_;
    uint64_t total_bytes_ = 0;
  };
  // The services of a machine's ranks, or a server.
  struct Services {
    LoadCounter ranks;
    std::vector<LoadCounter> shards;  // by rank
  };

  static Services services_with(const std::vector<uint32_t>& shards);
  template <typename Ahead>
  static uint32_t furthest_behind(uint32_t count, Ahead&& ahead);
  void charge_index(Services& root, const RootLocation& location, uint64_t bytes);

  Placer reducer_hosts_;
  uint32_t num_rank_indices_;
  uint32_t num_shard_indices;
  std::vector<Services>
      machines_;  // that have several ranks; one of those that are alike, as their loads are as well
  std::vector<Services> roots_;  // by reducer_host
};

}  // namespace byteps::protocol
