// Detects the use of memory after its lease was returned: a returned block is filled with a fixed
// byte and kept for a while. With AddressSanitizer, every access to it is an error.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"

namespace byteps::sim {

// Memory on the heap that can be poisoned.
class LentBlock {
 public:
  // Whether an access to poisoned memory ends the program (AddressSanitizer).
  static const bool kAccessIsFatal;

  // Its bytes are not zero, as nothing may rely on their values.
  explicit LentBlock(size_t bytes);

  MutableBytes bytes() const { return {memory_.get(), memory_.get_deleter().bytes}; }
  void poison();
  // Index of the first byte that was written since poison(), or nullopt. Leaves the block readable.
  std::optional<size_t> first_change() const;

 private:
  struct Free {
    size_t bytes;
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte[], Free> memory_;
};

// The returned blocks of a network. The oldest are freed when they become too many.
class Quarantine {
 public:
  // `violations` gets a text for each block that was written to, and must outlive this object.
  explicit Quarantine(std::vector<std::string>& violations) : violations_(violations) {}

  // Poisons the block. `name` identifies it in messages.
  void add(std::string name, LentBlock block);
  // Checks all blocks. Every write is reported once.
  void check() {
    for (Entry& entry : entries_) check(entry);
  }

 private:
  struct Entry {
    std::string name;
    LentBlock block;
  };
  void check(Entry& entry);

  std::vector<std::string>& violations_;
  std::deque<Entry> entries_;  // oldest first
  size_t bytes_ = 0;           // total size of `entries_`
};

}  // namespace byteps::sim
