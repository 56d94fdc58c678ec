#include "protocol/tensor_directory.h"

#include <utility>

#include "protocol/partition.h"

namespace byteps::protocol {
namespace {

Refused refusal(const std::string& name, uint32_t tensor, const Status& why) {
  return Refused{name, tensor, why.code(), why.message()};
}

}  // namespace

PlaceGiver::PlaceGiver(const Tree& tree, std::vector<double> shares)
    : sites_(std::move(shares)),
      turns_(tree.num_sites(), Placer(std::vector<double>(tree.num_turns(), 1.0 / tree.num_turns()))) {}

Place PlaceGiver::next(uint64_t bytes) {
  const uint16_t site = sites_.place(bytes);
  return {site, turns_[site].place(bytes)};
}

TensorDirectory::TensorDirectory(std::vector<std::string> describe_rank, PlaceGiver places,
                                 uint64_t partition_bytes, size_t max_tensors)
    : describe_rank_(std::move(describe_rank)),
      places_(std::move(places)),
      partition_bytes_(partition_bytes),
      max_tensors_(max_tensors) {}

TensorDirectory::Answer TensorDirectory::declare(uint32_t rank, const Declare& declare) {
  auto found = tensors_.find(declare.name);
  if (found == tensors_.end()) return bind(rank, declare);
  Tensor& tensor = found->second;
  if (!tensor.conflict) return {refusal(declare.name, tensor.placed.tensor, tensor.conflict)};
  if (tensor.dtype == declare.dtype && tensor.bytes == declare.bytes) return {tensor.placed};
  tensor.conflict = invalid_argument(
      describe_rank_[tensor.first_rank] + " declares " + describe_elements(tensor.bytes, tensor.dtype) +
      ", " + describe_rank_[rank] + " declares " + describe_elements(declare.bytes, declare.dtype));
  return {refusal(declare.name, tensor.placed.tensor, tensor.conflict), true};
}

TensorDirectory::Answer TensorDirectory::bind(uint32_t rank, const Declare& declare) {
  if (tensors_.size() >= max_tensors_) {
    return {
        refusal(declare.name, 0,
                invalid_argument("expected at most " + std::to_string(max_tensors_) + " names in a job"))};
  }
  Result<Partitioning> partitioning = partition_tensor(declare.bytes, declare.dtype, partition_bytes_);
  if (!partitioning) return {refusal(declare.name, 0, partitioning.status())};
  Placed placed{declare.name, static_cast<uint32_t>(tensors_.size()) + 1, partitioning->partition_bytes, {}};
  const uint32_t count = partitioning->count();
  placed.places.reserve(count);
  for (uint32_t p = 0; p < count; ++p) placed.places.push_back(places_.next(partitioning->size(p)));
  tensors_.emplace(declare.name, Tensor{rank, declare.dtype, declare.bytes, placed, Status::ok()});
  return {std::move(placed)};
}

}  // namespace byteps::protocol
