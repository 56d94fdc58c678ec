// A push_pull as an operation of MXNet's dependency engine. It starts when the engine has computed
// its array, and operations that need the array afterwards wait in the engine. No thread waits.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "c_api/c_api.h"
#include "mxnet/mxnet_api.h"

extern "C" {

// The engine variable of one tensor name. Every operation of the name writes its array, so the
// engine runs them one at a time in program order, whatever tensors they are of. After an error the
// engine skips all later operations on the array, until an array of the failed one is read.
struct BpsMxnetVariable {
  void* array;       // an NDArray; its memory is never accessed
  uint32_t pending;  // number of operations that were pushed and have not ended
  // 1: an operation has failed. Replace the array before the next one, once none is pending.
  uint8_t failed;
  // 1: the engine has skipped an operation, so other ranks have had more rounds of this name.
  uint8_t skipped;
};

struct BpsMxnetPushPull {
  const char* name;  // [name_bytes], not terminated; used during the call only
  size_t name_bytes;
  uint64_t bytes;
  // Dense NDArrays on the CPU, of `bytes` bytes; may be the same. Their handles may be freed after
  // the call.
  void* input;
  void* output;
  BpsMxnetVariable* variable;  // valid until the process ends
  // The same fields as in BpsPushPull:
  uint8_t dtype;
  uint8_t op;
  uint32_t root;
  int32_t priority;
  uint8_t staleness;
  uint64_t step;
};

// Description of an NDArray in MXNet's codes.
struct BpsMxnetArray {
  int64_t elements;
  int dtype;
  int storage_type;
  int device_type;
  int device_id;
};

// Returns 0, or the table version that this library requires.
__attribute__((visibility("default"))) uint32_t bps_mxnet_set_core(const BpsCApi* core);
// `library`: MXNet's, as returned by dlopen(); `array`: any NDArray. Returns -1 if a function is
// missing.
__attribute__((visibility("default"))) int bps_mxnet_set_engine(void* library, void* array);
// Call bps_mxnet_set_core and bps_mxnet_set_engine first. Any thread. Returns -1 on an error: see
// MXGetLastError.
__attribute__((visibility("default"))) int bps_mxnet_describe(void* array, BpsMxnetArray* description);
// Any thread, like bps_mxnet_describe. Does not block, except under MXNet's NaiveEngine. The input
// counts as written, because its layout may change. Returns -1 on an error: see MXGetLastError.
__attribute__((visibility("default"))) int bps_mxnet_push_pull(const BpsMxnetPushPull* request);

}  // extern "C"
