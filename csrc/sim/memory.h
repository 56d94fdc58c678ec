// Memory that knows when it may no longer be used, and who reads or writes it all the same.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"

namespace byteps::sim {

// What a run has found to be wrong.
using Findings = std::vector<std::string>;

class Memory {
 public:
  // `owner` names it in findings. Zero-filled.
  Memory(Findings& findings, std::string owner, size_t bytes)
      : findings_(findings), owner_(std::move(owner)), data_(bytes) {}

  MutableBytes use(size_t offset, size_t size, const char* verb) {
    if (released_) {
      findings_.push_back(owner_ + ": memory was " + verb + " after its owner took it back");
      data_.resize(offset + size);  // so that the run can go on
    }
    return MutableBytes(data_).subspan(offset, size);
  }
  // The owner takes it back: any later use is a finding.
  void release() {
    released_ = true;
    data_.clear();
  }

 private:
  Findings& findings_;
  std::string owner_;
  std::vector<std::byte> data_;
  bool released_ = false;
};

// A range of a Memory; nothing by default. Looking at its bytes is what counts as use, having it is not.
struct View {
  std::shared_ptr<Memory> memory;
  size_t offset = 0;
  size_t size = 0;

  explicit operator bool() const { return memory != nullptr; }
  Bytes read() const { return size > 0 ? Bytes(memory->use(offset, size, "read")) : Bytes(); }
  MutableBytes write() const { return size > 0 ? memory->use(offset, size, "written") : MutableBytes(); }
};

}  // namespace byteps::sim
