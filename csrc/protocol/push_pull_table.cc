#include "protocol/push_pull_table.h"

#include <algorithm>

#include "base/check.h"

namespace byteps::protocol {
namespace {

std::string quoted(const std::string& name) { return "tensor '" + name + "'"; }

}  // namespace

PushPullTable::PushPullTable(uint32_t rank, Tree tree) : rank_(rank), tree_(std::move(tree)) {}

Status PushPullTable::declare(const std::string& name, DType dtype, uint64_t bytes, TableActions& actions) {
  return find_or_declare(name, dtype, bytes, Upkeep{}, actions).status();
}

Status PushPullTable::start(Handle handle, const PushPull& request, TableActions& actions) {
  const bool has_root = request.op == ReduceOp::kBroadcast || is_kept(request.op);
  if (has_root && request.root >= tree_.num_workers()) {
    return invalid_argument(quoted(request.name) + ": root: expected a rank below " +
                            std::to_string(tree_.num_workers()) + ", got " + std::to_string(request.root));
  }
  Result<NamedTensor*> found =
      find_or_declare(request.name, request.dtype, request.bytes, request.upkeep(), actions);
  if (!found) return found.status();
  Tensor& tensor = (*found)->second;
  if (tensor.in_flight != 0) {
    return invalid_argument(quoted(request.name) + ": a push_pull of it is in flight already");
  }
  auto [entry, is_new] = ops_.try_emplace(handle);
  BPS_CHECK(is_new && handle != 0) << "handle " << handle;
  Op& op = entry->second;
  op.tensor = *found;
  op.op = request.op;
  op.root = has_root ? request.root : 0;
  op.priority = request.priority;
  tensor.in_flight = handle;
  Placement& placement = tensor.placements.at(tensor.cut);
  ++placement.round;  // here, not when the placement comes: all ranks count the same
  if (placement.id != 0) start_partitions(op, actions);
  return Status::ok();
}

Result<PushPullTable::NamedTensor*> PushPullTable::find_or_declare(const std::string& name, DType dtype,
                                                                   uint64_t bytes, const Upkeep& upkeep,
                                                                   TableActions& actions) {
  BPS_RETURN_IF_ERROR(failed_);
  auto found = tensors_.find(name);
  if (found != tensors_.end()) {
    const Tensor& tensor = found->second;
    BPS_RETURN_IF_ERROR(tensor.refusal);
    if (tensor.dtype == dtype && tensor.bytes == bytes) {
      if (tensor.upkeep == upkeep) return &*found;
      return invalid_argument(quoted(name) + ": this rank " + describe(tensor.upkeep) + " so far, and now " +
                              describe(upkeep));
    }
    return invalid_argument(quoted(name) + ": declared with " +
                            describe_elements(tensor.bytes, tensor.dtype) + " before, now used with " +
                            describe_elements(bytes, dtype));
  }
  if (name.empty() || name.size() > kMaxNameBytes) {
    return invalid_argument("name of a tensor: expected 1 to " + std::to_string(kMaxNameBytes) +
                            " bytes, got " + std::to_string(name.size()));
  }
  BPS_RETURN_IF_ERROR(check_tensor_bytes(bytes, dtype).with_context(quoted(name)));
  auto added = tensors_.try_emplace(name).first;
  added->second.dtype = dtype;
  added->second.bytes = bytes;
  added->second.upkeep = upkeep;
  added->second.placements[0];
  actions.push_back(SendDeclare{Declare{.name = name, .dtype = dtype, .bytes = bytes, .upkeep = upkeep}});
  return &*added;
}

void PushPullTable::start_partitions(Op& op, TableActions& actions) {
  const Tensor& tensor = op.tensor->second;
  const Placement& placement = tensor.placements.at(tensor.cut);
  if (tensor.plan && *tensor.plan != plan_) {
    plan_ = *tensor.plan;
    actions.emplace_back(ChangePlan{plan_});
  }
  DataHead head;
  head.type = DataType::kPushPull;
  if (!tensor.upkeep.kept) head.plan = wish_;
  head.dtype = tensor.dtype;
  head.op = op.op;
  head.staleness = tensor.upkeep.staleness;
  head.key.tensor = placement.id;
  head.round = placement.round;
  head.rank = rank_;
  head.priority = op.priority;
  head.root = op.root;
  op.unsettled = placement.places.size();
  actions.reserve(actions.size() + placement.places.size());
  for (uint32_t p = 0; p < placement.places.size(); ++p) {
    const Place& place = placement.places[p];
    head.key.partition = p;
    head.bytes = placement.partitioning.size(p);
    head.top = static_cast<uint16_t>(tree_.root(place));
    head.lane = tree_.lane(place);
    const Parent parent = tensor.upkeep.kept ? tree_.keeper_of(place) : tree_.parent_of(rank_, place);
    actions.push_back(StartPartition{tensor.in_flight, parent, head, placement.partitioning.offset(p)});
  }
}

Status PushPullTable::check_placement(const Tensor& tensor, const Placed& placed) const {
  if (placed.partition_bytes == 0 || placed.partition_bytes % size_of(tensor.dtype) != 0 ||
      tensor.bytes / placed.partition_bytes > kMaxPartitions) {
    return data_loss("partitions of " + std::to_string(placed.partition_bytes) + " bytes do not fit " +
                     describe_elements(tensor.bytes, tensor.dtype));
  }
  uint32_t count = Partitioning{tensor.bytes, placed.partition_bytes}.count();
  if (placed.places.size() != count) {
    return data_loss("expected a place for each of " + std::to_string(count) + " partitions, got " +
                     std::to_string(placed.places.size()));
  }
  for (const Place& place : placed.places) BPS_RETURN_IF_ERROR(tree_.check(place));
  return Status::ok();
}

Status PushPullTable::on_placed(const Placed& placed, TableActions& actions) {
  auto found = tensors_.find(placed.name);
  const auto asked_for = [&](const Tensor& tensor) {
    const auto placement = tensor.placements.find(placed.cut);
    return tensor.refusal && placement != tensor.placements.end() && placement->second.id == 0;
  };
  if (found == tensors_.end() || placed.tensor == 0 || !asked_for(found->second)) {
    return data_loss("placement of " + quoted(placed.name) + ", which was not asked for");
  }
  Tensor& tensor = found->second;
  BPS_RETURN_IF_ERROR(check_placement(tensor, placed).with_context("placement of " + quoted(placed.name)));
  Placement& placement = tensor.placements.at(placed.cut);
  placement.id = placed.tensor;
  placement.partitioning = {tensor.bytes, placed.partition_bytes};
  placement.places = placed.places;
  if (tensor.in_flight != 0 && tensor.cut == placed.cut) start_partitions(ops_.at(tensor.in_flight), actions);
  return Status::ok();
}

void PushPullTable::on_refused(const Refused& refused, TableActions& actions) {
  auto found = tensors_.find(refused.name);
  if (found == tensors_.end() || !found->second.refusal) return;
  Tensor& tensor = found->second;
  const bool waits = tensor.in_flight != 0 && ops_.at(tensor.in_flight).unsettled == 0;
  Status why(refused.code, refused.text);
  tensor.refusal = why.with_context(quoted(refused.name));
  if (waits) finish(tensor.in_flight, why, actions);
}

std::string PushPullTable::name_wait(Handle handle) const {
  const auto found = ops_.find(handle);
  return found == ops_.end() ? "" : "push_pull of '" + found->second.tensor->first + "'";
}

void PushPullTable::settle(Handle handle, const Result<Plan>& outcome, TableActions& actions) {
  auto found = ops_.find(handle);
  BPS_CHECK(found != ops_.end() && found->second.unsettled > 0)
      << "handle " << handle << " waits for no partition";
  Op& op = found->second;
  if (outcome) op.next = *outcome;
  if (op.first_failure.is_ok()) op.first_failure = outcome.status();
  if (--op.unsettled > 0) return;
  if (op.next && !op.tensor->second.upkeep.kept) take_up(*op.tensor, *op.next, actions);
  finish(handle, op.first_failure, actions);
}

uint8_t PushPullTable::cut_for(const Tensor& tensor, const Plan& plan) {
  const uint64_t first_bytes = tensor.placements.at(0).partitioning.partition_bytes;
  const Result<Partitioning> other =
      partition_tensor(tensor.bytes, tensor.dtype, cut_bytes(plan.cut, first_bytes));
  return other && other->partition_bytes != first_bytes ? plan.cut : 0;
}

// What has failed altogether keeps the plan that it has, on all ranks.
void PushPullTable::take_up(NamedTensor& named, const Plan& plan, TableActions& actions) {
  Tensor& tensor = named.second;
  tensor.plan = plan;
  tensor.cut = cut_for(tensor, plan);
  const bool is_new = tensor.placements.try_emplace(tensor.cut).second;
  if (is_new && failed_)
    actions.push_back(SendDeclare{Declare{named.first, tensor.dtype, tensor.bytes, tensor.cut}});
}

void PushPullTable::fail(const Status& why, TableActions& actions) {
  BPS_CHECK(!why.is_ok()) << "a job ends for a reason";
  if (!failed_) return;
  failed_ = why;
  std::vector<Handle> waiting;
  for (const auto& [handle, op] : ops_) {
    if (op.unsettled == 0) waiting.push_back(handle);
  }
  std::sort(waiting.begin(), waiting.end());
  for (Handle handle : waiting) finish(handle, why, actions);
}

void PushPullTable::finish(Handle handle, const Status& status, TableActions& actions) {
  auto found = ops_.find(handle);
  NamedTensor& tensor = *found->second.tensor;
  tensor.second.in_flight = 0;
  actions.push_back(FinishHandle{handle, status.with_context(quoted(tensor.first))});
  ops_.erase(found);
}

}  // namespace byteps::protocol
