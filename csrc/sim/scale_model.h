// What a simulated job trains: the layers of a network, and how long a GPU computes on them. Pure.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace byteps::sim {

struct Layer {
  uint64_t gradient_bytes = 0;  // 0: nothing to sum
  double work = 1;              // its part of the computation, relative to other layers
};

struct ScaleModel {
  std::vector<Layer> layers;  // in the order of the forward pass
  double compute_s = 0;       // forward and backward of a step; backward takes two thirds
};

// "vgg16", "resnet50", "gpt2" (its smallest, of 124 million parameters): shapes as published, float32 gradients, work
// by multiplications. compute_s is no measurement but a round number for a GPU of 2017 with tensor cores.
// Invalid argument lists the names.
Result<ScaleModel> model_named(std::string_view name);

// Layers of nearly equal size that compute equally long.
ScaleModel even_model(uint64_t bytes, uint32_t num_layers, double compute_s);

uint64_t gradient_bytes(const ScaleModel& model);

// Seconds from the start of the backward pass, by layer: when its gradient is there. Layers come last to first.
std::vector<double> gradient_times(const ScaleModel& model);

// Seconds from the start of the backward pass to the end of the next forward pass, in which a layer waits for its
// summed gradient; `summed_s` says when that comes, by layer.
double step_seconds(const ScaleModel& model, const std::vector<double>& summed_s);

}  // namespace byteps::sim
