// Large pieces of memory that stay: what is cut into buffers, and may be made known to devices piece by piece.
//
// A slab has an identity. Whoever keeps something about memory (an RDMA registration) cannot tell by addresses whether it
// is still the same memory, since what was freed and mapped again has the same addresses; by a slab's number it can.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <string>

#include "base/bytes.h"

namespace byteps {

// So many bytes were wanted at once. Says so, unlike other std::bad_alloc.
class OutOfMemory final : public std::bad_alloc {
 public:
  explicit OutOfMemory(size_t bytes) : text_("no memory for " + std::to_string(bytes) + " bytes") {}
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

// Who keeps something about slabs.
class SlabObserver {
 public:
  // Before its memory is unmapped, on the thread that does it. Does not ask for slabs in turn.
  virtual void on_slab_gone(uint64_t number) = 0;

 protected:
  ~SlabObserver() = default;
};

class Slab {
 public:
  // Zeros, `bytes` rounded up to whole pages; of 2 MiB pages where the kernel has some and it is large enough for them.
  // Throws OutOfMemory.
  explicit Slab(size_t bytes);
  ~Slab();
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

  MutableBytes bytes() const { return bytes_; }

  // A slab that is there now, and its number, which no other slab ever has.
  struct Found {
    uint64_t number;
    MutableBytes bytes;
  };
  // The slab that all of `range` lies in; none: other memory, of which nobody says when it goes. Any thread.
  static std::optional<Found> find(Bytes range);
  // From now on, until unwatch() has returned, the observer hears of every slab that goes. Any thread.
  static void watch(SlabObserver* observer);
  static void unwatch(SlabObserver* observer);

 private:
  MutableBytes bytes_;
  uint64_t number_ = 0;
};

}  // namespace byteps
