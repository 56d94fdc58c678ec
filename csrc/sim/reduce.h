// Sums as the runtime computes them, and the values that ranks contribute. Integers wrap.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "base/dtype.h"
#include "sim/scenario.h"

namespace byteps::sim {

// out = reduction of all sources, in their order; all of the same size. kAverage: of integers, the
// sum divided by `divisor`.
void reduce(DType dtype, ReduceOp op, uint32_t divisor, const std::vector<Bytes>& sources, MutableBytes out);

// Mean of float32: source i counts weights[i] times.
void mean(const std::vector<uint32_t>& weights, const std::vector<Bytes>& sources, MutableBytes out);

// The contribution of `rank` to a tensor in `round`: every element differs from its neighbours and
// from the values of other ranks and rounds. Sums of float32 are rounded, so they depend on their
// order.
void fill_values(const TensorPlan& tensor, size_t tensor_index, uint32_t rank, uint32_t round,
                 MutableBytes out);

}  // namespace byteps::sim
