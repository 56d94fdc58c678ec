#include "sim/scale_model.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "base/check.h"

namespace byteps::sim {
namespace {

constexpr double kBackwardPart = 2.0 / 3;  // gradients by inputs and by weights, each as much work as forward
constexpr uint64_t kGradientBytes = 4;     // float32

// A matrix that is applied `times` times in a forward pass.
Layer matrix(uint64_t rows, uint64_t columns, uint64_t times) {
  const uint64_t weights = rows * columns;
  return {weights * kGradientBytes, static_cast<double>(weights) * static_cast<double>(times)};
}

Layer convolution(uint64_t kernel, uint64_t in, uint64_t out, uint64_t side) {
  return matrix(kernel * kernel * in, out, side * side);
}

// Simonyan and Zisserman, "Very deep convolutional networks for large-scale image recognition",
// 2014, table 1, D.
NamedModel vgg16() {
  NamedModel model{.layers = {}, .compute_s = 0.070};
  struct Block {
    uint64_t convolutions, channels, side;
  };
  uint64_t in = 3;
  for (const Block& block : {Block{2, 64, 224}, {2, 128, 112}, {3, 256, 56}, {3, 512, 28}, {3, 512, 14}}) {
    for (uint64_t i = 0; i < block.convolutions; ++i) {
      model.layers.push_back(convolution(3, in, block.channels, block.side));
      in = block.channels;
    }
  }
  for (const auto& [rows, columns] : {std::pair{25088, 4096}, {4096, 4096}, {4096, 1000}})
    model.layers.push_back(matrix(static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), 1));
  return model;
}

// He et al., "Deep residual learning for image recognition", 2015, table 1.
NamedModel resnet50() {
  NamedModel model{.layers = {convolution(7, 3, 64, 112)}, .compute_s = 0.080};
  struct Stage {
    uint64_t blocks, middle, side;
  };
  uint64_t in = 64;
  for (const Stage& stage : {Stage{3, 64, 56}, {4, 128, 28}, {6, 256, 14}, {3, 512, 7}}) {
    const uint64_t out = 4 * stage.middle;
    for (uint64_t i = 0; i < stage.blocks; ++i) {
      if (i == 0) model.layers.push_back(convolution(1, in, out, stage.side));  // the shortcut
      model.layers.push_back(convolution(1, in, stage.middle, stage.side));
      model.layers.push_back(convolution(3, stage.middle, stage.middle, stage.side));
      model.layers.push_back(convolution(1, stage.middle, out, stage.side));
      in = out;
    }
  }
  model.layers.push_back(matrix(2048, 1000, 1));
  return model;
}

// Radford et al., "Language models are unsupervised multitask learners", 2019, table 2, first row.
NamedModel gpt2() {
  constexpr uint64_t kWords = 50257;
  constexpr uint64_t kPositions = 1024;
  constexpr uint64_t kWidth = 768;
  NamedModel model{.layers = {}, .compute_s = 0.080};
  model.layers.push_back({matrix(kWords + kPositions, kWidth, 1).gradient_bytes, 0});  // a look-up
  for (int block = 0; block < 12; ++block) {
    for (const uint64_t columns : {3 * kWidth, kWidth, 4 * kWidth, 4 * kWidth})
      model.layers.push_back(matrix(kWidth, columns, 1));
  }
  model.layers.push_back({0, matrix(kWords, kWidth, 1).work});  // shares the look-up's weights
  return model;
}

double total_work(const std::vector<Layer>& layers) {
  return std::accumulate(layers.begin(), layers.end(), 0.0,
                         [](double sum, const Layer& layer) { return sum + layer.work; });
}

}  // namespace

Result<NamedModel> model_named(std::string_view name) {
  if (name == "vgg16") return vgg16();
  if (name == "resnet50") return resnet50();
  if (name == "gpt2") return gpt2();
  return invalid_argument("model: expected vgg16, resnet50 or gpt2, got '" + std::string(name) + "'");
}

ScaleModel model_of(const std::vector<Layer>& layers, double compute_s) {
  const double total = std::max(total_work(layers), 1e-300);
  ScaleModel model{
      .gradients = {}, .backward_s = kBackwardPart * compute_s, .forward_s = (1 - kBackwardPart) * compute_s};
  double work_before = 0;
  for (const Layer& layer : layers) {
    if (layer.gradient_bytes > 0) {
      model.gradients.push_back({.bytes = layer.gradient_bytes,
                                 .ready_s = (total - work_before) / total * model.backward_s,
                                 .needed_s = work_before / total * model.forward_s});
    }
    work_before += layer.work;
  }
  return model;
}

uint64_t gradient_bytes(const ScaleModel& model) {
  return std::accumulate(model.gradients.begin(), model.gradients.end(), uint64_t{0},
                         [](uint64_t sum, const Gradient& each) { return sum + each.bytes; });
}

// What the forward pass computes after it has waited for a sum is not done any earlier, whatever it
// waits for later. So the latest sum decides, counted with the computation that remains after it.
double step_seconds(const ScaleModel& model, const std::vector<double>& summed_s, bool waits_for_all) {
  BPS_CHECK(summed_s.size() == model.gradients.size()) << "a time per gradient";
  double end_s = model.backward_s + model.forward_s;
  for (size_t i = 0; i < summed_s.size(); ++i) {
    const double done_s = waits_for_all ? 0 : model.gradients[i].needed_s;
    end_s = std::max(end_s, summed_s[i] + model.forward_s - done_s);
  }
  return end_s;
}

}  // namespace byteps::sim
