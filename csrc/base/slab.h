// Large, long-lived regions of memory, out of which buffers are carved and which devices may
// register as a whole. Memory that was unmapped and mapped again has the same addresses, so whoever
// caches something about memory compares slab numbers, which are unique.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <string>

#include "base/bytes.h"

namespace byteps {

// A std::bad_alloc whose message says how many bytes were requested.
class OutOfMemory final : public std::bad_alloc {
 public:
  explicit OutOfMemory(size_t bytes) : text_("no memory for " + std::to_string(bytes) + " bytes") {}
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

// Interface for classes that cache something about slabs.
class SlabObserver {
 public:
  // Called before the slab's memory is unmapped, on the thread that destroys it. Must not call
  // Slab.
  virtual void on_slab_gone(uint64_t number) = 0;

 protected:
  ~SlabObserver() = default;
};

class Slab {
 public:
  // Zero-filled; `bytes` is rounded up to whole pages. Uses 2 MiB pages if it is large enough and
  // the kernel has some. Throws OutOfMemory.
  explicit Slab(size_t bytes);
  // Memory of someone else, who keeps it mapped as long as this object exists.
  explicit Slab(MutableBytes bytes);
  ~Slab();
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

  MutableBytes bytes() const { return bytes_; }

  // A live slab and its number, which is never reused.
  struct Found {
    uint64_t number;
    MutableBytes bytes;
  };
  // Any thread, all three. The slab that contains all of `range`; nullopt if the memory is not a
  // slab's, in which case nothing tells when it is freed.
  static std::optional<Found> find(Bytes range);
  // The observer is told of every slab that is destroyed, until unwatch() has returned.
  static void watch(SlabObserver* observer);
  static void unwatch(SlabObserver* observer);

 private:
  void enter();

  MutableBytes bytes_;
  bool is_mapped_here_ = true;
  uint64_t number_ = 0;
};

}  // namespace byteps
