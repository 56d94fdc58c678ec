#include "base/status.h"

#include <cerrno>
#include <cstring>

namespace byteps {

std::string_view to_string(StatusCode code) {
  for (const ErrorRow& row : kErrors) {
    if (row.code == code) return row.name;
  }
  return code == StatusCode::kOk ? "ok" : "unknown";
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

#define BPS_DEFINE(code, enumerator, name, exception, function) \
  Status function(std::string message) { return {StatusCode::enumerator, std::move(message)}; }
BPS_ERRORS(BPS_DEFINE)
#undef BPS_DEFINE

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
