// The core as a table of C functions, for the other shared libraries of this package: csrc/tensorflow/ and csrc/mxnet/.
//
// Nothing links them: the table's address is a number that Python has (byteps._core.C_API) and hands on. What they ask
// for concerns the job that the process is in at that moment; csrc/c_api/current_job.h says which that is.
#pragma once

#include <stddef.h>
#include <stdint.h>

extern "C" {

// Of the table and all structures in here. A library that finds another one must not touch the rest.
#define BPS_C_API_VERSION 4

// The codes of dtypes, operations and errors are those of docs/wire-format.md.
struct BpsPushPull {
  const char* name;  // [name_bytes], not terminated; used during the call only
  size_t name_bytes;
  uint64_t bytes;
  const void* input;  // [bytes], unchanged until done; may equal `output`
  void* output;       // [bytes], valid until done
  uint8_t dtype;
  uint8_t op;
  uint32_t root;  // of a broadcast
  int32_t priority;
  uint8_t staleness;    // of seed and accumulate, in rounds; 255: unbounded
  const int64_t* dims;  // [num_dims], the shape; used during the call only; null: only the bytes are known
  size_t num_dims;
  uint64_t step;  // of training, as all ranks count it (protocol/rounds.h); 0: of none
  // Exactly once: on a thread of the core's; or within the call, if there is an error at once or nobody to wait for.
  // `code` is 0 if all went well. `message` is valid during the call. It must not leave the job.
  void (*on_done)(void* context, int code, const char* message);
  void* context;
};

struct BpsCApi {
  uint32_t version;
  // Any thread; does not wait.
  void (*push_pull)(const BpsPushPull* request);
  // A push_pull by this name, in this step, has failed before it came here: it fails on all ranks (protocol/push_pull_table.h).
  void (*refuse)(const char* name, size_t name_bytes, uint64_t step, const char* why);
  // How often it has been called with this label in the job, this time included: a step, for who counts none. Any thread.
  uint64_t (*next_step)(const char* label, size_t label_bytes);
};

}  // extern "C"
