#include "sim/scale_model.h"

#include <gtest/gtest.h>

namespace byteps::sim {
namespace {

TEST(ScaleModel, NamedOnesHaveTheirPublishedSizes) {
  const auto millions = [](const char* name) {
    return static_cast<double>(gradient_bytes(model_named(name).value())) / 4e6;
  };
  EXPECT_NEAR(millions("vgg16"), 138, 0.5);
  EXPECT_NEAR(millions("resnet50"), 25.5, 0.1);
  EXPECT_NEAR(millions("gpt2"), 124, 0.5);
  EXPECT_EQ(model_named("alexnet").status().message(),
            "model: expected vgg16, resnet50 or gpt2, got 'alexnet'");
}

TEST(ScaleModel, GradientsComeFromTheLastLayerToTheFirst) {
  const ScaleModel model{.layers = {{4, 1}, {4, 3}, {4, 2}}, .compute_s = 9};  // backward: 6 s
  EXPECT_EQ(gradient_times(model), (std::vector<double>{6, 5, 2}));
}

TEST(ScaleModel, LayersWaitForTheirSumInTheForwardPass) {
  const ScaleModel model{.layers = {{4, 1}, {4, 1}, {4, 1}},
                         .compute_s = 9};  // forward: 1 s each, from 6 s on
  EXPECT_DOUBLE_EQ(step_seconds(model, {6, 5, 2}), 9);
  EXPECT_DOUBLE_EQ(step_seconds(model, {7, 5, 2}), 10);
  EXPECT_DOUBLE_EQ(step_seconds(model, {6, 7.5, 8}), 9.5);
  EXPECT_DOUBLE_EQ(step_seconds(model, {0, 0, 20}), 21);
}

TEST(ScaleModel, WithoutComputationAStepIsItsCommunication) {
  const ScaleModel model{.layers = {{500, 1}, {500, 1}}, .compute_s = 0};
  EXPECT_EQ(gradient_times(model), (std::vector<double>{0, 0}));
  EXPECT_DOUBLE_EQ(step_seconds(model, {3, 2}), 3);
}

}  // namespace
}  // namespace byteps::sim
