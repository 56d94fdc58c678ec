// A worker's tensors and the push_pulls in flight: from a name to partitions to a finished handle. Pure.
//
// A tensor is declared at its first use; the scheduler's answer (Placed) says where its partitions go and is kept.
// The caller sends what the actions say and reports back what became of each partition: exactly one settle() for
// every StartPartition. A handle finishes when all its partitions are settled, so that nobody touches the tensor's
// memory any more, with the first failure among them. Failures name the tensor; those passed in need not.
#pragma once

#include <cstdint>
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
};

struct SendDeclare {
  Declare declare;
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
using TableAction = std::variant<SendDeclare, StartPartition, FinishHandle>;
using TableActions = std::vector<TableAction>;

class PushPullTable {
 public:
  PushPullTable(uint32_t rank, Tree tree);

  // Asks for the tensor's placement ahead of use. Errors as of start.
  Status declare(const std::string& name, DType dtype, uint64_t bytes, TableActions& actions);

  // Begins a push_pull; `handle` is new. On an error nothing has begun: kInvalidArgument (name empty or too long, in
  // flight already, bound to another dtype or size, root out of range, bytes no multiple of the element size), or
  // what fail() was given.
  Status start(Handle handle, const PushPull& request, TableActions& actions);

  // The scheduler's answer. One that fits nothing asked for: kDataLoss (the caller drops the scheduler).
  Status on_placed(const Placed& placed, TableActions& actions);
  // Every later start fails. A push_pull whose partitions are on their way goes on until they are settled: the
  // services fail them. Nothing to do for a tensor that this rank has not asked for, or that is refused already.
  void on_refused(const Refused& refused, TableActions& actions);

  // The partition of a StartPartition is done (ok) or has failed; nobody uses its memory any more.
  void settle(Handle handle, const Status& status, TableActions& actions);

  // The job has ended: what waits for a placement finishes with `why` (ok is not allowed), so does every later
  // start. Partitions that were started are settled by the caller. The first `why` stays.
  void fail(const Status& why, TableActions& actions);

  size_t in_flight() const { return ops_.size(); }

 private:
  enum class TensorState : uint8_t { kDeclaring, kPlaced, kRefused };
  struct Tensor {
    TensorState state = TensorState::kDeclaring;
    DType dtype = DType::kFloat32;
    uint64_t bytes = 0;
    uint32_t id = 0;
    Partitioning partitioning;
    std::vector<Place> places;  // by partition
    Status refusal;
    uint32_t round = 0;
    Handle in_flight = 0;  // 0: none
  };
  using NamedTensor = std::pair<const std::string, Tensor>;
  struct Op {
    NamedTensor* tensor = nullptr;
    ReduceOp op = ReduceOp::kSum;
    uint32_t root = 0;
    int32_t priority = 0;
    uint64_t unsettled = 0;
    Status first_failure;
  };

  Result<NamedTensor*> find_or_declare(const std::string& name, DType dtype, uint64_t bytes,
                                       TableActions& actions);
  Status check_placement(const Tensor& tensor, const Placed& placed) const;
  void start_partitions(Op& op, TableActions& actions);
  void finish(Handle handle, const Status& status, TableActions& actions);

  uint32_t rank_;
  Tree tree_;
  std::unordered_map<std::string, Tensor> tensors_;  // never erased from: ops point into it
  std::unordered_map<Handle, Op> ops_;
  Status failed_;
};

}  // namespace byteps::protocol
