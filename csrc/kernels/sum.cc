#include "kernels/sum.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/float_environment.h"
#include "kernels/sum_targets.h"

namespace byteps::kernels {
namespace {

// From this size on, the first part of dst has left the cache by the time the last part is written.
// Partitions (a few MiB) are far smaller; they are sent or copied next and should be in the cache
// then.
constexpr size_t kStreamingBytes = size_t{16} << 20;

Kernel find_kernel(Isa isa, const Reduction& reduction) {
  BPS_CHECK(is_supported(isa)) << to_string(isa);
  const size_t dtype = static_cast<size_t>(reduction.dtype) - 1;
  const size_t op = static_cast<size_t>(reduction.op) - 1;
  BPS_CHECK(dtype < std::size(kDTypes)) << "dtype " << dtype + 1;
  BPS_CHECK(op < kReductions) << "no kernel for " << to_string(reduction.op);
  const Kernel kernel = kernels_for(isa)[dtype][reduction.weights.empty() ? op : kWeightedAverage];
  BPS_CHECK(kernel != nullptr) << "no weighted kernel for " << to_string(reduction.dtype);
  return kernel;
}

Call make_call(const Reduction& reduction, void* dst, std::span<const void* const> srcs, size_t count,
               StoreMode stores) {
  BPS_CHECK(!srcs.empty()) << "nothing to reduce";
  BPS_CHECK(reduction.divisor >= 1 && reduction.divisor < 1 << 24) << "divisor " << reduction.divisor;
  BPS_CHECK(reduction.weights.empty() || reduction.weights.size() == srcs.size())
      << "expected one weight per source";
  return {.dst = dst,
          .srcs = srcs.data(),
          .n = srcs.size(),
          .count = count,
          .divisor = reduction.divisor,
          .weights = reduction.weights.data(),
          .stores = stores};
}

}  // namespace

StoreMode choose_stores(const void* dst, std::span<const void* const> srcs, size_t size_bytes) {
  const bool in_place = std::find(srcs.begin(), srcs.end(), dst) != srcs.end();
  return !in_place && size_bytes >= kStreamingBytes ? StoreMode::kStreaming : StoreMode::kCached;
}

void reduce_n_with(Isa isa, StoreMode stores, const Reduction& reduction, void* dst,
                   std::span<const void* const> srcs, size_t count) {
  const DefaultFloatEnvironment environment;
  find_kernel(isa, reduction)(make_call(reduction, dst, srcs, count, stores));
}

void reduce_n(const Reduction& reduction, void* dst, std::span<const void* const> srcs, size_t count) {
  const StoreMode stores = choose_stores(dst, srcs, count * size_of(reduction.dtype));
  reduce_n_with(best_isa(), stores, reduction, dst, srcs, count);
}

}  // namespace byteps::kernels
