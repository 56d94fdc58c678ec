// One pass over n arrays: dst[i] = srcs[0][i] op srcs[1][i] op … op srcs[n-1][i], in index order.
//
// The result of an element depends on nothing but that element's inputs: it is the same bit for bit for every
// instruction set, alignment, number of threads and split of an array into pieces. (Only which NaN a sum,
// average or product yields, when it yields one, is the CPU's choice.)
//   float16, bfloat16   computed in float32 and rounded once, at the end, to nearest even
//   float32, float64    computed in their own type; no fused multiply-add
//   integers            sum and product wrap modulo 2^bits
//   average             of floats: each input times its weight (if there are weights), their sum times 1/divisor (the
//                       reciprocal rounded to the type computed in). Where that sum is not finite: the sum of the
//                       inputs times weight/2^k, times 2^k/divisor, with the least 2^k >= 2 * divisor, and at most the
//                       largest finite value where this sum is finite. So an average of finite values is finite.
//                       of integers: the wrapped sum divided by divisor, rounded towards minus infinity
//   min, max            the first NaN wins, as in torch.minimum; of equals (-0 and +0) the first is kept
//
// Any thread may call; nothing is shared between calls, allocated or waited for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "kernels/cpu_features.h"

namespace byteps::kernels {

struct Reduction {
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;  // one before kBroadcast
  int divisor = 1;               // for kAverage: the sum of the weights, below 2^24; at least 1
  // For kAverage of floats: one for each source; none: 1 each.
  std::span<const uint32_t> weights = {};
};

// How dst is written. Streaming stores go around the caches: right when dst is too large to be there when it
// is read next, wrong otherwise. Machines without such stores ignore the difference.
enum class StoreMode : uint8_t { kCached, kStreaming };

// `dst` and each of `srcs` (at least one): [count] elements of reduction.dtype, at any address. dst may be
// the very same array as some of srcs; arrays that overlap otherwise are not allowed. Uses the best
// instruction set, and streaming stores where choose_stores() says so.
void reduce_n(const Reduction& reduction, void* dst, std::span<const void* const> srcs, size_t count);

// The same with both choices made by the caller: for tests and benchmarks. `isa` must be supported.
void reduce_n_with(Isa isa, StoreMode stores, const Reduction& reduction, void* dst,
                   std::span<const void* const> srcs, size_t count);

// What reduce_n does for these arrays of `size_bytes` each.
StoreMode choose_stores(const void* dst, std::span<const void* const> srcs, size_t size_bytes);

}  // namespace byteps::kernels
