# byteps/mxnet/_engine: operations of MXNet's engine, for byteps.mxnet. It is built without MXNet and links none of the
# core: both are handed to it at run time.
file(GLOB mxnet_sources CONFIGURE_DEPENDS csrc/mxnet/*.cc)
add_library(mxnet_engine_objects OBJECT ${mxnet_sources})
target_include_directories(mxnet_engine_objects PUBLIC csrc)
target_link_libraries(mxnet_engine_objects PUBLIC ${CMAKE_DL_LIBS})
if(BYTEPS_BUILD_PYTHON)
  add_library(mxnet_engine MODULE)
  target_link_libraries(mxnet_engine PRIVATE mxnet_engine_objects)
  set_target_properties(mxnet_engine PROPERTIES
    OUTPUT_NAME _engine PREFIX "" LINKER_LANGUAGE CXX LIBRARY_OUTPUT_DIRECTORY ${BYTEPS_MODULE_DIR}/mxnet)
endif()
