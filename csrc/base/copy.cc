#include "base/copy.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

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

#ifdef __SSE2__
// `out`: at the start of a cache line.
inline void stream_line(std::byte* out, const std::byte* in) {
  auto* const to = reinterpret_cast<__m128i*>(out);
  const auto* const from = reinterpret_cast<const __m128i*>(in);
  const __m128i a = _mm_loadu_si128(from);
  const __m128i b = _mm_loadu_si128(from + 1);
  const __m128i c = _mm_loadu_si128(from + 2);
  const __m128i d = _mm_loadu_si128(from + 3);
  _mm_stream_si128(to, a);
  _mm_stream_si128(to + 1, b);
  _mm_stream_si128(to + 2, c);
  _mm_stream_si128(to + 3, d);
}
inline void await_streams() { _mm_sfence(); }
// On Intel's server processors the hint keeps the processor's own prefetcher out: sums of 64 MiB on
// one machine took 1.2 times as long.
inline bool fetches_ahead() {
  static const bool is_amd = __builtin_cpu_is("amd");
  return is_amd;
}
// Far enough ahead for memory; beyond the end of the source, it has no effect.
constexpr size_t kPrefetchBytes = 1 << 10;
inline void fetch_line(std::byte* out, const std::byte* in) {
  _mm_prefetch(reinterpret_cast<const char*>(in) + kPrefetchBytes, _MM_HINT_NTA);
  copy_line(out, in);
}
#else
inline void stream_line(std::byte* out, const std::byte* in) { copy_line(out, in); }
inline void await_streams() {}
inline bool fetches_ahead() { return false; }
inline void fetch_line(std::byte* out, const std::byte* in) { copy_line(out, in); }
#endif

template <void (*kCopyLine)(std::byte*, const std::byte*)>
void copy_lines(MutableBytes to, Bytes from) {
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
    kCopyLine(to.data() + at, from.data() + at);
}

}  // namespace

void copy_bytes(MutableBytes to, Bytes from) { copy_lines<copy_line>(to, from); }

void copy_from_cold(MutableBytes to, Bytes from) {
  fetches_ahead() ? copy_lines<fetch_line>(to, from) : copy_lines<copy_line>(to, from);
}

void copy_to_cold(MutableBytes to, Bytes from) {
  copy_lines<stream_line>(to, from);
  await_streams();  // no later write becomes visible before these
}

}  // namespace byteps
