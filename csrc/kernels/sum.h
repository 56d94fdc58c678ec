// Elementwise reduction of n arrays in one pass, in index order:
//   dst[i] = srcs[0][i] op srcs[1][i] op … op srcs[n-1][i]
//
// An element of the result depends only on its inputs. It has the same bits for every instruction
// set, alignment and split of an array into pieces. (Exception: if a sum, average or product is
// NaN, its payload is the CPU's choice.)
//   float16, bfloat16   computed in float32; rounded once, at the end, to nearest even
//   float32, float64    computed in their own type, without fused multiply-add
//   integers            sum and product wrap modulo 2^bits
//   average of floats   the sum of (input * weight) times 1/divisor, where the reciprocal is
//                       rounded to the type computed in. If the sum is not finite: the sum of
//                       (input * (weight / 2^k)) times (2^k / divisor), with the smallest
//                       2^k >= 2 * divisor, limited to the largest finite value if that sum is
//                       finite. So an average of finite values is finite.
//   average of integers the wrapped sum divided by divisor, rounded towards minus infinity
//   min, max            the first NaN wins, as in torch.minimum; of equal values (-0 and +0) the
//                       first is kept
//
// Thread-safe: calls share nothing, allocate nothing and do not block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "kernels/cpu_features.h"

namespace byteps::kernels {

struct Reduction {
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;  // a reduction before kBroadcast
  int divisor = 1;               // for kAverage: the sum of the weights; from 1 to 2^24 - 1
  // For kAverage of floats: one weight per source; empty: all weights are 1.
  std::span<const uint32_t> weights = {};
};

// How dst is written. Streaming stores bypass the caches; they are faster only if dst is too large
// to be in the cache when it is read next. The same as kCached on machines without such stores.
enum class StoreMode : uint8_t { kCached, kStreaming };

// `dst` and each of `srcs` (at least one) have `count` elements of reduction.dtype, at any address.
// dst may be the same array as some of the sources; partial overlap is not allowed. Uses the best
// instruction set and the stores of choose_stores().
void reduce_n(const Reduction& reduction, void* dst, std::span<const void* const> srcs, size_t count);

// The same with an explicit choice, for tests and benchmarks. `isa` must be supported.
void reduce_n_with(Isa isa, StoreMode stores, const Reduction& reduction, void* dst,
                   std::span<const void* const> srcs, size_t count);

// The stores that reduce_n uses for arrays of `size_bytes` bytes each.
StoreMode choose_stores(const void* dst, std::span<const void* const> srcs, size_t size_bytes);

}  // namespace byteps::kernels
