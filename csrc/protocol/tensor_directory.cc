#include "protocol/tensor_directory.h"

#include <algorithm>
#include <utility>

#include "protocol/partition.h"

namespace byteps::protocol {
namespace {

Refused refusal(const std::string& name, uint32_t tensor, const Status& why) {
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
  Tensor* const tensor = find_or_bind(declare.name);
  if (tensor == nullptr) {
    return {
        refusal(declare.name, 0,
                invalid_argument("expected at most " + std::to_string(max_tensors_) + " names in a job"))};
  }
  if (!tensor->conflict.is_ok()) return {refusal(declare.name, tensor->number, tensor->conflict)};
  if (!tensor->first) tensor->first = {rank, declare.dtype, declare.bytes, declare.mode};
  tensor->conflict = agrees(*tensor->first, rank, declare);
  if (!tensor->conflict.is_ok()) return {refusal(declare.name, tensor->number, tensor->conflict), true};
  return {place(*tensor, declare)};
}

TensorDirectory::Tensor* TensorDirectory::find_or_bind(const std::string& name) {
  const auto found = tensors_.find(name);
  if (found != tensors_.end()) return &found->second;
  if (tensors_.size() >= max_tensors_) return nullptr;
  auto& [bound, tensor] = *tensors_.try_emplace(name).first;
  names_.push_back(&bound);
  tensor.number = static_cast<uint32_t>(names_.size());
  return &tensor;
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

Placed TensorDirectory::place(Tensor& tensor, const Declare& declare) {
  const Partitioning partitioning = partition_rule_.partition(declare.bytes, declare.partition_scale);
  RootAssigner& assigner = assigners_.try_emplace(declare.partition_scale, unused_assigner_).first->second;
  std::vector<RootLocation>& locations = locations_for(tensor, declare).of_partition;
  const uint32_t count = partitioning.count();
  for (auto p = static_cast<uint32_t>(locations.size()); p < count; ++p)
    locations.push_back(assigner.next(partitioning.size(p)));
  return {declare.name, tensor.number, locations, declare.partition_scale, declare.placement};
}

TensorDirectory::Locations& TensorDirectory::locations_for(Tensor& tensor, const Declare& declare) {
  const auto scale = declare.partition_scale;
  const auto current = tensor.locations.find({tensor.placement, scale});
  // With the same shares nothing has to move.
  Locations next{.of_partition = {}, .shares = shares_number_};
  if (current != tensor.locations.end() && current->second.shares == shares_number_) next = current->second;
  if (declare.placement != tensor.placement && declare.placement != tensor.previous_placement) {
    tensor.previous_placement = std::exchange(tensor.placement, declare.placement);
    std::erase_if(tensor.locations, [&tensor](const auto& each) {
      const uint8_t placement = each.first.first;
      return placement != tensor.placement && placement != tensor.previous_placement;
    });
  }
  return tensor.locations.try_emplace({declare.placement, scale}, std::move(next)).first->second;
}

void TensorDirectory::change_shares(RootAssigner assigner) {
  unused_assigner_ = std::move(assigner);
  assigners_.clear();
  ++shares_number_;
}

std::string TensorDirectory::name_of(uint32_t number) const {
  return number == 0 || number > names_.size() ? "" : *names_[number - 1];
}

std::optional<Refused> TensorDirectory::fail_round(uint32_t rank, const RoundFailed& failed) {
  Tensor* const tensor = find_or_bind(failed.name);
  if (tensor == nullptr || !tensor->conflict.is_ok()) return std::nullopt;
  if (std::ranges::find(tensor->failed_rounds, failed.round) != tensor->failed_rounds.end())
    return std::nullopt;
  tensor->failed_rounds[tensor->next_failed++ % tensor->failed_rounds.size()] = failed.round;
  const std::string who = failed.refused ? describe_rank_[rank] + ": " : "";
  const Status why(failed.code, who + failed.text);
  if (failed.round == kEveryRound) tensor->conflict = why;
  Refused refused = refusal(failed.name, tensor->number, why);
  refused.round = failed.round;
  return refused;
}

}  // namespace byteps::protocol
