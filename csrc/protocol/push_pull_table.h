// A worker's tensors and the push_pulls in flight: from a name to partitions to a finished handle. Pure.
//
// A name is declared at its first use; the scheduler's answer (Placed) says where its partitions go and is kept. It is
// declared again when a tensor comes that has more partitions than any before.
// The caller sends what the actions say and reports back what became of each partition: exactly one complete() for
// every StartPartition. A handle finishes when all its partitions are settled, so that nobody touches the tensor's
// memory any more, with the first failure among them. Failures name the tensor; those passed in need not.
//
// **Rounds.** Each rank counts its push_pulls of a name, and the n-th ones of all ranks belong together, whatever becomes
// of them; where the caller counts steps, the n-th ones in a step (protocol/rounds.h). One that is refused here counts,
// too, and fails for all: the scheduler is told, who tells all services (RoundFailed, Refused); and the service of the
// first partition, so that it knows before it hears of this rank's next round. So ranks are never summed with each other's earlier rounds. Ranks that mean different tensors
// by one name meet in the first partition, where the service sees it (protocol/aggregation.h); what else there is of the
// round has to be failed by the same way, as other partitions may be of one rank only. What services keep has no common
// rounds; there a refused push_pull ends the name.
//
// How a tensor is cut can change from one push_pull to the next (protocol/plan.h): as the answers to the last one say.
// Every cut of a name has places of its own. They are asked for as soon as the cut is known, so that the next push_pull
// seldom has to wait for them. What services keep stays as it was cut at first.
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
  Shape shape = {};
  uint64_t step =
      0;  // of training, as all ranks count it (protocol/rounds.h); 0: of none. Not of what is kept

  TensorMode mode() const { return is_stored(op) ? TensorMode{true, staleness} : TensorMode{}; }
};

struct SendDeclare {
  Declare declare;
};
struct SendRoundFailed {
  RoundFailed failed;
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
// Instead of the contribution to this partition.
struct FailPartition {
  Parent parent;
  DataHead head;  // complete but for type, epoch and code
  Status why;     // names this rank
};
struct FinishHandle {
  Handle handle;
  Status status;
};
using TableAction =
    std::variant<SendDeclare, SendRoundFailed, ChangePlan, StartPartition, FailPartition, FinishHandle>;
using TableActions = std::vector<TableAction>;

class PushPullTable {
 public:
  // `rule` as all nodes have it.
  PushPullTable(uint32_t rank, Tree tree, const PartitionRule& rule);

  // Asks for the placement, ahead of use, of a tensor that is not kept. Errors as of start.
  Status declare(const std::string& name, DType dtype, uint64_t bytes, TableActions& actions);

  // Begins a push_pull; `handle` is new. On an error nothing has begun, but the round counts unless the name is none or
  // cannot be used any more: kInvalidArgument (name empty or too long, in flight already, bound to another mode, root
  // or step out of range, bytes that do not fit the dtype or the shape; of what is kept also another size or dtype), or what
  // fail() was given.
  Status start(Handle handle, const PushPull& request, TableActions& actions);
  // A push_pull of this name, in this step, was refused, for `why`, before it came here: its round counts, and fails for
  // all ranks.
  void refuse(const std::string& name, uint64_t step, const Status& why, TableActions& actions);

  // The scheduler's answer. One that fits nothing asked for: kDataLoss (the caller drops the scheduler).
  Status on_placed(const Placed& placed, TableActions& actions);
  // If it is for every round, every later start fails. A push_pull whose partitions are on their way goes on until they
  // are settled: the services fail them. Nothing to do for single rounds, which the services fail, for a tensor that
  // this rank has not asked for, or that is refused already.
  void on_refused(const Refused& refused, TableActions& actions);

  // The partition of a StartPartition is done, and the answer had this plan, or it has failed; nobody uses its memory
  // any more.
  void complete(Handle handle, const Result<Plan>& outcome, TableActions& actions);
  // What who waits for it waits for: "push_pull of 'w'"; empty if it is not in flight.
  std::string name_wait(Handle handle) const;

  // What this rank asks for from its next start on. Only rank 0 is listened to.
  void ask_for(const Plan& plan) { desired_plan_ = plan; }

  // The job has ended: what waits for a placement finishes with `why` (ok is not allowed), so does every later
  // start. Partitions that were started are settled by the caller. The first `why` stays.
  void fail(const Status& why, TableActions& actions);

  size_t in_flight() const { return ops_.size(); }

 private:
  struct Placement {
    std::vector<RootLocation> places;  // by partition
    uint32_t asked = 0;                // for so many places
    uint32_t unanswered = 0;           // Declares
  };
  // What it is for the whole job.
  struct Binding {
    TensorMode mode;
    DType dtype;     // of what is kept
    uint64_t bytes;  // of what is kept
  };
  struct Tensor {
    uint32_t number = 0;             // 0: not known yet
    std::optional<Binding> binding;  // none before the first good use
    Status refusal;
    uint64_t round = 0;                       // of the last push_pull
    std::map<uint8_t, Placement> placements;  // by cut
    uint8_t partition_scale = 0;              // of the next push_pull, or of the one in flight
    std::optional<Plan> plan;                 // as it came with the last answer
    Handle in_flight = 0;                     // 0: none
    std::optional<RoundFailed> refused;  // to tell when what is in flight is finished, which is not concerned
  };
  using NamedTensor = std::pair<const std::string, Tensor>;
  struct Op {
    NamedTensor* tensor = nullptr;
    PushPull request;  // without the name
    uint64_t round = 0;
    Partitioning partitioning;
    uint64_t unsettled = 0;  // 0: waits for its placement
    Status failure;
    bool told = false;         // the scheduler, of the failure
    std::optional<Plan> next;  // all answers have the same
  };

  Result<NamedTensor*> find(const std::string& name);
  Status check(const NamedTensor& tensor, const PushPull& request) const;
  Status check_binding(const NamedTensor& tensor, const PushPull& request) const;
  static void count_round(Tensor& tensor, uint64_t step);
  void bind(Tensor& tensor, const PushPull& request);
  void refuse_round(NamedTensor& tensor, const Status& why, TableActions& actions);
  void tell_refused(const Tensor& tensor, RoundFailed failed, TableActions& actions) const;
  // Asks for places unless there are, or will be, enough for a tensor of this size.
  void ask_for_places(NamedTensor& tensor, DType dtype, uint64_t bytes, TableActions& actions);
  bool has_places(const Op& op) const;
  void start_partitions(Handle handle, Op& op, TableActions& actions);
  void take_failure(Op& op, const Status& why, TableActions& actions);
  void take_up(const Op& op, TableActions& actions);
  void finish(Handle handle, const Status& status, TableActions& actions);

  uint32_t rank_;
  Tree tree_;
  PartitionRule rule_;
  std::unordered_map<std::string, Tensor> tensors_;  // never erased from: ops point into it
  std::unordered_map<Handle, Op> ops_;
  Plan desired_plan_;  // of this rank
  Plan plan_;          // of what was started last
  Status failed_;
};

}  // namespace byteps::protocol
