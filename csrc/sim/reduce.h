// Sums as a service takes them, and the values that ranks contribute. Integers wrap; means of float32.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "base/dtype.h"
#include "sim/scenario.h"

namespace byteps::sim {

// out = reduction of all sources, in their order; all of the same size. An average of integers is over `divisor`.
void reduce(DType dtype, ReduceOp op, uint32_t divisor, const std::vector<Bytes>& sources, MutableBytes out);

// Of float32: the mean of the sources, of which each counts `weights` times.
void mean(const std::vector<uint32_t>& weights, const std::vector<Bytes>& sources, MutableBytes out);

// What `rank` contributes to a tensor in `round`: every element differs from its neighbours, other ranks' and other
// rounds' values.
void fill_values(const TensorPlan& tensor, size_t tensor_index, uint32_t rank, uint32_t round,
                 MutableBytes out);

}  // namespace byteps::sim
