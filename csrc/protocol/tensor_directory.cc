#include "protocol/tensor_directory.h"

#include <algorithm>
#include <utility>

#include "protocol/partition.h"
#include "protocol/rounds.h"

namespace byteps::protocol {
namespace {

Refused refusal(const std::string& name, uint64_t tensor, const Status& why) {
  return {.name = name, .tensor = tensor, .code = why.code(), .text = why.message()};
}

}  // namespace

TensorDirectory::TensorDirectory(std::vector<std::string> describe_rank, RootAssigner assigner,
                                 PartitionRule partition_rule, size_t max_tensors)
    : describe_rank_(std::move(describe_rank)),
      unused_assigner_(std::move(assigner)),
      partition_rule_(partition_rule),
      max_tensors_(max_tensors) {}

TensorDirectory::Answer TensorDirectory::declare(uint32_t rank, const Declare& declare) {
  if (Status fault = check_tensor_bytes(declare.bytes, declare.dtype); !fault.is_ok())
    return {refusal(declare.name, 0, fault)};
  Tensor* const tensor = find_or_bind(declare.name, rank);
  if (tensor == nullptr) {
    return {refusal(declare.name, 0,
                    invalid_argument("expected at most " + std::to_string(max_tensors_) +
                                     " names in use at the same time"))};
  }
  if (!tensor->conflict.is_ok()) return {refusal(declare.name, tensor->number, tensor->conflict)};
  if (!tensor->first) tensor->first = {rank, declare.dtype, declare.bytes, declare.mode};
  tensor->conflict = agrees(*tensor->first, rank, declare);
  if (!tensor->conflict.is_ok()) return {refusal(declare.name, tensor->number, tensor->conflict), true};
  return {place(*tensor, rank, declare)};
}

TensorDirectory::Tensor* TensorDirectory::find_or_bind(const std::string& name, uint32_t rank) {
  auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    if (tensors_.size() >= max_tensors_) return nullptr;
    found = tensors_.try_emplace(name).first;
    found->second.number = ++last_number_;
    names_[last_number_] = &found->first;
  }
  found->second.users.insert(rank);
  return &found->second;
}

Status TensorDirectory::agrees(const First& first, uint32_t rank, const Declare& declare) const {
  const std::string one = describe_rank_[first.rank] + " ";
  const std::string other = ", " + describe_rank_[rank] + " ";
  if (first.mode != declare.mode)
    return invalid_argument(one + describe(first.mode) + other + describe(declare.mode));
  if (!first.mode.stored || (first.dtype == declare.dtype && first.bytes == declare.bytes))
    return Status::ok();
  return invalid_argument(one + "stores " + describe_elements(first.bytes, first.dtype) + other + "stores " +
                          describe_elements(declare.bytes, declare.dtype));
}

Placed TensorDirectory::place(Tensor& tensor, uint32_t rank, const Declare& declare) {
  const Partitioning partitioning = partition_rule_.partition(declare.bytes, declare.partition_scale);
  RootAssigner& assigner = assigners_.try_emplace(declare.partition_scale, unused_assigner_).first->second;
  std::vector<RootLocation>& locations = locations_for(tensor, declare).of_partition;
  const uint32_t count = partitioning.count();
  for (auto p = static_cast<uint32_t>(locations.size()); p < count; ++p)
    locations.push_back(assigner.next(partitioning.size(p)));
  uint32_t& most_partitions = tensor.most_partitions[declare.partition_scale];
  most_partitions = std::max(most_partitions, static_cast<uint32_t>(locations.size()));
  const Past* const past = past_of(tensor, rank);
  return {declare.name,
          tensor.number,
          locations,
          declare.partition_scale,
          declare.placement,
          past ? past->round : 0,
          past ? past->plan : Plan{}};
}

TensorDirectory::Locations& TensorDirectory::locations_for(Tensor& tensor, const Declare& declare) {
  const auto scale = declare.partition_scale;
  const bool is_known =
      declare.placement == tensor.placement || declare.placement == tensor.previous_placement;
  // Placement 0 is the first one, and never comes again: the rank has forgotten the name, and asks
  // again when it has got its plan.
  if (declare.placement == 0 && !is_known) return tensor.locations[{tensor.placement, scale}];
  const auto current = tensor.locations.find({tensor.placement, scale});
  // With the same shares nothing has to move.
  Locations next{.of_partition = {}, .shares = shares_number_};
  if (current != tensor.locations.end() && current->second.shares == shares_number_) next = current->second;
  if (!is_known) {
    tensor.previous_placement = std::exchange(tensor.placement, declare.placement);
    std::erase_if(tensor.locations, [&tensor](const auto& each) {
      const uint8_t placement = each.first.first;
      return placement != tensor.placement && placement != tensor.previous_placement;
    });
  }
  return tensor.locations.try_emplace({declare.placement, scale}, std::move(next)).first->second;
}

bool TensorDirectory::has_stored() const {
  return std::ranges::any_of(
      tensors_, [](const auto& named) { return named.second.first && named.second.first->mode.stored; });
}

void TensorDirectory::change_shares(RootAssigner assigner) {
  unused_assigner_ = std::move(assigner);
  assigners_.clear();
  ++shares_number_;
}

std::string TensorDirectory::name_of(uint64_t number) const {
  const auto found = names_.find(number);
  return found == names_.end() ? "" : *found->second;
}

std::set<uint64_t> TensorDirectory::numbers() const {
  std::set<uint64_t> numbers;
  for (const auto& [number, name] : names_) numbers.insert(number);
  return numbers;
}

std::vector<ForgottenKeys> TensorDirectory::forget(uint32_t rank, const Forget& forget) {
  std::vector<ForgottenKeys> keys;
  for (const ForgottenName& forgotten : forget.names) {
    const auto found = tensors_.find(forgotten.name);
    if (found == tensors_.end() || !found->second.users.erase(rank)) continue;
    Tensor& tensor = found->second;
    // A rank whose calls were not answered does not know the plan that it had before.
    const Past* const past = past_of(tensor, rank);
    const Plan plan = forgotten.calls > 0 && past ? past->plan : forgotten.plan;
    set_past(tensor, rank, round_of(tensor, rank, forgotten.round, forgotten.calls), plan);
    if (!is_forgotten_by_all(tensor)) continue;
    keys.push_back({key_tensor(tensor.number, 0), 0});  // for failures, if it has no location
    for (const auto& [scale, partitions] : tensor.most_partitions)
      keys.push_back({key_tensor(tensor.number, scale), partitions});
    names_.erase(tensor.number);
    tensors_.erase(found);
  }
  return keys;
}

const TensorDirectory::Past* TensorDirectory::past_of(const Tensor& tensor, uint32_t rank) {
  const auto found =
      std::ranges::find_if(tensor.pasts, [rank](const Past& past) { return past.ranks.contains(rank); });
  return found == tensor.pasts.end() ? nullptr : &*found;
}

uint64_t TensorDirectory::round_of(const Tensor& tensor, uint32_t rank, uint64_t round, uint64_t calls) {
  if (calls == 0) return round;
  const Past* const past = past_of(tensor, rank);
  return resumed_round(past ? past->round : 0, round, calls);
}

void TensorDirectory::set_past(Tensor& tensor, uint32_t rank, uint64_t round, const Plan& plan) {
  for (Past& past : tensor.pasts) past.ranks.erase(rank);
  std::erase_if(tensor.pasts, [](const Past& past) { return past.ranks.size() == 0; });
  auto found = std::ranges::find_if(
      tensor.pasts, [&](const Past& past) { return past.round == round && past.plan == plan; });
  if (found == tensor.pasts.end()) found = tensor.pasts.insert(found, {round, plan, {}});
  found->ranks.insert(rank);
}

// Ranks that have never had it are in round 0.
bool TensorDirectory::is_forgotten_by_all(const Tensor& tensor) const {
  if (tensor.users.size() > 0 || !tensor.conflict.is_ok()) return false;
  const uint64_t round = tensor.pasts.front().round;
  size_t count = 0;
  for (const Past& past : tensor.pasts) {
    if (past.round != round) return false;
    count += past.ranks.size();
  }
  return round == 0 || count == describe_rank_.size();
}

bool TensorDirectory::RankSet::insert(uint32_t rank) {
  if (contains(rank)) return false;
  if (rank >= has_.size()) has_.resize(rank + 1);
  has_[rank] = true;
  ++size_;
  return true;
}

bool TensorDirectory::RankSet::erase(uint32_t rank) {
  if (!contains(rank)) return false;
  has_[rank] = false;
  --size_;
  return true;
}

std::optional<Refused> TensorDirectory::fail_round(uint32_t rank, const RoundFailed& failed) {
  Tensor* const tensor = find_or_bind(failed.name, rank);
  if (tensor == nullptr || !tensor->conflict.is_ok()) return std::nullopt;
  const uint64_t round = round_of(*tensor, rank, failed.round, failed.calls);
  if (std::ranges::find(tensor->failed_rounds, round) != tensor->failed_rounds.end()) return std::nullopt;
  tensor->failed_rounds[tensor->next_failed++ % tensor->failed_rounds.size()] = round;
  const std::string who = failed.refused ? describe_rank_[rank] + ": " : "";
  const Status why(failed.code, who + failed.text);
  if (failed.round == kEveryRound) tensor->conflict = why;
  Refused refused = refusal(failed.name, tensor->number, why);
  refused.round = round;
  return refused;
}

}  // namespace byteps::protocol
