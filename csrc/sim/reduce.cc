#include "sim/reduce.h"

#include <algorithm>
#include <cstring>
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

// Of two values; an average is a sum at first.
template <typename T>
T combine(ReduceOp op, T a, T b) {
  using Unsigned = std::make_unsigned_t<T>;  // wraps
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
  return static_cast<T>(sum / count - (sum % count < 0 ? 1 : 0));
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
    store(out, i, static_cast<T>(static_cast<int64_t>((start + step * i) % (1u << 20)) - (1 << 19)));
  }
}

}  // namespace

void reduce(DType dtype, ReduceOp op, uint32_t divisor, const std::vector<Bytes>& sources, MutableBytes out) {
  dtype == DType::kInt32 ? reduce_as<int32_t>(op, divisor, sources, out)
                         : reduce_as<int64_t>(op, divisor, sources, out);
}

void fill_values(const TensorPlan& tensor, size_t tensor_index, uint32_t rank, uint32_t round,
                 MutableBytes out) {
  const uint64_t start = mix((uint64_t{rank} << 40) ^ (uint64_t{tensor_index} << 20) ^ round);
  const uint64_t step = mix(start) | 1;
  tensor.dtype == DType::kInt32 ? fill_as<int32_t>(start, step, out) : fill_as<int64_t>(start, step, out);
}

}  // namespace byteps::sim
