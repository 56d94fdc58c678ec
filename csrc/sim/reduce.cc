#include "sim/reduce.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <type_traits>

#include "base/check.h"
#include "sim/random.h"

namespace byteps::sim {
namespace {

template <typename T>
T load(Bytes bytes, size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void store(MutableBytes bytes, size_t index, T value) {
  std::memcpy(bytes.data() + index * sizeof(T), &value, sizeof(T));
}

// kAverage: the sum, which is divided later.
template <typename T>
T combine(ReduceOp op, T a, T b) {
  // Integers wrap.
  using Unsigned =
      typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>::type;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage: return static_cast<T>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
    case ReduceOp::kProduct: return static_cast<T>(static_cast<Unsigned>(a) * static_cast<Unsigned>(b));
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
    T value = load<T>(sources[0], i);
    for (size_t source = 1; source < sources.size(); ++source) {
      value = combine(op, value, load<T>(sources[source], i));
    }
    if (op == ReduceOp::kAverage) value = divide_rounding_down(value, static_cast<T>(divisor));
    store(out, i, value);
  }
}

template <typename T>
void fill_as(uint64_t start, uint64_t step, MutableBytes out) {
  for (size_t i = 0; i < out.size() / sizeof(T); ++i) {
    const auto value = static_cast<T>(static_cast<int64_t>((start + step * i) % (1u << 20)) - (1 << 19));
    store(out, i, std::is_floating_point_v<T> ? value / T{1000} : value);
  }
}

}  // namespace

void reduce(DType dtype, ReduceOp op, uint32_t divisor, const std::vector<Bytes>& sources, MutableBytes out) {
  switch (dtype) {
    case DType::kInt32: return reduce_as<int32_t>(op, divisor, sources, out);
    case DType::kInt64: return reduce_as<int64_t>(op, divisor, sources, out);
    default: return reduce_as<float>(op, divisor, sources, out);
  }
}

void mean(const std::vector<uint32_t>& weights, const std::vector<Bytes>& sources, MutableBytes out) {
  const uint32_t total = std::accumulate(weights.begin(), weights.end(), 0u);
  for (size_t i = 0; i < out.size() / sizeof(float); ++i) {
    float sum = 0;
    for (size_t source = 0; source < sources.size(); ++source) {
      sum += load<float>(sources[source], i) * static_cast<float>(weights[source]);
    }
    store(out, i, sum * static_cast<float>(1.0 / total));
  }
}

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

}  // namespace byteps::sim
