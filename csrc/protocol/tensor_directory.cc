#include "protocol/tensor_directory.h"

#include <utility>

#include "protocol/partition.h"

namespace byteps::protocol {
namespace {

Refused refusal(const std::string& name, uint32_t tensor, const Status& why) {
  return Refused{name, tensor, why.code(), why.message()};
}

void charge(PlaceGiver& giver, const Placed& placed, const Partitioning& partitioning) {
  for (uint32_t p = 0; p < placed.places.size(); ++p) giver.charge(placed.places[p], partitioning.size(p));
}

}  // namespace

TensorDirectory::TensorDirectory(std::vector<std::string> describe_rank, PlaceGiver places,
                                 PartitionRule partition_rule, size_t max_tensors)
    : describe_rank_(std::move(describe_rank)),
      no_places_given_(std::move(places)),
      partition_rule_(partition_rule),
      max_tensors_(max_tensors) {}

TensorDirectory::Answer TensorDirectory::declare(uint32_t rank, const Declare& declare) {
  auto found = tensors_.find(declare.name);
  if (found == tensors_.end()) return bind(rank, declare);
  Tensor& tensor = found->second;
  const uint32_t number = tensor.placed.at(0).tensor;
  if (!tensor.conflict) return {refusal(declare.name, number, tensor.conflict)};
  const bool same_elements = tensor.dtype == declare.dtype && tensor.bytes == declare.bytes;
  if (same_elements && tensor.upkeep == declare.upkeep) return place(tensor, declare);
  const std::string first = describe_rank_[tensor.first_rank] + " ";
  const std::string second = ", " + describe_rank_[rank] + " ";
  tensor.conflict =
      same_elements
          ? invalid_argument(first + describe(tensor.upkeep) + second + describe(declare.upkeep))
          : invalid_argument(first + "declares " + describe_elements(tensor.bytes, tensor.dtype) + second +
                             "declares " + describe_elements(declare.bytes, declare.dtype));
  return {refusal(declare.name, number, tensor.conflict), true};
}

TensorDirectory::Answer TensorDirectory::bind(uint32_t rank, const Declare& declare) {
  if (declare.cut != 0) {
    return {refusal(declare.name, 0, invalid_argument("expected a first declaration without a cut"))};
  }
  if (tensors_.size() >= max_tensors_) {
    return {
        refusal(declare.name, 0,
                invalid_argument("expected at most " + std::to_string(max_tensors_) + " names in a job"))};
  }
  Tensor tensor{rank, declare.dtype, declare.bytes, declare.upkeep, {}, Status::ok()};
  Answer answer = place(tensor, declare);
  if (!tensor.placed.empty()) tensors_.emplace(declare.name, std::move(tensor));
  return answer;
}

TensorDirectory::Answer TensorDirectory::place(Tensor& tensor, const Declare& declare) {
  const auto found = tensor.placed.find(declare.cut);
  if (found != tensor.placed.end()) return {found->second};
  const Result<Partitioning> partitioning = partition(tensor, declare.cut);
  if (!partitioning) return {refusal(declare.name, 0, partitioning.status())};
  Placed placed{declare.name, ++last_number_, partitioning->partition_bytes, {}, declare.cut};
  PlaceGiver& places = giver(declare.cut);
  const uint32_t count = partitioning->count();
  placed.places.reserve(count);
  for (uint32_t p = 0; p < count; ++p) placed.places.push_back(places.next(partitioning->size(p)));
  const Placed& kept = tensor.placed.emplace(declare.cut, std::move(placed)).first->second;
  for (auto& [cut, other] : givers_) {
    if (declare.cut == 0 && cut != 0 && stays(tensor, cut)) charge(other, kept, *partitioning);
  }
  return {kept};
}

Result<Partitioning> TensorDirectory::partition(const Tensor& tensor, uint8_t cut) const {
  const uint64_t wanted_bytes = cut == 0 ? partition_rule_.wanted_bytes(tensor.bytes)
                                         : cut_bytes(cut, tensor.placed.at(0).partition_bytes);
  return partition_tensor(tensor.bytes, tensor.dtype, wanted_bytes);
}

// Whether the tensor's pieces under `cut` are those of its first placement.
bool TensorDirectory::stays(const Tensor& tensor, uint8_t cut) const {
  const Result<Partitioning> other = partition(tensor, cut);
  return !other || other->partition_bytes == tensor.placed.at(0).partition_bytes;
}

PlaceGiver& TensorDirectory::giver(uint8_t cut) {
  const auto [found, is_new] = givers_.try_emplace(cut, no_places_given_);
  if (!is_new || cut == 0) return found->second;
  for (const auto& [name, tensor] : tensors_) {
    const Placed& first = tensor.placed.at(0);
    if (stays(tensor, cut)) charge(found->second, first, {tensor.bytes, first.partition_bytes});
  }
  return found->second;
}

}  // namespace byteps::protocol
