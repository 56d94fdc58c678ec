#include "sim/scale_model.h"

#include <gtest/gtest.h>

namespace byteps::sim {
namespace {

std::vector<double> ready_s(const ScaleModel& model) {
  std::vector<double> times;
  for (const Gradient& gradient : model.gradients) times.push_back(gradient.ready_s);
  return times;
}

TEST(ScaleModel, NamedOnesHaveTheirPublishedSizes) {
  const auto millions = [](const char* name) {
    return static_cast<double>(gradient_bytes(model_of(model_named(name).value().layers, 0))) / 4e6;
  };
  EXPECT_NEAR(millions("vgg16"), 138, 0.5);
  EXPECT_NEAR(millions("resnet50"), 25.5, 0.1);
  EXPECT_NEAR(millions("gpt2"), 124, 0.5);
  EXPECT_EQ(model_named("alexnet").status().message(),
            "model: expected vgg16, resnet50 or gpt2, got 'alexnet'");
}

TEST(ScaleModel, GradientsComeFromTheLastLayerToTheFirst) {
  const ScaleModel model = model_of({{4, 1}, {4, 3}, {4, 2}}, 9);  // backward: 6 s
  EXPECT_EQ(ready_s(model), (std::vector<double>{6, 5, 2}));
  EXPECT_DOUBLE_EQ(model.gradients[2].needed_s, 2);
}

TEST(ScaleModel, LayersWithoutGradientsOnlyCompute) {
  const ScaleModel model = model_of({{0, 1}, {4, 1}, {0, 1}}, 9);
  ASSERT_EQ(model.gradients.size(), 1u);
  EXPECT_DOUBLE_EQ(model.gradients[0].ready_s, 4);
  EXPECT_DOUBLE_EQ(model.gradients[0].needed_s, 1);
}

TEST(ScaleModel, LayersWaitForTheirSumInTheForwardPass) {
  const ScaleModel model = model_of({{4, 1}, {4, 1}, {4, 1}}, 9);  // forward: 1 s each, from 6 s on
  EXPECT_DOUBLE_EQ(step_seconds(model, {6, 5, 2}, false), 9);
  EXPECT_DOUBLE_EQ(step_seconds(model, {7, 5, 2}, false), 10);
  EXPECT_DOUBLE_EQ(step_seconds(model, {6, 7.5, 8}, false), 9.5);
  EXPECT_DOUBLE_EQ(step_seconds(model, {0, 0, 20}, false), 21);
}

TEST(ScaleModel, AnOptimizerThatWaitsForAllStartsWithTheLastSum) {
  const ScaleModel model = model_of({{4, 1}, {4, 1}, {4, 1}}, 9);
  EXPECT_DOUBLE_EQ(step_seconds(model, {6, 5, 2}, true), 9);
  EXPECT_DOUBLE_EQ(step_seconds(model, {6, 7.5, 8}, true), 11);
}

TEST(ScaleModel, WithoutComputationAStepIsItsCommunication) {
  const ScaleModel model = model_of({{500, 1}, {500, 1}}, 0);
  EXPECT_EQ(ready_s(model), (std::vector<double>{0, 0}));
  EXPECT_DOUBLE_EQ(step_seconds(model, {3, 2}, false), 3);
}

}  // namespace
}  // namespace byteps::sim
