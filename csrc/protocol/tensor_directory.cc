#include "protocol/tensor_directory.h"

#include <algorithm>
#include <utility>

#include "protocol/partition.h"

namespace byteps::protocol {
namespace {

Refused refusal(const std::string& name, uint32_t tensor, const Status& why) {
  return Refused{name, tensor, why.code(), why.message()};
}

}  // namespace

PlaceGiver::PlaceGiver(const Tree& tree, std::vector<double> shares)
    : sites_(std::move(shares)), turn_bytes_(tree.num_turns()) {
  for (uint32_t turn = 0; turn < tree.num_turns(); ++turn) {
    lane_of_turn_.push_back(tree.lane({0, static_cast<uint16_t>(turn)}));
  }
  const size_t num_lanes = lane_of_turn_.back() + size_t{1};
  rank_bytes_.resize(tree.num_turns() / num_lanes);
  loads_.resize(tree.num_sites(),
                {std::vector<uint64_t>(tree.num_turns()), std::vector<uint64_t>(num_lanes)});
}

Place PlaceGiver::next(uint64_t bytes) {
  const uint16_t site = sites_.place(bytes);
  Loads& here = loads_[site];
  const auto load = [&](size_t turn) {
    return turn_bytes_[turn] + rank_bytes_[turn % rank_bytes_.size()] + here.by_turn[turn] +
           here.by_lane[lane_of_turn_[turn]];
  };
  size_t least = 0;
  for (size_t turn = 1; turn < turn_bytes_.size(); ++turn) {
    if (load(turn) < load(least)) least = turn;
  }
  const uint64_t charged_bytes = std::max<uint64_t>(bytes, 1);  // empty ones take turns as well
  turn_bytes_[least] += charged_bytes;
  rank_bytes_[least % rank_bytes_.size()] += charged_bytes;
  here.by_turn[least] += charged_bytes;
  here.by_lane[lane_of_turn_[least]] += charged_bytes;
  return {site, static_cast<uint16_t>(least)};
}

TensorDirectory::TensorDirectory(std::vector<std::string> describe_rank, PlaceGiver places,
                                 PartitionRule partition_rule, size_t max_tensors)
    : describe_rank_(std::move(describe_rank)),
      places_(std::move(places)),
      partition_rule_(partition_rule),
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
  Result<Partitioning> partitioning =
      partition_tensor(declare.bytes, declare.dtype, partition_rule_.wanted_bytes(declare.bytes));
  if (!partitioning) return {refusal(declare.name, 0, partitioning.status())};
  Placed placed{declare.name, static_cast<uint32_t>(tensors_.size()) + 1, partitioning->partition_bytes, {}};
  const uint32_t count = partitioning->count();
  placed.places.reserve(count);
  for (uint32_t p = 0; p < count; ++p) placed.places.push_back(places_.next(partitioning->size(p)));
  tensors_.emplace(declare.name, Tensor{rank, declare.dtype, declare.bytes, placed, Status::ok()});
  return {std::move(placed)};
}

}  // namespace byteps::protocol
