// The names of tensors in a job, and the root locations of their partitions. Pure.
//
// A name may stand for tensors of different sizes over time. Its partitions are those of the
// largest; a smaller tensor uses the first ones. So the list of a name's locations only grows, and
// every rank gets the same list whenever it asks. Each partition scale (protocol/plan.h) has a list
// of its own, balanced as if no other existed, because one scale is in use at a time.
//
// A rank that forgets a name (protocol/push_pull_table.h) leaves its round here, and gets it back
// if it uses the name again. When all ranks have forgotten a name, and in the same round, it is
// forgotten here, and the caller tells the services: its rounds begin anew if it comes back, on all
// ranks, under another number. Numbers are never given again, so nothing that is late can be taken
// for something else. A name whose ranks have forgotten it in different rounds stays, because
// contributions of different rounds must not meet.
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
#include <set>
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
  // Holds at most `max_tensors` names.
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

  // The rank has forgotten these names. Returns what all ranks have forgotten with it.
  std::vector<ForgottenKeys> forget(uint32_t rank, const Forget& forget);

  // A round has failed for `rank`. All nodes are told once: services fail the rest of that round
  // and all earlier ones, which can no longer complete. Empty if they have been told.
  std::optional<Refused> fail_round(uint32_t rank, const RoundFailed& failed);

  // Whether a tensor is stored.
  bool has_stored() const;

  // Lists that are made from now on follow the shares of `assigner`, which is unused.
  void change_shares(RootAssigner assigner);

  // Empty if no name has this number.
  std::string name_of(uint64_t number) const;
  // Of all names that it knows.
  std::set<uint64_t> numbers() const;
  // Number of names that are not forgotten.
  size_t size() const { return tensors_.size(); }

 private:
  class RankSet {
   public:
    // False: it was there.
    bool insert(uint32_t rank);
    bool erase(uint32_t rank);
    bool contains(uint32_t rank) const { return rank < has_.size() && has_[rank]; }
    size_t size() const { return size_; }

   private:
    std::vector<bool> has_;
    size_t size_ = 0;
  };
  // Ranks that were in the same round, with the same plan, when they forgot the name.
  struct Past {
    uint64_t round;
    Plan plan;
    RankSet ranks;
  };

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
    uint64_t number = 0;
    std::optional<First> first;  // the first declaration
    uint8_t placement = 0;
    uint8_t previous_placement = 0;
    std::map<std::pair<uint8_t, uint8_t>, Locations> locations;  // key: placement, partition scale
    std::map<uint8_t, uint32_t> most_partitions;  // by partition scale, of all placements so far
    Status conflict;
    std::array<uint64_t, 4> failed_rounds{};  // the last ones, because every rank may report them
    size_t next_failed = 0;
    RankSet users;            // ranks that have it
    std::vector<Past> pasts;  // of those that have forgotten it before; most often one
  };

  // The rank has the name from now on. Null if there are too many names.
  Tensor* find_or_bind(const std::string& name, uint32_t rank);
  static const Past* past_of(const Tensor& tensor, uint32_t rank);
  // The rank's round, if it has counted its calls as RoundFailed and ForgottenName say.
  static uint64_t round_of(const Tensor& tensor, uint32_t rank, uint64_t round, uint64_t calls);
  static void set_past(Tensor& tensor, uint32_t rank, uint64_t round, const Plan& plan);
  bool is_forgotten_by_all(const Tensor& tensor) const;
  Status agrees(const First& first, uint32_t rank, const Declare& declare) const;
  Placed place(Tensor& tensor, uint32_t rank, const Declare& declare);
  Locations& locations_for(Tensor& tensor, const Declare& declare);

  std::vector<std::string> describe_rank_;
  RootAssigner unused_assigner_;
  std::map<uint8_t, RootAssigner> assigners_;  // key: partition scale
  uint64_t shares_number_ = 0;                 // number of calls of change_shares()
  PartitionRule partition_rule_;
  size_t max_tensors_;
  std::unordered_map<std::string, Tensor> tensors_;
  std::unordered_map<uint64_t, const std::string*> names_;  // key: number; points into tensors_
  uint64_t last_number_ = 0;
};

}  // namespace byteps::protocol
