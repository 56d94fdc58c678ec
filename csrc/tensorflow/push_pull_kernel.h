// The kernel of both operators: hands the input's memory to the core, and the output's, which is the same where
// TensorFlow lets an operator overwrite its input. No thread of TensorFlow waits for the result.
#pragma once

#include "tensorflow/core.h"

namespace byteps::tensorflow {

// Of operators with the attributes T, tensor_name, reduce_op, root_rank, priority and anchors (ops.cc), one input, so many
// anchors, and one output. The first anchor is the step that the push_pull is of; 0, or none: of no step. Any thread runs
// them.
void register_push_pull_kernel(const char* op_name, Device device);

}  // namespace byteps::tensorflow
