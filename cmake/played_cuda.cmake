# A CUDA driver for machines without a GPU (tests/played_cuda/). It has the name of the real one, in a folder of its own.
add_library(played_cuda SHARED tests/played_cuda/played_cuda.cc)
target_include_directories(played_cuda PRIVATE csrc)
# ThreadSanitizer of clang 14 reads sizes that are not there for thread-local memory of a library that dlopen loads.
target_compile_options(played_cuda PRIVATE -ftls-model=initial-exec)
target_link_libraries(played_cuda PRIVATE Threads::Threads)
set_target_properties(played_cuda PROPERTIES OUTPUT_NAME cuda SOVERSION 1
                      LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/played_cuda)
