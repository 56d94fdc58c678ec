// A push_pull as an operation of MXNet's dependency engine: it begins when the engine has computed its array, and what needs
// the array afterwards waits for it in the engine, where no thread waits.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "c_api/c_api.h"
#include "mxnet/mxnet_api.h"

extern "C" {

// The engine variable of one tensor name. Every operation of the name writes its array, so the engine
// runs them one at a time, in the order of the program, whatever tensors they are of. After an error
// the engine skips all later operations on the array, until somebody reads an array of the failed one.
struct BpsMxnetVariable {
  void* array;       // an NDArray whose memory nobody touches
  uint32_t pending;  // number of operations that were pushed and have not ended
  uint8_t failed;    // an operation has failed: replace the array before the next one, once none is pending
  uint8_t skipped;   // the engine has skipped an operation: other ranks have had more rounds of this name
};

struct BpsMxnetPushPull {
  const char* name;  // [name_bytes], not terminated; used during the call only
  size_t name_bytes;
  uint64_t bytes;
  void*
      input;  // NDArrays of dense storage on the CPU, of `bytes` bytes; both may be the same. The handles may
  void* output;                // be freed after the call.
  BpsMxnetVariable* variable;  // valid until the process ends
  uint8_t dtype;               // as in BpsPushPull, from here on
  uint8_t op;
  uint32_t root;
  int32_t priority;
  uint8_t staleness;
  uint64_t step;
};

// An NDArray, in MXNet's codes.
struct BpsMxnetArray {
  int64_t elements;
  int dtype;
  int storage_type;
  int device_type;
  int device_id;
};

// 0, or the version of the table that this library understands.
__attribute__((visibility("default"))) uint32_t bps_mxnet_set_core(const BpsCApi* core);
// `library` is MXNet's, as dlopen() returns it; `array` is any NDArray. -1: it lacks a function.
__attribute__((visibility("default"))) int bps_mxnet_set_engine(void* library, void* array);
// The next two after those above, on any thread; -1: MXGetLastError says why.
__attribute__((visibility("default"))) int bps_mxnet_describe(void* array, BpsMxnetArray* description);
// Does not wait, unless MXNet's NaiveEngine is at work. The input is written too: its layout may change.
__attribute__((visibility("default"))) int bps_mxnet_push_pull(const BpsMxnetPushPull* request);

}  // extern "C"
