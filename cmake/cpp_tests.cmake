# One executable, and one ctest entry, per folder of tests/cpp; tests/cpp/support is linked into all of them.
# Each writes <build>/test-results/<folder>.xml, where tools/run_tests.py finds the single cases and skip reasons.
enable_testing()
find_package(GTest REQUIRED)

file(GLOB support_sources CONFIGURE_DEPENDS tests/cpp/support/*.cc)
add_library(byteps_test_support INTERFACE)
if(support_sources)
  add_library(byteps_test_support_objects STATIC ${support_sources})
  target_link_libraries(byteps_test_support_objects PUBLIC byteps_core GTest::gtest)
  target_compile_options(byteps_test_support_objects PRIVATE -O1)
  target_include_directories(byteps_test_support_objects PUBLIC tests/cpp)
  target_link_libraries(byteps_test_support INTERFACE byteps_test_support_objects)
endif()
target_include_directories(byteps_test_support INTERFACE tests/cpp)
target_link_libraries(byteps_test_support INTERFACE byteps_core GTest::gtest_main)
# Tests are compiled once more for each sanitizer and run for seconds: what they test is optimized, they less.
target_compile_options(byteps_test_support INTERFACE -O1)
# False alarms about std::string of GCC 12, which does not take a precompiled header for one of the system.
target_compile_options(byteps_test_support INTERFACE
                       $<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds -Wno-stringop-overflow>)
if(TARGET byteps_sim)
  target_link_libraries(byteps_test_support INTERFACE byteps_sim)
endif()

file(GLOB test_sources CONFIGURE_DEPENDS tests/cpp/*/*_test.cc)
find_path(VERBS_INCLUDE infiniband/verbs.h)
if(NOT VERBS_INCLUDE)
  message(STATUS "infiniband/verbs.h not found (libibverbs-dev): without verbs_abi_test.cc")
  list(FILTER test_sources EXCLUDE REGEX "/verbs_abi_test\\.cc$")
endif()
foreach(source IN LISTS test_sources)
  cmake_path(GET source PARENT_PATH folder)
  cmake_path(GET folder FILENAME folder)
  list(APPEND test_folders ${folder})
  list(APPEND ${folder}_tests ${source})
endforeach()
list(REMOVE_DUPLICATES test_folders)

# Run inside of virtual machines and on machines with RDMA devices, by those who know that there are some: no test here.
set(device_folders rdma_device)

# Well below the limit of tools/run_tests.py, and several times what the slowest takes with ThreadSanitizer on a loaded
# machine: single cases have deadlines of their own.
set(LAST_RESORT_S 1200)
foreach(folder IN LISTS test_folders)
  add_executable(${folder}_test ${${folder}_tests})
  target_link_libraries(${folder}_test PRIVATE byteps_test_support)
  # GoogleTest is half of what a test file compiles.
  if(precompiled_by)
    target_precompile_headers(${folder}_test REUSE_FROM ${precompiled_by})
  else()
    target_precompile_headers(${folder}_test PRIVATE <gtest/gtest.h>)
    set(precompiled_by ${folder}_test)
  endif()
  if(folder IN_LIST device_folders)
    continue()
  endif()
  add_test(NAME ${folder}
           COMMAND ${folder}_test --gtest_output=xml:${PROJECT_BINARY_DIR}/test-results/${folder}.xml)
  set_tests_properties(${folder} PROPERTIES TIMEOUT ${LAST_RESORT_S})
endforeach()

# What every transport has to do, by what the devices carry.
set(conformance_tests tests/cpp/transport/conformance_test.cc tests/cpp/transport/conformance_close_test.cc)
target_sources(rdma_device_test PRIVATE ${conformance_tests})
target_sources(sim_test PRIVATE ${conformance_tests} tests/cpp/transport/loop_conformance_test.cc)

# The test plays MXNet, whose functions are looked up in the program.
target_link_libraries(mxnet_test PRIVATE mxnet_engine_objects)
set_target_properties(mxnet_test PROPERTIES ENABLE_EXPORTS ON)

# The same table of rules as on a real GPU (tools/gpu_slot.py).
add_executable(cuda_rules tests/cpp/device/cuda_rules.cc)
target_link_libraries(cuda_rules PRIVATE byteps_core)
add_test(NAME cuda_rules COMMAND cuda_rules $<TARGET_FILE:played_cuda>)
set_tests_properties(cuda_rules PROPERTIES TIMEOUT ${LAST_RESORT_S})

# Where the played CUDA driver is.
add_dependencies(device_test played_cuda)
target_compile_definitions(device_test PRIVATE BYTEPS_PLAYED_CUDA="$<TARGET_FILE:played_cuda>")

# A few seeds, others than those of sim_test, with this build's sanitizers; tools/run_tests.py runs 10,000 in the release build.
if(TARGET bps_sim)
  add_test(NAME simulator COMMAND bps_sim --from 201 --seeds 200)
  set_tests_properties(simulator PROPERTIES TIMEOUT ${LAST_RESORT_S})
endif()
