// Assigns root locations to partitions: the reducer host of the root, and the serving index. Pure.
//
// Reducer hosts are chosen by their shares (Placer). The serving index is chosen so that at every
// moment the bytes are spread evenly, up to a few partitions of the largest size, over
//   the ranks of each machine, which sum the machine's contributions, and the shards of each rank;
//   the ranks of each reducer host and their shards, for the partitions whose root is there (those
//   of its ranks and shards that have roots: Tree::rank_indices_of_host());
//   the ranks of each machine and the shards of each server, for the partitions whose root is that
//   server: a connection is paced for its part of what the server gets (protocol/pacing.h).
// The rank is chosen first, then the shard: the index whose members, together, are furthest behind
// (a greedy descent of the sum of squared distances from an even spread).
#pragma once

#include <cstdint>
#include <vector>

#include "protocol/placement.h"
#include "protocol/tree.h"

namespace byteps::protocol {

class RootAssigner {
 public:
  // `shares` by reducer host of `tree`.
  RootAssigner(const Tree& tree, std::vector<double> shares);
  // The root location of the next partition, of `bytes` bytes. An empty partition counts as one
  // byte, so that empty ones take turns as well.
  RootLocation next(uint64_t bytes);

 private:
  // Bytes assigned to each of several members. Index n stands for member n % size().
  class LoadCounter {
   public:
    explicit LoadCounter(size_t members) : bytes_(members) {}
    size_t size() const { return bytes_.size(); }
    // Bytes above an even share; negative if below.
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
    std::vector<LoadCounter> shards;  // indexed by rank
  };

  // Calls `use` with the services and connections that take part if the root is on `reducer_host`.
  template <typename Use>
  void for_each_part(uint16_t reducer_host, Use&& use);
  static Services services_with(const std::vector<uint32_t>& shards);
  template <typename Ahead>
  static uint32_t furthest_behind(uint32_t count, Ahead&& ahead);

  Placer reducer_hosts_;
  uint32_t num_rank_indices_;
  uint32_t rank_indices_of_host_;
  uint32_t num_shard_indices_;
  uint32_t shard_indices_of_host_;
  // Machines with several ranks. Machines of equal shape have equal loads: one stands for all.
  std::vector<Services> machines_;
  std::vector<Services> roots_;  // indexed by reducer host
  // Indexed by reducer host; empty but for servers. The connections of a server with machines of
  // each number of ranks above one: `shards` are the server's.
  std::vector<std::vector<Services>> connections_;
};

}  // namespace byteps::protocol
