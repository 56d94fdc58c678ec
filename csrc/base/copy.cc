#include "base/copy.h"

#include <cstdint>
#include <cstring>

#include "base/check.h"

namespace byteps {
namespace {

constexpr size_t kLineBytes = 64;
constexpr size_t kSmallBytes = 1 << 10;  // for smaller sizes the C library uses a loop of its own

// 16 bytes at any address.
typedef long long Part __attribute__((vector_size(16), aligned(1), may_alias));

inline void copy_line(std::byte* out, const std::byte* in) {
  // Not `auto`, which would drop the alignment.
  const Part* from = reinterpret_cast<const Part*>(in);
  Part* to = reinterpret_cast<Part*>(out);
  const Part a = from[0];
  const Part b = from[1];
  const Part c = from[2];
  const Part d = from[3];
  to[0] = a;
  to[1] = b;
  to[2] = c;
  to[3] = d;
  asm("" ::: "memory");  // prevents the compiler from turning the loop into a call of memcpy
}

}  // namespace

void copy_bytes(MutableBytes to, Bytes from) {
  BPS_CHECK(to.size() >= from.size()) << to.size() << " for " << from.size();
  size_t bytes = from.size();
  if (bytes == 0) return;
  if (bytes <= kSmallBytes) {
    // Hides that the size is small; otherwise the compiler emits the string instruction itself.
    asm("" : "+r"(bytes));
    std::memcpy(to.data(), from.data(), bytes);
    return;
  }
  // The loop copies whole cache lines of the destination; these two unaligned copies cover both
  // ends.
  copy_line(to.data(), from.data());
  copy_line(to.data() + bytes - kLineBytes, from.data() + bytes - kLineBytes);
  const size_t first_line = -reinterpret_cast<uintptr_t>(to.data()) % kLineBytes;
  for (size_t at = first_line; at + kLineBytes <= bytes; at += kLineBytes)
    copy_line(to.data() + at, from.data() + at);
}

}  // namespace byteps
