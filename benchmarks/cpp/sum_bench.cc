// Throughput of kernels/sum.h compared with the machine's copy bandwidth; see benchmarks/README.md.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/sum.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace byteps::kernels {
namespace {

constexpr size_t kInCacheBytes = 128 << 10;     // three such arrays fit into a 1 MiB L2 cache
constexpr size_t kPartitionBytes = 1 << 20;     // fits into an L3 cache with its sources
constexpr size_t kOutOfCacheBytes = 128 << 20;  // exceeds any L3 cache

// n + 1 arrays of `size_bytes`, written once so that all pages are mapped.
class Arrays {
 public:
  Arrays(size_t n, size_t size_bytes) {
    for (size_t i = 0; i <= n; ++i) {
      storage_.emplace_back(static_cast<std::byte*>(std::aligned_alloc(4096, size_bytes)), &std::free);
      std::memset(storage_.back().get(), 0, size_bytes);
    }
    for (size_t i = 1; i <= n; ++i) srcs_.push_back(storage_[i].get());
  }
  void* dst() { return storage_[0].get(); }
  std::vector<const void*>& srcs() { return srcs_; }

 private:
  std::vector<std::unique_ptr<std::byte, decltype(&std::free)>> storage_;
  std::vector<const void*> srcs_;
};

// ---- Copies ----

using Copy = void (*)(void* dst, const void* src, size_t size_bytes);

void copy_memcpy(void* dst, const void* src, size_t size_bytes) { std::memcpy(dst, src, size_bytes); }

#if defined(__x86_64__)
__attribute__((target("avx2"))) void copy_avx2(void* dst, const void* src, size_t size_bytes) {
  auto* to = static_cast<__m256i*>(dst);
  const auto* from = static_cast<const __m256i*>(src);
  for (size_t i = 0; i < size_bytes / sizeof(__m256i); i += 4) {
    for (size_t v = 0; v < 4; ++v) _mm256_store_si256(to + i + v, _mm256_load_si256(from + i + v));
  }
}

__attribute__((target("avx2"))) void copy_avx2_streaming(void* dst, const void* src, size_t size_bytes) {
  auto* to = static_cast<__m256i*>(dst);
  const auto* from = static_cast<const __m256i*>(src);
  for (size_t i = 0; i < size_bytes / sizeof(__m256i); i += 4) {
    for (size_t v = 0; v < 4; ++v) _mm256_stream_si256(to + i + v, _mm256_load_si256(from + i + v));
  }
  _mm_sfence();
}

void copy_rep_movsb(void* dst, const void* src, size_t size_bytes) {
  asm volatile("rep movsb" : "+D"(dst), "+S"(src), "+c"(size_bytes) : : "memory");
}
#endif

struct NamedCopy {
  const char* name;
  Copy copy;
};

std::vector<NamedCopy> all_copies() {
  std::vector<NamedCopy> copies = {{"memcpy", copy_memcpy}};
#if defined(__x86_64__)
  copies.push_back({"rep_movsb", copy_rep_movsb});
  if (is_supported(Isa::kAvx2)) {
    copies.push_back({"avx2", copy_avx2});
    copies.push_back({"avx2_streaming", copy_avx2_streaming});
  }
#endif
  return copies;
}

void run_copy(benchmark::State& state, Copy copy, size_t size_bytes) {
  Arrays arrays(1, size_bytes);
  for (auto _ : state) copy(arrays.dst(), arrays.srcs()[0], size_bytes);
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * 2 * size_bytes));
}

// ---- Reductions ----

void run_reduction(benchmark::State& state, Isa isa, Reduction reduction, size_t n, size_t size_bytes) {
  Arrays arrays(n, size_bytes);
  const StoreMode stores = choose_stores(arrays.dst(), arrays.srcs(), size_bytes);
  for (auto _ : state) {
    reduce_n_with(isa, stores, reduction, arrays.dst(), arrays.srcs(), size_bytes / size_of(reduction.dtype));
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * (n + 1) * size_bytes));
}

// ---- The ratio of a sum to the best copy, measured alternately under the same conditions ----

// CPU time of this thread, so that other processes do not count.
double seconds_of(const auto& work) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  };
  const double start = now();
  work();
  return now() - start;
}

double median(std::vector<double>& values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

void run_ratio(benchmark::State& state, size_t n, bool in_place, size_t size_bytes) {
  Arrays arrays(n, size_bytes);
  if (in_place) arrays.srcs()[0] = arrays.dst();
  const Reduction reduction{.dtype = DType::kFloat32, .op = ReduceOp::kSum};
  const std::vector<NamedCopy> copies = all_copies();
  std::vector<std::vector<double>> copy_seconds(copies.size());
  std::vector<double> sum_seconds;
  for (auto _ : state) {
    for (size_t i = 0; i < copies.size(); ++i) {
      copy_seconds[i].push_back(
          seconds_of([&] { copies[i].copy(arrays.dst(), arrays.srcs().back(), size_bytes); }));
    }
    sum_seconds.push_back(
        seconds_of([&] { reduce_n(reduction, arrays.dst(), arrays.srcs(), size_bytes / sizeof(float)); }));
  }
  double best_copy = 0;
  for (std::vector<double>& seconds : copy_seconds) best_copy = std::max(best_copy, 2.0 / median(seconds));
  const double sum = static_cast<double>(n + 1) / median(sum_seconds);
  const double gigabytes = static_cast<double>(size_bytes) / 1e9;
  state.counters["copy_GB/s"] = best_copy * gigabytes;
  state.counters["sum_GB/s"] = sum * gigabytes;
  state.counters["ratio"] = sum / best_copy;
}

std::string in_kib(size_t size_bytes) { return std::to_string(size_bytes >> 10) + "KiB"; }

void register_copies() {
  for (const NamedCopy& named : all_copies()) {
    for (size_t size : {kInCacheBytes, kPartitionBytes, kOutOfCacheBytes}) {
      const std::string name = std::string("copy/") + named.name + "/" + in_kib(size);
      benchmark::RegisterBenchmark(name.c_str(), run_copy, named.copy, size);
    }
  }
}

void register_reduction(Isa isa, const Reduction& reduction, size_t n, size_t size_bytes) {
  std::string name = "reduce";
  for (std::string_view part : {to_string(isa), to_string(reduction.dtype), to_string(reduction.op)}) {
    name.append("/").append(part);
  }
  name += "/n:" + std::to_string(n) + "/" + in_kib(size_bytes);
  benchmark::RegisterBenchmark(name.c_str(), run_reduction, isa, reduction, n, size_bytes);
}

void register_reductions() {
  constexpr std::array kOps = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax,
                               ReduceOp::kProduct};
  for (Isa isa : kAllIsas) {
    if (!is_supported(isa)) continue;
    for (const DTypeRow& row : kDTypes) {
      const DType dtype = row.code;
      for (ReduceOp op : kOps) {
        for (size_t size : {kInCacheBytes, kOutOfCacheBytes}) {
          register_reduction(isa, {.dtype = dtype, .op = op, .divisor = 3}, 2, size);
        }
      }
    }
  }
  for (size_t n : {2, 3, 4, 8}) {
    register_reduction(best_isa(), {.dtype = DType::kFloat32, .op = ReduceOp::kSum}, n, kPartitionBytes);
  }
}

void register_ratios() {
  for (size_t n : {2, 3, 4, 8}) {
    for (bool in_place : {false, true}) {
      const std::string name = "ratio_to_best_copy/float32/sum/n:" + std::to_string(n) + "/" +
                               in_kib(kOutOfCacheBytes) + (in_place ? "/in_place" : "");
      benchmark::RegisterBenchmark(name.c_str(), run_ratio, n, in_place, kOutOfCacheBytes)->Iterations(21);
    }
  }
}

const bool kRegistered = (register_copies(), register_reductions(), register_ratios(), true);

}  // namespace
}  // namespace byteps::kernels
