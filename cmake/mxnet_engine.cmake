# byteps/mxnet/_engine: operations of MXNet's engine, for byteps.mxnet. It is built without MXNet and links none of the
# core: both are handed to it at run time.
file(GLOB mxnet_sources CONFIGURE_DEPENDS csrc/mxnet/*.cc)
add_library(mxnet_engine MODULE ${mxnet_sources})
target_include_directories(mxnet_engine PRIVATE csrc)
target_link_libraries(mxnet_engine PRIVATE ${CMAKE_DL_LIBS})
set_target_properties(mxnet_engine PROPERTIES
  OUTPUT_NAME _engine PREFIX "" LIBRARY_OUTPUT_DIRECTORY ${BYTEPS_MODULE_DIR}/mxnet)
