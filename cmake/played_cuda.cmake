# A CUDA driver for machines without a GPU (tests/played_cuda/). It has the name of the real one, in a folder of its own.
add_library(played_cuda SHARED tests/played_cuda/played_cuda.cc)
target_include_directories(played_cuda PRIVATE csrc)
target_link_libraries(played_cuda PRIVATE Threads::Threads)
set_target_properties(played_cuda PROPERTIES OUTPUT_NAME cuda SOVERSION 1
                      LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/played_cuda)
