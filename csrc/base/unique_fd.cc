#include "base/unique_fd.h"

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>

namespace byteps {
namespace {

constexpr int kBits = 64;
constexpr int kMaxDescriptor = 1 << 20;  // larger descriptors are not closed in children

// One bit per descriptor. Lock-free, because at fork() another thread could hold a lock.
std::array<std::atomic<uint64_t>, kMaxDescriptor / kBits> owned;

bool is_known(int fd) { return fd >= 0 && fd < kMaxDescriptor; }

std::atomic<uint64_t>& word_of(int fd) { return owned[static_cast<size_t>(fd / kBits)]; }

uint64_t bit_of(int fd) { return uint64_t{1} << (fd % kBits); }

}  // namespace

void note_descriptor(int fd) {
  if (is_known(fd)) word_of(fd).fetch_or(bit_of(fd), std::memory_order_relaxed);
}

void forget_descriptor(int fd) {
  if (is_known(fd)) word_of(fd).fetch_and(~bit_of(fd), std::memory_order_relaxed);
}

void close_descriptors_in_child() {
  for (size_t i = 0; i < owned.size(); ++i) {
    for (uint64_t bits = owned[i].exchange(0); bits != 0; bits &= bits - 1) {
      ::close(static_cast<int>(i) * kBits + std::countr_zero(bits));
    }
  }
}

}  // namespace byteps
