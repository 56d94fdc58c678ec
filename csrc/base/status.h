// Status and Result<T>: how the core reports errors with causes outside the core.
//
// A Status is ok, or has a code and one message of the form "what failed: object, peer or errno:
// expected, got". Broken invariants (bugs) are for BPS_CHECK. No exception leaves a layer of the
// core; bindings/ converts a Status into the Python exception of the same name.
#pragma once

#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace byteps {

// The values are sent on the wire (docs/wire-format.md): append only.
enum class StatusCode : unsigned char {
  kOk = 0,
  kInvalidArgument = 1,     // wrong shape, dtype, name or setting
  kFailedPrecondition = 2,  // not initialised, or already shut down
  kDeadlineExceeded = 3,    // a peer did not answer in time
  kUnavailable = 4,         // a peer is lost or unreachable
  kAborted = 5,             // the job was stopped because of another failure
  kDataLoss = 6,            // corrupt bytes received
  kPermissionDenied = 7,    // authentication failed
  kUnimplemented = 8,       // not supported by this build or machine
  kInternal = 9,            // should not happen, but the process can go on
};

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

Status invalid_argument(std::string message);
Status failed_precondition(std::string message);
Status deadline_exceeded(std::string message);
Status unavailable(std::string message);
Status aborted(std::string message);
Status data_loss(std::string message);
Status permission_denied(std::string message);
Status unimplemented(std::string message);
Status internal(std::string message);
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
