// The kernel of anchors: counts the executions with the same label in the job.
#pragma once

#include "tensorflow/core.h"

namespace byteps::tensorflow {

// Registers it for an operator with the attribute `label` and one output: a scalar int64, 0 if the
// label is empty.
void register_anchor_kernel(const char* op_name, Device device);

}  // namespace byteps::tensorflow
