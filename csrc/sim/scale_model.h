// The neural network that a simulated job trains: its layers, and how long a GPU computes on them.
// Pure.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace byteps::sim {

struct Layer {
  uint64_t gradient_bytes = 0;  // 0: no gradient
  double work = 1;              // share of the computation, relative to other layers
};

struct ScaleModel {
  std::vector<Layer> layers;  // in the order of the forward pass
  double compute_s = 0;       // forward and backward pass of a step; backward takes two thirds
};

// "vgg16", "resnet50" or "gpt2" (the smallest one, of 124 million parameters): shapes as published,
// float32 gradients, work by number of multiplications. compute_s is not measured; it is a round
// number for a GPU of 2017 with tensor cores. kInvalidArgument lists the names.
Result<ScaleModel> model_named(std::string_view name);

uint64_t gradient_bytes(const ScaleModel& model);

// By layer: seconds from the start of the backward pass until its gradient is computed. The last
// layer comes first.
std::vector<double> gradient_times(const ScaleModel& model);

// Seconds from the start of the backward pass to the end of the next forward pass, in which each
// layer waits for its summed gradient. `summed_s`: by layer, the time at which that arrives.
double step_seconds(const ScaleModel& model, const std::vector<double>& summed_s);

}  // namespace byteps::sim
