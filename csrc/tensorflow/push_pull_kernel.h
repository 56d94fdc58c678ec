// The kernel of both push_pull operators: passes the memory of input and output to the core. They
// are the same memory if TensorFlow lets the operator overwrite its input. No thread of TensorFlow
// waits for the result.
#pragma once

#include "tensorflow/core.h"

namespace byteps::tensorflow {

// Registers it for operators with the attributes T, tensor_name, reduce_op, root_rank, priority and
// anchors (ops.cc), one input, that number of anchors, and one output. The first anchor is the step
// of the push_pull; 0 or no anchor: no step. Executions may run on any thread.
void register_push_pull_kernel(const char* op_name, Device device);

}  // namespace byteps::tensorflow
