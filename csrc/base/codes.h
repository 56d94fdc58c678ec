// The codes of dtypes, reductions and errors, which are sent on the wire (docs/wire-format.md):
// append only. Everything else about them, also in Python, is derived from these rows.
//
// This header needs no code of the core, so the libraries of adapters may include it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace byteps {

#define BPS_ENUMERATOR(code, enumerator, ...) enumerator = code,

// Code, enumerator, NumPy's name, bytes, whether it is a float.
#define BPS_DTYPES(X)                  \
  X(1, kFloat16, "float16", 2, true)   \
  X(2, kBFloat16, "bfloat16", 2, true) \
  X(3, kFloat32, "float32", 4, true)   \
  X(4, kFloat64, "float64", 8, true)   \
  X(5, kInt8, "int8", 1, false)        \
  X(6, kUInt8, "uint8", 1, false)      \
  X(7, kInt32, "int32", 4, false)      \
  X(8, kInt64, "int64", 8, false)

enum class DType : uint8_t { BPS_DTYPES(BPS_ENUMERATOR) };

struct DTypeRow {
  DType code;
  std::string_view name;
  size_t bytes;
  bool is_float;
};
inline constexpr DTypeRow kDTypes[] = {
#define BPS_ROW(code, enumerator, ...) {DType::enumerator, __VA_ARGS__},
    BPS_DTYPES(BPS_ROW)
#undef BPS_ROW
};

// Code, enumerator, name. An average of integers is sum / number of ranks, rounded towards minus
// infinity. A broadcast gives every rank the root's values. The last two are for a tensor whose
// value a service stores from one push_pull to the next, and give every rank the stored value. The
// root's kSeed initialises it unless it exists; kAccumulate adds each rank's values.
#define BPS_REDUCE_OPS(X)       \
  X(1, kSum, "sum")             \
  X(2, kAverage, "average")     \
  X(3, kMin, "min")             \
  X(4, kMax, "max")             \
  X(5, kProduct, "product")     \
  X(6, kBroadcast, "broadcast") \
  X(7, kSeed, "seed")           \
  X(8, kAccumulate, "accumulate")

enum class ReduceOp : uint8_t { BPS_REDUCE_OPS(BPS_ENUMERATOR) };

struct ReduceOpRow {
  ReduceOp code;
  std::string_view name;
};
inline constexpr ReduceOpRow kReduceOps[] = {
#define BPS_ROW(code, enumerator, name) {ReduceOp::enumerator, name},
    BPS_REDUCE_OPS(BPS_ROW)
#undef BPS_ROW
};

// Code, enumerator, name, exception of byteps/errors.py, function that makes such a Status.
#define BPS_ERRORS(X)                                                                          \
  /* wrong shape, dtype, name or setting */                                                    \
  X(1, kInvalidArgument, "invalid argument", "InvalidArgumentError", invalid_argument)         \
  /* not initialised, or already shut down */                                                  \
  X(2, kFailedPrecondition, "failed precondition", "NotInitializedError", failed_precondition) \
  /* a peer did not answer in time */                                                          \
  X(3, kDeadlineExceeded, "deadline exceeded", "TimeoutError", deadline_exceeded)              \
  /* a peer is lost or unreachable */                                                          \
  X(4, kUnavailable, "unavailable", "PeerLostError", unavailable)                              \
  /* the job was stopped because of another failure */                                         \
  X(5, kAborted, "aborted", "AbortedError", aborted)                                           \
  /* corrupt bytes received */                                                                 \
  X(6, kDataLoss, "data loss", "DataLossError", data_loss)                                     \
  /* authentication failed */                                                                  \
  X(7, kPermissionDenied, "permission denied", "AuthenticationError", permission_denied)       \
  /* not supported by this build or machine */                                                 \
  X(8, kUnimplemented, "unimplemented", "UnsupportedError", unimplemented)                     \
  /* should not happen, but the process can go on */                                           \
  X(9, kInternal, "internal", "InternalError", internal)                                       \
  /* a GPU, or its driver, has failed */                                                       \
  X(10, kDeviceLost, "device lost", "DeviceError", device_lost)

enum class StatusCode : uint8_t { kOk = 0, BPS_ERRORS(BPS_ENUMERATOR) };

struct ErrorRow {
  StatusCode code;
  std::string_view name;
  const char* exception;
};
inline constexpr ErrorRow kErrors[] = {
#define BPS_ROW(code, enumerator, name, exception, function) {StatusCode::enumerator, name, exception},
    BPS_ERRORS(BPS_ROW)
#undef BPS_ROW
};

// The exception of an error code; InternalError for other codes.
constexpr const char* exception_of(int code) {
  for (const ErrorRow& row : kErrors) {
    if (static_cast<int>(row.code) == code) return row.exception;
  }
  return "InternalError";
}

template <typename Row, size_t kRows>
constexpr bool is_numbered_from_1(const Row (&rows)[kRows]) {
  for (size_t i = 0; i < kRows; ++i) {
    if (static_cast<size_t>(rows[i].code) != i + 1) return false;
  }
  return true;
}
static_assert(is_numbered_from_1(kDTypes) && is_numbered_from_1(kReduceOps) && is_numbered_from_1(kErrors));

}  // namespace byteps
