#include "protocol/shape.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace byteps::protocol {
namespace {

using Dims = std::vector<int64_t>;

TEST(Shape, ReadsAsItIs) {
  EXPECT_EQ(Shape::of(Dims{})->describe(), "()");
  EXPECT_EQ(Shape::of(Dims{7})->describe(), "(7,)");
  EXPECT_EQ(Shape::of(Dims{2, 0, 300})->describe(), "(2, 0, 300)");
  EXPECT_EQ(Shape::of(Dims{1ll << 40})->describe(), "(1099511627776,)");
  EXPECT_EQ(Shape::of(Dims{64, 3, 224, 224})->describe(), "(64, 3, 224, 224)");
  EXPECT_EQ(Shape::in_order(Dims{2, 3, 4, 5}, Dims{0, 2, 3, 1})->describe(),
            "(2, 3, 4, 5) in the order 0, 2, 3, 1");
  EXPECT_EQ(Shape::of_collective(Dims{6}, 17)->describe(), "(6,) in collective 17");
  EXPECT_EQ(Shape::of(Dims(16, 2))->describe(), "a shape of 65536 elements in 16 dimensions");
  EXPECT_EQ(Shape::of(Dims(40, 1))->describe(), "a shape of 1 elements in 31 or more dimensions");
}

TEST(Shape, KnowsItsElements) {
  EXPECT_FALSE(Shape().is_known());
  EXPECT_TRUE(Shape::of(Dims{})->is_known());
  EXPECT_EQ(Shape::of(Dims{})->elements(), 1u);
  EXPECT_EQ(Shape::of(Dims{2, 3})->elements(), 6u);
  EXPECT_EQ(Shape::of(Dims{2, 0})->elements(), 0u);
  EXPECT_EQ(Shape::in_order(Dims{2, 3}, Dims{1, 0})->elements(), 6u);
  EXPECT_EQ(Shape::of_collective(Dims{6}, 1ll << 32)->elements(), 6u);
  EXPECT_EQ(Shape::of(Dims(20, 3))->elements(), 3'486'784'401u) << "of a hashed one as well";
}

TEST(Shape, DifferentOnesDiffer) {
  std::set<ShapeBytes> seen;
  size_t count = 0;
  const auto add = [&](const Result<Shape>& shape) {
    seen.insert(shape->bytes());
    ++count;
  };
  add(Shape());
  for (int64_t a : {0, 1, 2, 127, 128, 129, 16383, 16384}) {
    add(Shape::of(Dims{a}));
    for (int64_t b : {0, 1, 2, 127, 128}) {
      add(Shape::of(Dims{a, b}));
      add(Shape::in_order(Dims{a, b}, Dims{1, 0}));
      add(Shape::of_collective(Dims{a}, b));
      Dims many(20, 1);
      many[0] = a, many[19] = b;
      add(Shape::of(many));
      add(Shape::in_order(many, many));
    }
  }
  EXPECT_EQ(seen.size(), count);
}

TEST(Shape, ImpossibleOnesAreRefused) {
  EXPECT_FALSE(Shape::of(Dims{2, -1}));
  EXPECT_FALSE(Shape::of(Dims{1ll << 40, 1ll << 40}));
  EXPECT_FALSE(Shape::in_order(Dims{2, 3}, Dims{0}));
}

TEST(Shape, AnyBytesCanBeRead) {
  std::mt19937 random(1);
  for (int i = 0; i < 10'000; ++i) {
    ShapeBytes bytes;
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    const Shape shape(bytes);
    EXPECT_FALSE(shape.describe().empty());
    shape.elements();
  }
}

}  // namespace
}  // namespace byteps::protocol
