// The core as a table of C functions, for the other shared libraries of this package:
// csrc/tensorflow/ and csrc/mxnet/.
//
// These libraries do not link the core: Python passes them the table's address
// (byteps._core.C_API). The functions refer to the current job of the process
// (csrc/c_api/current_job.h). They may be called on any thread and do not block.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/codes.h"

extern "C" {

// Version of the table and of all structures here. A library that finds another version must not
// access the rest.
#define BPS_C_API_VERSION 4

// Codes of dtypes, operations and errors: base/codes.h.
struct BpsPushPull {
  const char* name;  // [name_bytes], not terminated; used during the call only
  size_t name_bytes;
  uint64_t bytes;
  const void* input;  // [bytes], unchanged until done; may equal `output`
  void* output;       // [bytes], valid until done
  uint8_t dtype;
  uint8_t op;
  uint32_t root;  // rank; for broadcasts
  int32_t priority;
  uint8_t staleness;    // bound in rounds, for seed and accumulate; 255: unbounded
  const int64_t* dims;  // [num_dims], used during the call only; null: unknown
  size_t num_dims;
  uint64_t step;  // step of training, as all ranks count it (protocol/rounds.h); 0: none
  // Called exactly once: on a thread of the core, or within push_pull() if it fails at once or no
  // other rank takes part. `code` is 0 on success. `message` is valid during the call. The callback
  // must not leave the job.
  void (*on_done)(void* context, int code, const char* message);
  void* context;
};

struct BpsCApi {
  uint32_t version;
  void (*push_pull)(const BpsPushPull* request);
  // An adapter refused a push_pull of this name, in this step: it fails on all ranks
  // (protocol/push_pull_table.h).
  void (*refuse)(const char* name, size_t name_bytes, uint64_t step, const char* why);
  // Number of calls with this label in the job, this one included: a step, for callers that do not
  // count steps themselves.
  uint64_t (*next_step)(const char* label, size_t label_bytes);
};

}  // extern "C"
