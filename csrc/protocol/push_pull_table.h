// A worker's tensors and the push_pulls in flight: from a name to partitions to a finished handle. Pure.
//
// A tensor is declared at its first use; the scheduler's answer (Placed) says where its partitions go and is kept.
// The caller sends what the actions say and reports back what became of each partition: exactly one settle() for
// every StartPartition. A handle finishes when all its partitions are settled, so that nobody touches the tensor's
// memory any more, with the first failure among them. Failures name the tensor; those passed in need not.
//
// How a tensor is cut can change from one push_pull to the next (protocol/plan.h): as the answers to the last one say.
// Every cut of a tensor is a placement of its own, with a number and rounds of its own. It is asked for as soon as it
// is known, so that the next push_pull seldom has to wait for it. What services keep stays as it was cut at first.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "protocol/message.h"
#include "protocol/partition.h"
#include "protocol/tree.h"

namespace byteps::protocol {

using Handle = uint64_t;

struct PushPull {
  std::string name;
  DType dtype = DType::kFloat32;
  uint64_t bytes = 0;
  ReduceOp op = ReduceOp::kSum;
  uint32_t root = 0;
  int32_t priority = 0;
  uint8_t staleness = 0;  // kSeed, kAccumulate; the same on all ranks and in all push_pulls of the tensor

  Upkeep upkeep() const { return is_kept(op) ? Upkeep{true, staleness} : Upkeep{}; }
};

struct SendDeclare {
  Declare declare;
};
// What starts from now on follows another plan than what started before: take its credit.
struct ChangePlan {
  Plan plan;
};
struct StartPartition {
  Handle handle;
  Parent parent;
  DataHead head;    // complete but for epoch
  uint64_t offset;  // of the partition in the tensor, bytes
};
struct FinishHandle {
  Handle handle;
  Status status;
};
using TableAction = std::variant<SendDeclare, ChangePlan, StartPartition, FinishHandle>;
using TableActions = std::vector<TableAction>;

class PushPullTable {
 public:
  PushPullTable(uint32_t rank, Tree tree);

  // Asks for the placement, ahead of use, of a tensor that is not kept. Errors as of start.
  Status declare(const std::string& name, DType dtype, uint64_t bytes, TableActions& actions);

  // Begins a push_pull; `handle` is new. On an error nothing has begun: kInvalidArgument (name empty or too long, in
  // flight already, bound to another dtype, size or upkeep, root out of range, bytes no multiple of the element
  // size), or what fail() was given.
  Status start(Handle handle, const PushPull& request, TableActions& actions);

  // The scheduler's answer. One that fits nothing asked for: kDataLoss (the caller drops the scheduler).
  Status on_placed(const Placed& placed, TableActions& actions);
  // Every later start fails. A push_pull whose partitions are on their way goes on until they are settled: the
  // services fail them. Nothing to do for a tensor that this rank has not asked for, or that is refused already.
  void on_refused(const Refused& refused, TableActions& actions);

  // The partition of a StartPartition is done, and the answer had this plan, or it has failed; nobody uses its memory
  // any more.
  void settle(Handle handle, const Result<Plan>& outcome, TableActions& actions);
  // What who waits for it waits for: "push_pull of 'w'"; empty if it is not in flight.
  std::string name_wait(Handle handle) const;

  // What this rank asks for from its next start on. Only rank 0 is listened to.
  void ask_for(const Plan& plan) { wish_ = plan; }

  // The job has ended: what waits for a placement finishes with `why` (ok is not allowed), so does every later
  // start. Partitions that were started are settled by the caller. The first `why` stays.
  void fail(const Status& why, TableActions& actions);

  size_t in_flight() const { return ops_.size(); }

 private:
  struct Placement {
    uint32_t id = 0;  // 0: asked for
    Partitioning partitioning;
    std::vector<Place> places;  // by partition
    uint32_t round = 0;
  };
  struct Tensor {
    DType dtype = DType::kFloat32;
    uint64_t bytes = 0;
    Upkeep upkeep;
    Status refusal;
    std::map<uint8_t, Placement> placements;  // by cut
    uint8_t cut = 0;                          // of the next push_pull, or of the one in flight
    std::optional<Plan> plan;                 // as it came with the last answer
    Handle in_flight = 0;                     // 0: none
  };
  using NamedTensor = std::pair<const std::string, Tensor>;
  struct Op {
    NamedTensor* tensor = nullptr;
    ReduceOp op = ReduceOp::kSum;
    uint32_t root = 0;
    int32_t priority = 0;
    uint64_t unsettled = 0;  // 0: waits for its placement
    Status first_failure;
    std::optional<Plan> next;  // all answers have the same
  };

  Result<NamedTensor*> find_or_declare(const std::string& name, DType dtype, uint64_t bytes,
                                       const Upkeep& upkeep, TableActions& actions);
  Status check_placement(const Tensor& tensor, const Placed& placed) const;
  void start_partitions(Op& op, TableActions& actions);
  // The cut of `plan`, or 0 where that would be the same.
  static uint8_t cut_for(const Tensor& tensor, const Plan& plan);
  void take_up(NamedTensor& tensor, const Plan& plan, TableActions& actions);
  void finish(Handle handle, const Status& status, TableActions& actions);

  uint32_t rank_;
  Tree tree_;
  std::unordered_map<std::string, Tensor> tensors_;  // never erased from: ops point into it
  std::unordered_map<Handle, Op> ops_;
  Plan wish_;  // of this rank
  Plan plan_;  // of what was started last
  Status failed_;
};

}  // namespace byteps::protocol
