// Sets a variable for the duration of a scope and restores its previous value, also after an
// exception.
#pragma once

#include <utility>

namespace byteps {

template <typename T>
class ScopedValue {
 public:
  ScopedValue(T& variable, T value) : variable_(variable), before_(std::exchange(variable, value)) {}
  ~ScopedValue() { variable_ = before_; }
  ScopedValue(const ScopedValue&) = delete;
  ScopedValue& operator=(const ScopedValue&) = delete;

 private:
  T& variable_;
  const T before_;
};

struct ScopedFlag : ScopedValue<bool> {
  explicit ScopedFlag(bool& flag) : ScopedValue(flag, true) {}
};

}  // namespace byteps
