# byteps_scale (times at scale: part of the Python module, for `byteps plan`), byteps_sim (faults from a seed) with it,
# for their tests, and bps_sim (replays seeds from the command line).
file(GLOB scale_sources CONFIGURE_DEPENDS csrc/sim/scale_*.cc)
add_library(byteps_scale STATIC ${scale_sources})
target_link_libraries(byteps_scale PUBLIC byteps_core)
if(NOT BYTEPS_BUILD_TESTS AND NOT BYTEPS_BUILD_BENCHMARKS)
  return()
endif()

file(GLOB sim_sources CONFIGURE_DEPENDS csrc/sim/*.cc)
list(REMOVE_ITEM sim_sources ${PROJECT_SOURCE_DIR}/csrc/sim/main.cc ${scale_sources})
if(sim_sources)
  add_library(byteps_sim STATIC ${sim_sources})
  target_link_libraries(byteps_sim PUBLIC byteps_scale)
endif()
if(TARGET byteps_sim AND EXISTS ${PROJECT_SOURCE_DIR}/csrc/sim/main.cc)
  add_executable(bps_sim csrc/sim/main.cc)
  target_link_libraries(bps_sim PRIVATE byteps_sim)
endif()
