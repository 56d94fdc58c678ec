#include "base/copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace byteps {
namespace {

using Copy = void (*)(MutableBytes to, Bytes from);

void copies_every_size_at_every_alignment_and_nothing_else(Copy copy) {
  constexpr size_t kMargin = 80;
  std::vector<size_t> sizes(200);
  std::iota(sizes.begin(), sizes.end(), size_t{0});
  for (size_t around : {1024, 4096, 10'000}) {
    for (size_t bytes = around - 70; bytes < around + 70; ++bytes) sizes.push_back(bytes);
  }
  std::vector<std::byte> source(10'000 + 3 * kMargin);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i * 7 + i / 256);
  for (const size_t bytes : sizes) {
    for (const size_t to : {0, 1, 16, 63, 64}) {
      for (const size_t from : {0, 1, 8, 63}) {
        std::vector<std::byte> target(to + bytes + kMargin, std::byte{0xee});
        const Bytes wanted = Bytes(source).subspan(from, bytes);
        copy(MutableBytes(target).subspan(to), wanted);
        const MutableBytes got = MutableBytes(target).subspan(to, bytes);
        ASSERT_TRUE(std::equal(got.begin(), got.end(), wanted.begin())) << bytes << " " << to << " " << from;
        const auto is_untouched = [](std::byte byte) { return byte == std::byte{0xee}; };
        ASSERT_TRUE(std::all_of(target.begin(), target.begin() + static_cast<ptrdiff_t>(to), is_untouched));
        ASSERT_TRUE(std::all_of(target.end() - kMargin, target.end(), is_untouched)) << bytes;
      }
    }
  }
}

TEST(CopyBytes, EverySizeAtEveryAlignmentIsCopiedAndNothingElse) {
  copies_every_size_at_every_alignment_and_nothing_else(copy_bytes);
}

TEST(CopyCold, EverySizeAtEveryAlignmentIsCopiedAndNothingElse) {
  copies_every_size_at_every_alignment_and_nothing_else(copy_from_cold);
  copies_every_size_at_every_alignment_and_nothing_else(copy_to_cold);
}

}  // namespace
}  // namespace byteps
