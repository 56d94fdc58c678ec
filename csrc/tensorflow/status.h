// A TF_Status that is deleted automatically, and the core's error codes as TensorFlow's.
#pragma once

#include "c_api/c_api.h"
#include "tensorflow/tf_api.h"

namespace byteps::tensorflow {

class ScopedStatus {
 public:
  ScopedStatus() : status_(TF_NewStatus()) {}
  ~ScopedStatus() { TF_DeleteStatus(status_); }
  ScopedStatus(const ScopedStatus&) = delete;
  ScopedStatus& operator=(const ScopedStatus&) = delete;

  TF_Status* get() { return status_; }
  bool is_ok() const { return TF_GetCode(status_) == TF_OK; }

 private:
  TF_Status* status_;
};

// `code`: a StatusCode. A lost process becomes TF_UNKNOWN: TensorFlow replaces TF_UNAVAILABLE by
// TF_INTERNAL, and takes TF_ABORTED for a server that will come back.
inline TF_Code tf_code(int code) {
  switch (StatusCode{static_cast<uint8_t>(code)}) {
    case StatusCode::kOk: return TF_OK;
    case StatusCode::kInvalidArgument: return TF_INVALID_ARGUMENT;
    case StatusCode::kFailedPrecondition: return TF_FAILED_PRECONDITION;
    case StatusCode::kDeadlineExceeded: return TF_DEADLINE_EXCEEDED;
    case StatusCode::kUnavailable: return TF_UNKNOWN;
    case StatusCode::kAborted: return TF_ABORTED;
    case StatusCode::kDataLoss: return TF_DATA_LOSS;
    case StatusCode::kPermissionDenied: return TF_PERMISSION_DENIED;
    case StatusCode::kUnimplemented: return TF_UNIMPLEMENTED;
    case StatusCode::kInternal: break;
  }
  return TF_INTERNAL;
}

}  // namespace byteps::tensorflow
