// Status and Result<T>: how the core reports errors with causes outside the core.
//
// A Status is ok, or has a code and one message of the form "what failed: object, peer or errno:
// expected, got". Broken invariants (bugs) are for BPS_CHECK. No exception leaves a layer of the
// core; bindings/ converts a Status into a Python exception (base/codes.h).
#pragma once

#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/codes.h"

namespace byteps {

std::string_view to_string(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(StatusCode code, std::string message);

  static Status ok() { return {}; }

  bool is_ok() const { return rep_ == nullptr; }
  StatusCode code() const { return rep_ ? rep_->code : StatusCode::kOk; }
  // Empty when ok. Valid as long as this object or a copy of it exists.
  const std::string& message() const;
  // "ok" or "<code>: <message>".
  std::string to_string() const;

  // Returns the same code with "<context>: " prepended to the message; ok stays ok.
  Status with_context(std::string_view context) const;

 private:
  struct Rep {
    StatusCode code;
    std::string message;
  };
  std::shared_ptr<const Rep> rep_;  // shared, as one failure completes many handles
};

// One function for each error: invalid_argument(message), failed_precondition(message), …
#define BPS_DECLARE(code, enumerator, name, exception, function) Status function(std::string message);
BPS_ERRORS(BPS_DECLARE)
#undef BPS_DECLARE
// Returns kUnavailable with "<what>: <strerror(error_number)> (errno N)".
Status from_errno(std::string_view what, int error_number);

std::ostream& operator<<(std::ostream& out, const Status& status);

// Either a T or a Status that is not ok.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    BPS_CHECK(!status_.is_ok()) << "a Result without a value needs a reason";
  }

  bool is_ok() const { return value_.has_value(); }
  explicit operator bool() const { return is_ok(); }
  const Status& status() const { return status_; }

  T& value() & { return checked(); }
  const T& value() const& { return const_cast<Result*>(this)->checked(); }
  T&& value() && { return std::move(checked()); }
  T& operator*() { return checked(); }
  const T& operator*() const { return value(); }
  T* operator->() { return &checked(); }
  const T* operator->() const { return &value(); }

 private:
  T& checked() {
    BPS_CHECK(value_.has_value()) << "value() of a failed Result: " << status_.to_string();
    return *value_;
  }
  std::optional<T> value_;
  Status status_;
};

#define BPS_RETURN_IF_ERROR(expression)                                                        \
  do {                                                                                         \
    if (::byteps::Status bps_status_ = (expression); !bps_status_.is_ok()) return bps_status_; \
  } while (false)

}  // namespace byteps
