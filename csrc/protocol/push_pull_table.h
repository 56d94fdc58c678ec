// A worker's tensors and its push_pulls in flight: from a name to partitions to a finished handle.
// Pure.
//
// A name is declared at its first use. The scheduler's answer (Placed) gives the root locations of
// its partitions and is stored; the name is declared again when a tensor has more partitions than
// any before. The caller carries out the actions and reports the outcome of each partition: exactly
// one complete() for every StartPartition. A handle finishes when all its partitions are complete,
// so that nobody accesses the tensor's memory any more; its status is the first failure. Failures
// name the tensor; those passed in need not.
//
// The n-th push_pulls of a name on all ranks (of a step, if the caller counts steps) form a round
// (protocol/rounds.h); contributions of different rounds are never summed. A refused push_pull
// counts, and fails for all ranks: the scheduler is told, which tells all services (RoundFailed,
// Refused), and so is the service of the first partition, which then knows the cause before this
// rank's next round arrives. If a partition fails, the scheduler lets the others fail, which may
// exist on one rank only. Stored tensors have no common rounds; there, a refused push_pull ends the
// name.
//
// The partitioning of a tensor, and where it is summed, follow the plan of its last results
// (protocol/plan.h). Each partition scale and placement of a name has its own root locations,
// requested as soon as the plan is known, so that the next push_pull rarely waits for them. Those
// of earlier placements are forgotten. Stored tensors keep their first partitioning and placement.
//
// Names that have not been used for long are forgotten, least recently used first, when there are
// many: so memory stays bounded if a program uses names once (docs/names.md). The scheduler is told
// the round and the plan (Forget), and returns them when this rank uses the name again (Placed). So
// other ranks need not forget it at the same time. Until the answer, rounds are counted from 0.
// When all ranks have forgotten a name in the same round, the scheduler and the services forget it,
// too (protocol/tensor_directory.h). A rank forgets no stored tensor, and none that is in flight or
// was refused for ever.
#pragma once

#include <compare>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "base/recently_dropped.h"
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
  // kSeed, kAccumulate; equal on all ranks and in all push_pulls of the tensor.
  uint8_t staleness = 0;
  Shape shape = {};
  // Step of training, as all ranks count it (protocol/rounds.h); 0: none. Always 0 for stored
  // tensors.
  uint64_t step = 0;

  TensorMode mode() const { return is_stored(op) ? TensorMode{true, staleness} : TensorMode{}; }
};

struct SendDeclare {
  Declare declare;
};
struct SendRoundFailed {
  RoundFailed failed;
};
struct SendForget {
  Forget forget;
};
// Push_pulls that start from now on follow another plan: use its credit.
struct ChangePlan {
  Plan plan;
};
struct StartPartition {
  Handle handle;
  Parent parent;
  DataHead head;    // complete except for the epoch
  uint64_t offset;  // bytes from the start of the tensor
};
// Sent instead of the contribution to this partition.
struct FailPartition {
  Parent parent;
  DataHead head;  // complete except for type, epoch and code
  Status why;     // names this rank
};
struct FinishHandle {
  Handle handle;
  Status status;
};
using TableAction = std::variant<SendDeclare, SendRoundFailed, SendForget, ChangePlan, StartPartition,
                                 FailPartition, FinishHandle>;
// Messages to the scheduler have to arrive in the order of the actions.
using TableActions = std::vector<TableAction>;

// When names are forgotten. A name weighs kNameWeight, and one for each of its root locations.
inline constexpr uint64_t kNameWeight = 8;
struct NameLimits {
  // Nothing is forgotten below this weight: 14,000 names of one partition, or 1,800 of 64.
  uint64_t least = 1 << 17;
  // The limit grows with names that come back after they were forgotten, up to this weight.
  uint64_t most = 1 << 20;
};

class PushPullTable {
 public:
  // `rule` must be equal on all nodes; `limits` need not.
  PushPullTable(uint32_t rank, Tree tree, const PartitionRule& rule, const NameLimits& limits = {});

  // Requests the placement of a tensor before its first use; not for stored tensors. Errors as
  // start().
  Status declare(const std::string& name, DType dtype, uint64_t bytes, TableActions& actions);

  // Starts a push_pull; `handle` is new. On an error nothing has started, but the round counts,
  // unless the name is invalid or unusable. kInvalidArgument: name empty or too long, in flight
  // already, or bound to another mode; root or step out of range; bytes that do not fit the dtype
  // or the shape; for stored tensors also another size or dtype. After fail(): the status given
  // there.
  Status start(Handle handle, const PushPull& request, TableActions& actions);
  // An adapter refused a push_pull of this name, in this step, with `why`: its round counts, and
  // fails for all ranks.
  void refuse(const std::string& name, uint64_t step, const Status& why, TableActions& actions);

  // The scheduler's answer to a Declare. kDataLoss if it fits no request (the caller closes the
  // connection to the scheduler).
  Status on_placed(const Placed& placed, TableActions& actions);
  // If all rounds are refused, every later start fails. A push_pull whose partitions are in flight
  // continues until they are complete: the services fail them. Does nothing for single rounds,
  // which the services fail, for unknown tensors, and for tensors that were refused before.
  void on_refused(const Refused& refused, TableActions& actions);

  // The partition of a StartPartition is complete: the result had this plan, or it has failed.
  // Nobody accesses its memory any more.
  void complete(Handle handle, const Result<Plan>& outcome, TableActions& actions);
  // A description of a wait for the handle: "push_pull of 'w'"; empty if it is not in flight.
  std::string name_wait(Handle handle) const;

  // The partition scale and credit, and the placement, that this rank requests from its next start
  // on. Effective on rank 0 only.
  void ask_for(const Plan& plan) {
    desired_plan_.partition_scale = plan.partition_scale;
    desired_plan_.credit = plan.credit;
  }
  void ask_for_placement(uint8_t placement) { desired_plan_.placement = placement; }
  // A server has come: later placements may name it.
  void add_server(const NodeInfo& server) { tree_.add(server); }

  // The job has ended: push_pulls that wait for a placement finish with `why` (not ok), and so does
  // every later start. The caller completes the partitions that were started. Later calls are
  // ignored.
  void fail(const Status& why, TableActions& actions);

  size_t in_flight() const { return ops_.size(); }
  // Number of names that are not forgotten.
  size_t names() const { return tensors_.size(); }

 private:
  // What a plan says about locations.
  struct Where {
    uint8_t partition_scale = 0;
    uint8_t placement = 0;
    auto operator<=>(const Where&) const = default;
  };
  struct Placement {
    std::vector<RootLocation> locations;  // indexed by partition
    uint32_t requested = 0;               // number of locations requested
    uint32_t unanswered = 0;              // number of Declares without an answer
  };
  // Fixed for the whole job.
  struct Binding {
    TensorMode mode;
    DType dtype;     // only if stored
    uint64_t bytes;  // only if stored
  };
  struct Tensor;
  using NamedTensor = std::pair<const std::string, Tensor>;
  using TensorList = std::list<NamedTensor*>;
  struct Tensor {
    uint64_t number = 0;             // 0: unknown, and rounds count from 0
    std::optional<Binding> binding;  // set by the first valid use
    Status refusal;
    uint64_t round = 0;  // round of the last push_pull
    uint64_t calls = 0;  // number of push_pulls while `number` is 0
    std::map<Where, Placement> placements;
    Where where;               // of the current or next push_pull
    std::optional<Plan> plan;  // plan of the last result
    Handle in_flight = 0;      // 0: none
    // Sent when the push_pull in flight, which is not affected, has finished.
    std::optional<RoundFailed> refused;
    TensorList::iterator place;  // in idle_ or kept_
    bool is_idle = true;         // in idle_
    bool came_back = false;      // after it was forgotten
    uint64_t weight = 0;
  };
  struct Op {
    NamedTensor* tensor = nullptr;
    uint64_t calls = 0;  // that of the tensor, at its start
    DataHead head;       // of all partitions, except for what differs between them or is not known yet
    Partitioning partitioning;
    uint64_t open_partitions = 0;  // partitions to be completed; 0: waits for its placement
    Status failure;
    bool told = false;         // the scheduler knows of the failure
    std::optional<Plan> next;  // equal in all results
  };

  Result<NamedTensor*> find(const std::string& name);
  Status check(const NamedTensor& tensor, const PushPull& request) const;
  Status check_binding(const NamedTensor& tensor, const PushPull& request) const;
  static void count_round(Tensor& tensor, uint64_t step);
  // Whether the tensor is never forgotten.
  static bool is_permanent(const Tensor& tensor);
  static void bind(Tensor& tensor, const PushPull& request);
  void refuse_round(NamedTensor& tensor, const Status& why, TableActions& actions);
  void tell_refused(const Tensor& tensor, RoundFailed failed, TableActions& actions) const;
  // Requests locations, unless enough for a tensor of this size are known or requested.
  void request_locations(NamedTensor& tensor, DType dtype, uint64_t bytes, TableActions& actions);
  bool has_locations(const Op& op) const;
  // The first answer of the scheduler: this rank may have forgotten the name before.
  void resume(NamedTensor& tensor, const Placed& placed, TableActions& actions);
  // To be called after each change and each use of a tensor.
  void note_use(NamedTensor& tensor);
  void weigh(Tensor& tensor);
  void forget_idle(TableActions& actions);
  void start_partitions(Handle handle, Op& op, TableActions& actions);
  void take_failure(Op& op, const Status& why, TableActions& actions);
  void take_up(const Op& op, TableActions& actions);
  static void forget_other_placements(Tensor& tensor);
  void finish(Handle handle, const Status& status, TableActions& actions);

  uint32_t rank_;
  Tree tree_;
  PartitionRule rule_;
  std::unordered_map<std::string, Tensor> tensors_;  // ops and lists point into it
  TensorList idle_;                                  // may be forgotten; least recently used first
  TensorList kept_;                                  // may not
  uint64_t weight_ = 0;                              // of all tensors
  uint64_t limit_;                                   // of weight_
  uint64_t most_;                                    // of limit_
  RecentlyDropped forgotten_{1 << 16};
  std::unordered_map<Handle, Op> ops_;
  Plan desired_plan_;  // requested by this rank
  Plan plan_;          // plan of the last push_pull started
  Status failed_;
};

}  // namespace byteps::protocol
