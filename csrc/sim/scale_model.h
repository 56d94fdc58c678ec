// The neural network that a simulated job trains: its gradients, and how long a machine computes.
// Pure.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace byteps::sim {

// What is summed by one push_pull: the gradient of a parameter, or a bucket of several.
struct Gradient {
  uint64_t bytes = 0;
  double ready_s = 0;   // from the start of the backward pass until the gradient is computed
  double needed_s = 0;  // computing time of the forward pass before its sum is needed
};

struct ScaleModel {
  std::vector<Gradient> gradients;
  double backward_s = 0;
  double forward_s = 0;
};

struct Layer {
  uint64_t gradient_bytes = 0;  // 0: no gradient
  double work = 1;              // share of the computation, relative to other layers
};

struct NamedModel {
  std::vector<Layer> layers;  // in the order of the forward pass
  double compute_s = 0;       // forward and backward pass of a step
};

// "vgg16", "resnet50" or "gpt2" (the smallest one, of 124 million parameters): shapes as published,
// float32 gradients, work by number of multiplications. compute_s is not measured; it is a round
// number for a GPU of 2017 with tensor cores. kInvalidArgument lists the names.
Result<NamedModel> model_named(std::string_view name);

// A model whose computation is divided among `layers` by their work. The backward pass takes two
// thirds of it, and goes from the last layer to the first.
ScaleModel model_of(const std::vector<Layer>& layers, double compute_s);

uint64_t gradient_bytes(const ScaleModel& model);

// Seconds from the start of the backward pass to the end of the next forward pass. `summed_s`: the
// time at which the sum of each gradient arrives. The forward pass waits for each sum where it is
// needed; if `waits_for_all`, it starts when all have arrived.
double step_seconds(const ScaleModel& model, const std::vector<double>& summed_s, bool waits_for_all);

}  // namespace byteps::sim
