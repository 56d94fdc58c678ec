#include "protocol/push_pull_table.h"

#include <algorithm>
#include <functional>
#include <tuple>

#include "base/check.h"
#include "protocol/rounds.h"

namespace byteps::protocol {
namespace {

// A call forgets no more names, because it must not take long.
constexpr size_t kForgetAtOnce = 64;

std::string quoted(const std::string& name) { return "tensor '" + name + "'"; }

}  // namespace

PushPullTable::PushPullTable(uint32_t rank, Tree tree, const PartitionRule& rule, const NameLimits& limits)
    : rank_(rank), tree_(std::move(tree)), rule_(rule), limit_(limits.least), most_(limits.most) {}

Status PushPullTable::declare(const std::string& name, DType dtype, uint64_t bytes, TableActions& actions) {
  Result<NamedTensor*> found = find(name);
  if (!found) return found.status();
  const PushPull request{.name = {}, .dtype = dtype, .bytes = bytes};
  BPS_RETURN_IF_ERROR(check_binding(**found, request));
  BPS_RETURN_IF_ERROR(check_tensor_bytes(bytes, dtype).with_context(quoted(name)));
  bind((*found)->second, request);
  request_locations(**found, dtype, bytes, actions);
  note_use(**found);
  forget_idle(actions);
  return Status::ok();
}

Status PushPullTable::start(Handle handle, const PushPull& request, TableActions& actions) {
  Result<NamedTensor*> found = find(request.name);
  if (!found) return found.status();
  Tensor& tensor = (*found)->second;
  count_round(tensor, request.step);  // not when the placement arrives: all ranks must count alike
  if (Status why = check(**found, request); !why.is_ok()) {
    refuse_round(**found, why, actions);
    note_use(**found);
    forget_idle(actions);
    return why;
  }
  bind(tensor, request);
  auto [entry, is_new] = ops_.try_emplace(handle);
  BPS_CHECK(is_new && handle != 0) << "handle " << handle;
  Op& op = entry->second;
  op.tensor = *found;
  op.calls = tensor.calls;
  const bool stored = is_stored(request.op);
  const bool has_root = stored || request.op == ReduceOp::kBroadcast;
  op.head = {.type = DataType::kPushPull,
             .dtype = request.dtype,
             .op = request.op,
             .staleness = stored ? request.staleness : uint8_t{0},
             .round = tensor.round,
             .rank = rank_,
             .priority = request.priority,
             .root = has_root ? request.root : 0,
             .shape = request.shape};
  op.partitioning = rule_.partition(request.bytes, tensor.where.partition_scale);
  tensor.in_flight = handle;
  request_locations(**found, request.dtype, request.bytes, actions);
  if (has_locations(op)) start_partitions(handle, op, actions);
  note_use(**found);
  forget_idle(actions);
  return Status::ok();
}

void PushPullTable::refuse(const std::string& name, uint64_t step, const Status& why, TableActions& actions) {
  Result<NamedTensor*> found = find(name);
  if (!found) return;
  count_round((*found)->second, step);
  refuse_round(**found, why, actions);
  note_use(**found);
  forget_idle(actions);
}

Result<PushPullTable::NamedTensor*> PushPullTable::find(const std::string& name) {
  BPS_RETURN_IF_ERROR(failed_);
  if (name.empty() || name.size() > kMaxNameBytes) {
    return invalid_argument("name of a tensor: expected 1 to " + std::to_string(kMaxNameBytes) +
                            " bytes, got " + std::to_string(name.size()));
  }
  const auto [found, is_new] = tensors_.try_emplace(name);
  NamedTensor& named = *found;
  if (is_new) {
    named.second.place = idle_.insert(idle_.end(), &named);
    named.second.came_back = forgotten_.take(std::hash<std::string>()(name));
    note_use(named);
  }
  BPS_RETURN_IF_ERROR(named.second.refusal);
  return &named;
}

void PushPullTable::note_use(NamedTensor& named) {
  Tensor& tensor = named.second;
  const auto waits = [](const auto& placement) { return placement.second.unanswered > 0; };
  const bool is_idle =
      tensor.in_flight == 0 && !is_permanent(tensor) && std::ranges::none_of(tensor.placements, waits);
  TensorList& from = tensor.is_idle ? idle_ : kept_;
  TensorList& to = is_idle ? idle_ : kept_;
  to.splice(to.end(), from, tensor.place);
  tensor.is_idle = is_idle;
  weigh(tensor);
}

bool PushPullTable::is_permanent(const Tensor& tensor) {
  return (tensor.binding && tensor.binding->mode.stored) || !tensor.refusal.is_ok();
}

// What is never forgotten leaves the room to the others.
void PushPullTable::weigh(Tensor& tensor) {
  uint64_t weight = is_permanent(tensor) ? 0 : kNameWeight;
  for (const auto& [scale, placement] : tensor.placements)
    weight += weight == 0 ? 0 : placement.locations.size();
  if (tensor.came_back && weight > tensor.weight)
    limit_ = std::min(limit_ + weight - tensor.weight, std::max(limit_, most_));
  weight_ += weight - tensor.weight;
  tensor.weight = weight;
}

// Some more than necessary, so that there is one message for many names.
void PushPullTable::forget_idle(TableActions& actions) {
  if (weight_ <= limit_ || !failed_.is_ok()) return;
  Forget forget;
  for (size_t i = 0; i < kForgetAtOnce && !idle_.empty() && weight_ > limit_ - limit_ / 8; ++i) {
    const auto& [name, tensor] = *idle_.front();
    const bool is_unused = tensor.number == 0 && tensor.calls == 0;  // nobody knows it
    if (!is_unused) forget.names.push_back({name, tensor.round, tensor.calls, tensor.plan.value_or(Plan{})});
    forgotten_.add(std::hash<std::string>()(name));
    weight_ -= tensor.weight;
    idle_.pop_front();
    tensors_.erase(tensors_.find(name));
  }
  if (!forget.names.empty()) actions.emplace_back(SendForget{std::move(forget)});
}

Status PushPullTable::check(const NamedTensor& named, const PushPull& request) const {
  const std::string tensor = quoted(named.first);
  const bool has_root = request.op == ReduceOp::kBroadcast || is_stored(request.op);
  if (has_root && request.root >= tree_.num_workers()) {
    return invalid_argument(tensor + ": root: expected a rank below " + std::to_string(tree_.num_workers()) +
                            ", got " + std::to_string(request.root));
  }
  BPS_RETURN_IF_ERROR(check_tensor_bytes(request.bytes, request.dtype).with_context(tensor));
  if (request.shape.is_known() && request.shape.elements() * size_of(request.dtype) != request.bytes) {
    return invalid_argument(tensor + ": shape: expected one of " +
                            describe_elements(request.bytes, request.dtype) + ", got " +
                            request.shape.describe());
  }
  if (request.step > kMaxStep) {
    return invalid_argument(tensor + ": step: expected at most " + std::to_string(kMaxStep) + ", got " +
                            std::to_string(request.step));
  }
  if (named.second.in_flight != 0)
    return invalid_argument(tensor + ": a push_pull of it is in flight already");
  return check_binding(named, request);
}

Status PushPullTable::check_binding(const NamedTensor& named, const PushPull& request) const {
  const auto& [name, tensor] = named;
  if (!tensor.binding) return Status::ok();
  const Binding& binding = *tensor.binding;
  if (binding.mode != request.mode()) {
    return invalid_argument(quoted(name) + ": this rank " + describe(binding.mode) + " so far, now it " +
                            describe(request.mode()));
  }
  if (!binding.mode.stored || (binding.dtype == request.dtype && binding.bytes == request.bytes))
    return Status::ok();
  return invalid_argument(quoted(name) + ": services store " +
                          describe_elements(binding.bytes, binding.dtype) + ", now it has " +
                          describe_elements(request.bytes, request.dtype));
}

// check() refuses steps out of range.
void PushPullTable::count_round(Tensor& tensor, uint64_t step) {
  if (tensor.number == 0) ++tensor.calls;
  tensor.round = next_round(tensor.round, step <= kMaxStep ? step : 0);
}

void PushPullTable::bind(Tensor& tensor, const PushPull& request) {
  if (!tensor.binding) tensor.binding = Binding{request.mode(), request.dtype, request.bytes};
}

void PushPullTable::refuse_round(NamedTensor& named, const Status& why, TableActions& actions) {
  auto& [name, tensor] = named;
  RoundFailed failed{name, tensor.round, true, why.code(), why.message(), tensor.calls};
  const bool is_stored = tensor.binding && tensor.binding->mode.stored;
  if (is_stored) std::tie(failed.round, failed.calls) = std::pair(kEveryRound, 0);
  if (is_stored || tensor.in_flight == 0) return tell_refused(tensor, std::move(failed), actions);
  if (tensor.refused) failed.text = std::move(tensor.refused->text);
  tensor.refused = std::move(failed);
}

void PushPullTable::tell_refused(const Tensor& tensor, RoundFailed failed, TableActions& actions) const {
  const auto placement = tensor.placements.find(tensor.where);
  if (failed.round != kEveryRound && placement != tensor.placements.end() &&
      !placement->second.locations.empty()) {
    const RootLocation& location = placement->second.locations[0];
    const DataHead head{.key = {key_tensor(tensor.number, tensor.where.partition_scale), 0},
                        .round = failed.round,
                        .rank = rank_,
                        .root_node = static_cast<uint16_t>(tree_.root(location)),
                        .serving_index = location.serving_index};
    const Status why(failed.code, tree_.describe(rank_) + ": " + failed.text);
    actions.emplace_back(FailPartition{tree_.parent_of(rank_, location), head, why});
  }
  actions.emplace_back(SendRoundFailed{std::move(failed)});
}

void PushPullTable::request_locations(NamedTensor& named, DType dtype, uint64_t bytes,
                                      TableActions& actions) {
  auto& [name, tensor] = named;
  Placement& placement = tensor.placements[tensor.where];
  const uint32_t count = rule_.partition(bytes, tensor.where.partition_scale).count();
  if (placement.requested >= count) return;
  placement.requested = count;
  ++placement.unanswered;
  const auto [partition_scale, where] = tensor.where;
  actions.emplace_back(
      SendDeclare{Declare{name, dtype, bytes, partition_scale, tensor.binding->mode, where}});
}

bool PushPullTable::has_locations(const Op& op) const {
  const Tensor& tensor = op.tensor->second;
  return tensor.placements.at(tensor.where).locations.size() >= op.partitioning.count();
}

void PushPullTable::start_partitions(Handle handle, Op& op, TableActions& actions) {
  const Tensor& tensor = op.tensor->second;
  if (tensor.plan && *tensor.plan != plan_) {
    plan_ = *tensor.plan;
    actions.emplace_back(ChangePlan{plan_});
  }
  const bool stored = is_stored(op.head.op);
  DataHead head = op.head;
  if (!stored) head.plan = desired_plan_;
  head.key.tensor = key_tensor(tensor.number, tensor.where.partition_scale);
  op.open_partitions = op.partitioning.count();
  actions.reserve(actions.size() + op.open_partitions);
  const std::vector<RootLocation>& locations = tensor.placements.at(tensor.where).locations;
  for (uint32_t p = 0; p < op.partitioning.count(); ++p) {
    const RootLocation& location = locations[p];
    head.key.partition = p;
    head.bytes = op.partitioning.size(p);
    head.root_node = static_cast<uint16_t>(tree_.root(location));
    head.serving_index = location.serving_index;
    const Parent parent = stored ? tree_.parameter_store_of(location) : tree_.parent_of(rank_, location);
    actions.push_back(StartPartition{handle, parent, head, op.partitioning.offset(p)});
  }
}

Status PushPullTable::on_placed(const Placed& placed, TableActions& actions) {
  const std::string what = "placement of " + quoted(placed.name);
  const auto found = tensors_.find(placed.name);
  const bool known = found != tensors_.end() && found->second.refusal.is_ok();
  const Where where{placed.partition_scale, placed.placement};
  const auto placement =
      known ? found->second.placements.find(where) : decltype(found->second.placements.begin()){};
  if (!known || placement == found->second.placements.end() || placement->second.unanswered == 0)
    return data_loss(what + ", which was not requested");
  Tensor& tensor = found->second;
  auto& [locations, requested, unanswered] = placement->second;
  if (placed.tensor == 0 || (tensor.number != 0 && placed.tensor != tensor.number)) {
    return data_loss(what + ": expected number " + std::to_string(tensor.number) + ", got " +
                     std::to_string(placed.tensor));
  }
  const size_t least = unanswered == 1 ? requested : std::max<size_t>(1, locations.size());
  if (placed.locations.size() < least) {
    return data_loss(what + ": expected at least " + std::to_string(least) + " locations, got " +
                     std::to_string(placed.locations.size()));
  }
  for (const RootLocation& location : placed.locations)
    BPS_RETURN_IF_ERROR(tree_.check(location).with_context(what));
  locations = placed.locations;
  requested = std::max(requested, static_cast<uint32_t>(locations.size()));
  --unanswered;
  if (tensor.number == 0) resume(*found, placed, actions);
  if (tensor.in_flight != 0 && tensor.where == where) {
    Op& op = ops_.at(tensor.in_flight);
    if (op.open_partitions == 0 && has_locations(op)) start_partitions(tensor.in_flight, op, actions);
  }
  note_use(*found);
  forget_idle(actions);
  return Status::ok();
}

void PushPullTable::resume(NamedTensor& named, const Placed& placed, TableActions& actions) {
  Tensor& tensor = named.second;
  tensor.number = placed.tensor;
  tensor.round = resumed_round(placed.round, tensor.round, tensor.calls);
  if (tensor.refused)
    tensor.refused->round = resumed_round(placed.round, tensor.refused->round, tensor.refused->calls);
  if (tensor.refused) tensor.refused->calls = 0;
  tensor.calls = 0;
  if (placed.plan != Plan{}) tensor.plan = placed.plan;
  tensor.where = {placed.plan.partition_scale, placed.plan.placement};
  if (tensor.in_flight == 0) return;
  Op& op = ops_.at(tensor.in_flight);
  op.head.round = resumed_round(placed.round, op.head.round, op.calls);
  op.partitioning = rule_.partition(op.partitioning.bytes, tensor.where.partition_scale);
  request_locations(named, op.head.dtype, op.partitioning.bytes, actions);
}

void PushPullTable::on_refused(const Refused& refused, TableActions& actions) {
  auto found = tensors_.find(refused.name);
  if (refused.round != kEveryRound || found == tensors_.end() || !found->second.refusal.is_ok()) return;
  Tensor& tensor = found->second;
  const bool waits = tensor.in_flight != 0 && ops_.at(tensor.in_flight).open_partitions == 0;
  Status why(refused.code, refused.text);
  tensor.refusal = why.with_context(quoted(refused.name));
  if (waits) finish(tensor.in_flight, why, actions);
  note_use(*found);
}

std::string PushPullTable::name_wait(Handle handle) const {
  const auto found = ops_.find(handle);
  return found == ops_.end() ? "" : "push_pull of '" + found->second.tensor->first + "'";
}

void PushPullTable::complete(Handle handle, const Result<Plan>& outcome, TableActions& actions) {
  auto found = ops_.find(handle);
  BPS_CHECK(found != ops_.end() && found->second.open_partitions > 0)
      << "handle " << handle << " has no open partition";
  Op& op = found->second;
  --op.open_partitions;
  if (outcome) op.next = *outcome;
  if (!outcome) take_failure(op, outcome.status(), actions);
  if (op.open_partitions > 0) return;
  if (op.next && !is_stored(op.head.op)) take_up(op, actions);
  finish(handle, op.failure, actions);
}

void PushPullTable::take_failure(Op& op, const Status& why, TableActions& actions) {
  // kAborted only says that others have gone on (protocol/aggregation.h); prefer the cause, which
  // another partition may report.
  if (op.failure.is_ok() || (op.failure.code() == StatusCode::kAborted && why.code() != StatusCode::kAborted))
    op.failure = why;
  if (op.open_partitions == 0 || op.told || is_stored(op.head.op) || !failed_.is_ok()) return;
  op.told = true;
  actions.emplace_back(
      SendRoundFailed{RoundFailed{op.tensor->first, op.head.round, false, why.code(), why.message()}});
}

// If all partitions have failed the plan stays the same, on all ranks.
void PushPullTable::take_up(const Op& op, TableActions& actions) {
  Tensor& tensor = op.tensor->second;
  tensor.plan = op.next;
  tensor.where = {op.next->partition_scale, op.next->placement};
  forget_other_placements(tensor);
  if (failed_.is_ok()) request_locations(*op.tensor, op.head.dtype, op.partitioning.bytes, actions);
}

// Those that the scheduler has yet to answer stay until it has.
void PushPullTable::forget_other_placements(Tensor& tensor) {
  std::erase_if(tensor.placements, [&tensor](const auto& each) {
    return each.first.placement != tensor.where.placement && each.second.unanswered == 0;
  });
}

void PushPullTable::fail(const Status& why, TableActions& actions) {
  BPS_CHECK(!why.is_ok()) << "a job ends for a reason";
  if (!failed_.is_ok()) return;
  failed_ = why;
  std::vector<Handle> waiting;
  for (const auto& [handle, op] : ops_) {
    if (op.open_partitions == 0) waiting.push_back(handle);
  }
  std::sort(waiting.begin(), waiting.end());
  for (Handle handle : waiting) finish(handle, why, actions);
}

void PushPullTable::finish(Handle handle, const Status& status, TableActions& actions) {
  auto found = ops_.find(handle);
  auto& [name, tensor] = *found->second.tensor;
  tensor.in_flight = 0;
  actions.emplace_back(FinishHandle{handle, status.with_context(quoted(name))});
  NamedTensor& named = *found->second.tensor;
  ops_.erase(found);
  if (tensor.refused && failed_.is_ok()) tell_refused(tensor, std::move(*tensor.refused), actions);
  tensor.refused.reset();
  note_use(named);
}

}  // namespace byteps::protocol
