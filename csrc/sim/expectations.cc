#include "sim/expectations.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <type_traits>

#include "base/check.h"
#include "sim/random.h"

namespace byteps::sim {
namespace {

template <typename T>
T element_at(Bytes bytes, size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void set_element(MutableBytes bytes, size_t index, T value) {
  std::memcpy(bytes.data() + index * sizeof(T), &value, sizeof(T));
}

// kAverage: the sum, which is divided later.
template <typename T>
T combine(ReduceOp op, T a, T b) {
  using Sum = std::conditional_t<std::is_integral_v<T>, uint64_t, T>;  // integers wrap
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage: return static_cast<T>(static_cast<Sum>(a) + static_cast<Sum>(b));
    case ReduceOp::kProduct: return static_cast<T>(static_cast<Sum>(a) * static_cast<Sum>(b));
    case ReduceOp::kMin: return std::min(a, b);
    case ReduceOp::kMax: return std::max(a, b);
    case ReduceOp::kBroadcast:
    case ReduceOp::kSeed:
    case ReduceOp::kAccumulate: break;
  }
  BPS_CHECK(false) << to_string(op) << " combines nothing";
  return a;
}

template <typename T>
T divide_rounding_down(T sum, T count) {
  if constexpr (std::is_floating_point_v<T>) {
    return sum / count;
  } else {
    return static_cast<T>(sum / count - (sum % count < 0 ? 1 : 0));
  }
}

template <typename T>
void reduce_as(ReduceOp op, uint32_t divisor, const std::vector<Bytes>& sources, MutableBytes out) {
  for (size_t i = 0; i < out.size() / sizeof(T); ++i) {
    T value = element_at<T>(sources[0], i);
    for (size_t source = 1; source < sources.size(); ++source) {
      value = combine(op, value, element_at<T>(sources[source], i));
    }
    if (op == ReduceOp::kAverage) value = divide_rounding_down(value, static_cast<T>(divisor));
    set_element(out, i, value);
  }
}

template <typename T>
void fill_as(uint64_t start, uint64_t step, MutableBytes out) {
  for (size_t i = 0; i < out.size() / sizeof(T); ++i) {
    const auto value = static_cast<T>(static_cast<int64_t>((start + step * i) % (1u << 20)) - (1 << 19));
    set_element(out, i, std::is_floating_point_v<T> ? value / T{1000} : value);
  }
}

// The reduction of all sources, in their order; all of the same size. kAverage: of integers, the
// sum divided by `divisor`.
void reduce(DType dtype, ReduceOp op, uint32_t divisor, const std::vector<Bytes>& sources, MutableBytes out) {
  switch (dtype) {
    case DType::kInt32: return reduce_as<int32_t>(op, divisor, sources, out);
    case DType::kInt64: return reduce_as<int64_t>(op, divisor, sources, out);
    default: return reduce_as<float>(op, divisor, sources, out);
  }
}

// Mean of float32: source i counts weights[i] times.
void mean(const std::vector<uint32_t>& weights, const std::vector<Bytes>& sources, MutableBytes out) {
  const uint32_t total = std::accumulate(weights.begin(), weights.end(), 0u);
  for (size_t i = 0; i < out.size() / sizeof(float); ++i) {
    float sum = 0;
    for (size_t source = 0; source < sources.size(); ++source) {
      sum += element_at<float>(sources[source], i) * static_cast<float>(weights[source]);
    }
    set_element(out, i, sum * static_cast<float>(1.0 / total));
  }
}

}  // namespace

void fill_values(const TensorPlan& tensor, size_t tensor_index, uint32_t rank, uint32_t round,
                 MutableBytes out) {
  const uint64_t start = mix((uint64_t{rank} << 40) ^ (uint64_t{tensor_index} << 20) ^ round);
  const uint64_t step = mix(start) | 1;
  switch (tensor.dtype) {
    case DType::kInt32: return fill_as<int32_t>(start, step, out);
    case DType::kInt64: return fill_as<int64_t>(start, step, out);
    default: return fill_as<float>(start, step, out);
  }
}

Bytes Expectations::result(size_t tensor_index, uint32_t round) {
  auto [found, is_new] = results_.try_emplace({tensor_index, round});
  if (!is_new) return found->second;
  const TensorPlan& tensor = scenario_.tensors[tensor_index];
  std::vector<Values> inputs;
  for (uint32_t rank = 0; rank < scenario_.num_workers; ++rank) {
    if (tensor.op == ReduceOp::kBroadcast && rank != tensor.root) continue;
    fill_values(tensor, tensor_index, rank, round, inputs.emplace_back(tensor.bytes_in(round)));
  }
  found->second = tensor.op == ReduceOp::kBroadcast ? inputs.front() : reduced(tensor, inputs);
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

// Averages of floats are weighted means at every level; integers are divided at the root only.
Expectations::Values Expectations::reduced(const TensorPlan& tensor,
                                           const std::vector<Values>& inputs) const {
  const bool is_mean = tensor.op == ReduceOp::kAverage && is_float(tensor.dtype);
  const ReduceOp partial = tensor.op == ReduceOp::kAverage ? ReduceOp::kSum : tensor.op;
  std::vector<uint32_t> weights;
  uint32_t common = 0;
  std::vector<Values> machines;
  for (const std::vector<size_t>& ranks : ranks_by_machine()) {
    std::vector<Bytes> sources;
    for (const size_t rank : ranks) sources.emplace_back(inputs[rank]);
    weights.push_back(static_cast<uint32_t>(ranks.size()));
    common = std::gcd(common, weights.back());
    Values& out = machines.emplace_back(inputs.front().size());
    if (is_mean) mean(std::vector<uint32_t>(ranks.size(), 1), sources, out);
    if (!is_mean) reduce(tensor.dtype, partial, 1, sources, out);
  }
  for (uint32_t& weight : weights) weight /= common;
  const std::vector<Bytes> sources(machines.begin(), machines.end());
  Values out(inputs.front().size());
  if (is_mean) mean(weights, sources, out);
  if (!is_mean) reduce(tensor.dtype, tensor.op, scenario_.num_workers, sources, out);
  return out;
}

}  // namespace byteps::sim
