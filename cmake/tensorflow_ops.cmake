# byteps/tensorflow/_ops: the operators of byteps.tensorflow. It is built without TensorFlow and links none of the core:
# TensorFlow's C functions are found when TensorFlow loads it, and the core is handed to it as a table of functions.
file(GLOB tensorflow_sources CONFIGURE_DEPENDS csrc/tensorflow/*.cc)
add_library(tensorflow_ops MODULE ${tensorflow_sources})
target_include_directories(tensorflow_ops PRIVATE csrc)
set_target_properties(tensorflow_ops PROPERTIES UNITY_BUILD OFF  # its operators have functions of the same names
  OUTPUT_NAME _ops PREFIX "" LIBRARY_OUTPUT_DIRECTORY ${BYTEPS_MODULE_DIR}/tensorflow)
