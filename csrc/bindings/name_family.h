// The names and numbers of calls that belong together because all ranks make them in the same order:
// those of one family (byteps/call_names.py).
#pragma once

#include <bitset>
#include <cstdint>
#include <string>
#include <vector>

namespace byteps::bindings {

// Number of names, which are then used again, so that unnamed tensors do not declare new names for
// ever. At most so many unnamed tensors can be in flight.
inline constexpr uint32_t kAutomaticNames = 256;

// Guarded by the GIL.
class NameFamily {
 public:
  explicit NameFamily(const std::string& family);

  // From 1, modulo 2^32.
  int64_t next_number() { return int64_t{numbers_++} + 1; }
  // What next_name() will return.
  const std::string& peek() const { return names_[next_]; }
  const std::string& next_name();

  // While a thread holds the family, calls that are made without its owner's lock (BlockingCalls) take
  // no name: the thread takes a number and several names, between which other threads may run.
  void hold() { held_ = true; }
  void let_go() { held_ = false; }
  bool is_held() const { return held_; }

  // `name`: of this family. A name that is reserved must not be used again.
  void reserve(const std::string& name) { reserved_[index_of(name)] = true; }
  void release(const std::string& name) { reserved_[index_of(name)] = false; }
  bool is_reserved(const std::string& name) const { return reserved_[index_of(name)]; }
  std::vector<std::string> reserved() const;

 private:
  size_t index_of(const std::string& name) const;

  std::vector<std::string> names_;
  std::bitset<kAutomaticNames> reserved_;
  uint32_t next_ = 0;
  uint32_t numbers_ = 0;
  bool held_ = false;
};

}  // namespace byteps::bindings
