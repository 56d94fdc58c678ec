# One executable per benchmarks/cpp/<name>_bench.cc.
find_package(benchmark REQUIRED)

file(GLOB bench_sources CONFIGURE_DEPENDS benchmarks/cpp/*_bench.cc)
foreach(source IN LISTS bench_sources)
  cmake_path(GET source STEM name)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE byteps_core benchmark::benchmark_main)
endforeach()

# Two of these speak to each other; benchmarks/measures/rdma.py starts them.
add_executable(rdma_pair benchmarks/rdma/rdma_pair.cc)
target_link_libraries(rdma_pair PRIVATE byteps_core)
