#include "base/status.h"

#include <cerrno>
#include <cstring>

namespace byteps {

std::string_view to_string(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return "ok";
    case StatusCode::kInvalidArgument: return "invalid argument";
    case StatusCode::kFailedPrecondition: return "failed precondition";
    case StatusCode::kDeadlineExceeded: return "deadline exceeded";
    case StatusCode::kUnavailable: return "unavailable";
    case StatusCode::kAborted: return "aborted";
    case StatusCode::kDataLoss: return "data loss";
    case StatusCode::kPermissionDenied: return "permission denied";
    case StatusCode::kUnimplemented: return "unimplemented";
    case StatusCode::kInternal: return "internal";
  }
  return "unknown";
}

Status::Status(StatusCode code, std::string message) {
  if (code != StatusCode::kOk) rep_ = std::make_shared<const Rep>(Rep{code, std::move(message)});
}

const std::string& Status::message() const {
  static const std::string kEmpty;
  return rep_ ? rep_->message : kEmpty;
}

std::string Status::to_string() const {
  if (is_ok()) return "ok";
  return std::string(byteps::to_string(code())) + ": " + message();
}

Status Status::with_context(std::string_view context) const {
  if (is_ok()) return *this;
  return {code(), std::string(context) + ": " + message()};
}

Status invalid_argument(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }
Status failed_precondition(std::string message) {
  return {StatusCode::kFailedPrecondition, std::move(message)};
}
Status deadline_exceeded(std::string message) { return {StatusCode::kDeadlineExceeded, std::move(message)}; }
Status unavailable(std::string message) { return {StatusCode::kUnavailable, std::move(message)}; }
Status aborted(std::string message) { return {StatusCode::kAborted, std::move(message)}; }
Status data_loss(std::string message) { return {StatusCode::kDataLoss, std::move(message)}; }
Status permission_denied(std::string message) { return {StatusCode::kPermissionDenied, std::move(message)}; }
Status unimplemented(std::string message) { return {StatusCode::kUnimplemented, std::move(message)}; }
Status internal(std::string message) { return {StatusCode::kInternal, std::move(message)}; }

Status from_errno(std::string_view what, int error_number) {
  char buffer[128];
  const char* reason = strerror_r(error_number, buffer, sizeof buffer);
  const char* const advice =
      error_number == EMFILE
          ? ": this process may have no more files and connections open: raise the hard limit "
            "(`ulimit -Hn`, LimitNOFILE of systemd, --ulimit nofile of docker)"
          : "";
  return unavailable(std::string(what) + ": " + reason + " (errno " + std::to_string(error_number) + ")" +
                     advice);
}

std::ostream& operator<<(std::ostream& out, const Status& status) { return out << status.to_string(); }

}  // namespace byteps
