#include "sim/expectations.h"

#include <numeric>

#include "sim/reduce.h"

namespace byteps::sim {

Bytes Expectations::result(size_t tensor_index, uint32_t round) {
  auto [found, is_new] = results_.try_emplace({tensor_index, round});
  if (!is_new) return found->second;
  const TensorPlan& tensor = scenario_.tensors[tensor_index];
  std::vector<Values> inputs;
  for (uint32_t rank = 0; rank < scenario_.num_workers; ++rank) {
    if (tensor.op == ReduceOp::kBroadcast && rank != tensor.root) continue;
    fill_values(tensor, tensor_index, rank, round, inputs.emplace_back(tensor.bytes_in(round)));
  }
  if (tensor.op == ReduceOp::kBroadcast) {
    found->second = inputs.front();
  } else if (tensor.op == ReduceOp::kAverage && is_float(tensor.dtype)) {
    found->second = averaged(inputs);
  } else {
    found->second = reduced(tensor, inputs);
  }
  return found->second;
}

std::vector<std::vector<size_t>> Expectations::ranks_by_machine() const {
  std::vector<std::vector<size_t>> ranks;
  std::map<uint32_t, size_t> indices;  // in the order of the machines' first ranks
  for (size_t rank = 0; rank < machines_.size(); ++rank) {
    const auto [found, is_new] = indices.emplace(machines_[rank], ranks.size());
    if (is_new) ranks.emplace_back();
    ranks[found->second].push_back(rank);
  }
  return ranks;
}

// Integers are divided at the root only.
Expectations::Values Expectations::reduced(const TensorPlan& tensor,
                                           const std::vector<Values>& inputs) const {
  const ReduceOp partial = tensor.op == ReduceOp::kAverage ? ReduceOp::kSum : tensor.op;
  std::vector<Values> machines;
  for (const std::vector<size_t>& ranks : ranks_by_machine()) {
    std::vector<Bytes> sources;
    for (const size_t rank : ranks) sources.emplace_back(inputs[rank]);
    reduce(tensor.dtype, partial, 1, sources, machines.emplace_back(inputs.front().size()));
  }
  Values out(inputs.front().size());
  reduce(tensor.dtype, tensor.op, scenario_.num_workers, {machines.begin(), machines.end()}, out);
  return out;
}

Expectations::Values Expectations::averaged(const std::vector<Values>& inputs) const {
  std::vector<uint32_t> weights;
  uint32_t common = 0;
  std::vector<Values> means;
  for (const std::vector<size_t>& ranks : ranks_by_machine()) {
    std::vector<Bytes> sources;
    for (const size_t rank : ranks) sources.emplace_back(inputs[rank]);
    weights.push_back(static_cast<uint32_t>(ranks.size()));
    common = std::gcd(common, weights.back());
    mean(std::vector<uint32_t>(ranks.size(), 1), sources, means.emplace_back(inputs.front().size()));
  }
  for (uint32_t& weight : weights) weight /= common;
  Values out(inputs.front().size());
  mean(weights, {means.begin(), means.end()}, out);
  return out;
}

}  // namespace byteps::sim
