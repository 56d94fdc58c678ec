// A TF_Status that is deleted automatically, and the core's error codes as TensorFlow's.
#pragma once

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

// `code` as in docs/wire-format.md. A lost process becomes TF_UNKNOWN: TensorFlow replaces
// TF_UNAVAILABLE by TF_INTERNAL, and takes TF_ABORTED for a server that will come back.
inline TF_Code tf_code(int code) {
  switch (code) {
    case 0: return TF_OK;
    case 1: return TF_INVALID_ARGUMENT;
    case 2: return TF_FAILED_PRECONDITION;
    case 3: return TF_DEADLINE_EXCEEDED;
    case 4: return TF_UNKNOWN;
    case 5: return TF_ABORTED;
    case 6: return TF_DATA_LOSS;
    case 7: return TF_PERMISSION_DENIED;
    case 8: return TF_UNIMPLEMENTED;
    default: return TF_INTERNAL;
  }
}

}  // namespace byteps::tensorflow
