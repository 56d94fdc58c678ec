#include "sim/sim_quarantine.h"

#include <algorithm>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#define BPS_HAS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define BPS_HAS_ASAN 1
#endif
#endif
#ifdef BPS_HAS_ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) (static_cast<void>(address), static_cast<void>(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) (static_cast<void>(address), static_cast<void>(bytes))
#endif

namespace byteps::sim {
namespace {

constexpr std::byte kFresh{0xA5};
constexpr std::byte kPoison{0xDB};
constexpr size_t kMaxBlocks = 1024;
constexpr size_t kMaxBytes = 32 << 20;

}  // namespace

#ifdef BPS_HAS_ASAN
const bool LentBlock::kAccessIsFatal = true;
#else
const bool LentBlock::kAccessIsFatal = false;
#endif

LentBlock::LentBlock(size_t bytes) : memory_(new std::byte[bytes], Free{bytes}) {
  std::ranges::fill(this->bytes(), kFresh);
}

void LentBlock::Free::operator()(std::byte* memory) const {
  ASAN_UNPOISON_MEMORY_REGION(memory, bytes);
  delete[] memory;
}

void LentBlock::poison() {
  std::ranges::fill(bytes(), kPoison);
  ASAN_POISON_MEMORY_REGION(bytes().data(), bytes().size());
}

std::optional<size_t> LentBlock::first_change() const {
  const Bytes memory = bytes();
  ASAN_UNPOISON_MEMORY_REGION(memory.data(), memory.size());
  const auto changed = std::ranges::find_if(memory, [](std::byte byte) { return byte != kPoison; });
  if (changed == memory.end()) return std::nullopt;
  return static_cast<size_t>(changed - memory.begin());
}

void Quarantine::add(std::string name, LentBlock block) {
  block.poison();
  bytes_ += block.bytes().size();
  entries_.push_back({std::move(name), std::move(block)});
  while (entries_.size() > kMaxBlocks || (bytes_ > kMaxBytes && entries_.size() > 1)) {
    check(entries_.front());
    bytes_ -= entries_.front().block.bytes().size();
    entries_.pop_front();
  }
}

void Quarantine::check(Entry& entry) {
  if (const std::optional<size_t> changed = entry.block.first_change()) {
    violations_.push_back(entry.name + ": byte " + std::to_string(*changed) + " of " +
                          std::to_string(entry.block.bytes().size()) + " was written after its return");
  }
  entry.block.poison();
}

}  // namespace byteps::sim
