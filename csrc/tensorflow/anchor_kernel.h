// The kernel of anchors: counts the calls of those with its label, in the job.
#pragma once

#include "tensorflow/core.h"

namespace byteps::tensorflow {

// Of an operator with the attribute label and one output, an int64 without dimensions: 0 if the label is empty.
void register_anchor_kernel(const char* op_name, Device device);

}  // namespace byteps::tensorflow
