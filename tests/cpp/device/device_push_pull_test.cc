// Push_pulls of device memory: whole jobs, over the played CUDA driver.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "device/played.h"
#include "support/job.h"

namespace byteps::node {
namespace {

using device::PlayedProgram;
using protocol::Handle;

constexpr TimeUs kPatienceUs = 60'000'000;

Job make_job(int workers, int64_t pinned_bytes, int servers = 0) {
  return Job({.workers = workers,
              .servers = servers,
              .ranks_per_machine = 1,
              .adjust = [pinned_bytes](NodeConfig& config, int) {
                config.pinned_bytes = pinned_bytes;
                config.partition_bytes = 4096;
              }});
}

class DevicePushPull : public testing::Test {
 protected:
  void SetUp() override { set_seed(1, 200); }
  void TearDown() override { device::played_function<void()>("played_cuda_recover")(); }

  static void set_seed(unsigned seed, int max_delay_us) {
    device::played_function<void(unsigned, int)>("played_cuda_set_seed")(seed, max_delay_us);
  }
  static void fail_after(int64_t operations) {
    device::played_function<void(int64_t, int)>("played_cuda_fail_after")(operations,
                                                                          device::cuda::kErrorIllegalAddress);
  }
};

Result<Handle> start(Node& node, const std::string& name, float* values, size_t count,
                     std::shared_ptr<device::Transfer> transfer, ReduceOp op = ReduceOp::kSum,
                     int priority = 0) {
  auto* const memory = reinterpret_cast<std::byte*>(values);
  return node.push_pull({.name = name,
                         .dtype = DType::kFloat32,
                         .bytes = count * sizeof(float),
                         .op = op,
                         .priority = priority},
                        {memory, memory, std::move(transfer)});
}

Status wait(Node& node, Handle handle) {
  return node.wait(handle, now_us() + kPatienceUs, [] { return true; });
}

// Each rank makes tensors on its stream, has them summed, and uses the sums on its stream, without
// waiting for the device in between.
void run_program(Node& node, int rank, unsigned seed, bool reverse) {
  std::mt19937 random(seed);
  PlayedProgram program;
  struct Tensor {
    std::string name;
    size_t count;
    float* values;
    std::vector<float> seen;
    std::shared_ptr<device::Transfer> transfer = nullptr;
    Handle handle = 0;
  };
  std::vector<Tensor> tensors;
  for (int i = 0; i < 6; ++i) {
    const size_t count = 1 + random() % 5000;
    tensors.push_back(
        {"t" + std::to_string(i), count, program.allocate<float>(count), std::vector<float>(count)});
  }
  std::vector<size_t> order = {0, 1, 2, 3, 4, 5};
  if (reverse) std::ranges::reverse(order);
  for (int step = 1; step <= 3; ++step) {
    for (const size_t i : order) {
      Tensor& tensor = tensors[i];
      program.launch([&tensor, rank, step] {
        for (size_t k = 0; k < tensor.count; ++k)
          tensor.values[k] = static_cast<float>(rank * step + static_cast<int>(k % 100));
      });
      tensor.transfer = program.begin();
      auto handle = start(node, tensor.name, tensor.values, tensor.count, tensor.transfer, ReduceOp::kSum,
                          static_cast<int>(i));
      ASSERT_TRUE(handle.is_ok()) << handle.status();
      tensor.handle = *handle;
    }
    for (Tensor& tensor : tensors) {
      const Status status = wait(node, tensor.handle);
      ASSERT_TRUE(status.is_ok()) << status;
      ASSERT_TRUE(tensor.transfer->order_before(program.stream()).is_ok());
      program.launch([&tensor] { std::copy_n(tensor.values, tensor.count, tensor.seen.begin()); });
    }
    ASSERT_EQ(program.synchronize(), device::cuda::kSuccess);
    const int size = node.size();
    for (const Tensor& tensor : tensors) {
      EXPECT_TRUE(tensor.transfer->is_complete());
      for (size_t k = 0; k < tensor.count; ++k) {
        const int expected = size * (size - 1) / 2 * step + size * static_cast<int>(k % 100);
        ASSERT_EQ(tensor.seen[k], static_cast<float>(expected))
            << tensor.name << "[" << k << "], step " << step;
      }
    }
  }
}

TEST_F(DevicePushPull, SumsAreRightHoweverLateTheDeviceIs) {
  for (unsigned seed = 1; seed <= 4; ++seed) {
    set_seed(seed, seed % 2 == 0 ? 2000 : 50);
    Job job = make_job(2, 64 << 20);
    job.on_all([seed](int rank, Node& node) { run_program(node, rank, seed, false); });
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_GT(job.worker(rank).metrics().staged_bytes, 0u);
      EXPECT_EQ(job.worker(rank).metrics().unpinned_bytes, 0u);
    }
  }
}

TEST_F(DevicePushPull, ServersSumThemAsWell) {
  Job job = make_job(3, 64 << 20, 2);
  job.on_all([](int rank, Node& node) { run_program(node, rank, 7, false); });
}

// With room for a few partitions, ranks that begin with different tensors would wait for each other
// for ever if anything waited for pinned memory.
TEST_F(DevicePushPull, NothingWaitsForPinnedMemory) {
  for (const int64_t pinned_bytes : {int64_t{0}, int64_t{1} << 20}) {
    Job job = make_job(2, pinned_bytes);
    job.on_all([](int rank, Node& node) { run_program(node, rank, 3, rank == 1); });
    if (pinned_bytes == 0) {
      EXPECT_GT(job.worker(0).metrics().unpinned_bytes, 0u);
    }
  }
}

class DeviceOfRanksOfAMachine : public DevicePushPull, public testing::WithParamInterface<int> {};

INSTANTIATE_TEST_SUITE_P(Sharing, DeviceOfRanksOfAMachine, testing::Values(0, 1));

TEST_P(DeviceOfRanksOfAMachine, SumAndBroadcast) {
  Job job({.workers = 3, .ranks_per_machine = 0, .adjust = [](NodeConfig& config, int) {
             config.shared_staging = GetParam();
           }});
  job.on_all([](int rank, Node& node) {
    run_program(node, rank, 5, false);
    PlayedProgram program;
    auto* const values = program.allocate<float>(3000);
    program.launch([values, rank] {
      // What the root sends must not come before what this rank does with the memory.
      if (rank != 2) std::this_thread::sleep_for(std::chrono::milliseconds(30));
      std::fill_n(values, 3000, static_cast<float>(rank));
    });
    const auto transfer = program.begin();
    auto* const memory = reinterpret_cast<std::byte*>(values);
    const auto handle = node.push_pull(
        {.name = "b", .dtype = DType::kFloat32, .bytes = 12000, .op = ReduceOp::kBroadcast, .root = 2},
        {memory, memory, transfer});
    ASSERT_TRUE(handle.is_ok());
    EXPECT_TRUE(wait(node, *handle).is_ok());
    ASSERT_TRUE(transfer->order_before(program.stream()).is_ok());
    std::vector<float> seen(3000);
    program.launch([&] { std::copy_n(values, 3000, seen.begin()); });
    program.synchronize();
    EXPECT_EQ(std::ranges::count(seen, 2.0f), 3000);
  });
}

// Host functions do not run after an error of the device, and the other rank must not wait.
TEST_F(DevicePushPull, AfterAnErrorOfTheDeviceNobodyWaits) {
  for (const int64_t operations : {0, 3, 10, 25, 60, 100}) {
    device::played_function<void()>("played_cuda_recover")();
    const PlayedProgram before;
    device::CudaDevice& gpu = **device::CudaDevice::get(device::played_driver(), 0);
    Job job = make_job(2, 64 << 20);
    fail_after(operations);
    job.on_all([&gpu](int rank, Node& node) {
      PlayedProgram program;
      auto* const values = program.allocate<float>(20'000);
      std::vector<std::shared_ptr<device::Transfer>> transfers;
      for (int i = 0; i < 20; ++i) {
        program.launch([values] { std::fill_n(values, 20'000, 1.0f); });
        auto transfer = device::Transfer::begin(gpu, program.stream());
        if (!transfer) return node.refuse("t", 0, transfer.status());
        transfers.push_back(*transfer);
        const auto handle = start(node, "t", values, 20'000, *transfer);
        if (!handle) return;
        const Status status = wait(node, *handle);
        if (!status.is_ok()) {
          EXPECT_NE(status.code(), StatusCode::kDeadlineExceeded) << "rank " << rank << ": " << status;
          EXPECT_NE(status.message().find("CUDA_ERROR_ILLEGAL_ADDRESS"), std::string::npos) << status;
          return;
        }
        const Status ordered = (*transfer)->order_before(program.stream());
        if (!ordered.is_ok()) return node.refuse("t", 0, ordered);
      }
    });
  }
}

void fail_beside_a_busy_device(int64_t pinned_bytes) {
  Job job = make_job(2, pinned_bytes);
  std::atomic<bool> may_go_on = false;
  PlayedProgram program;
  auto* const values = program.allocate<float>(1000);
  program.launch([&] {
    while (!may_go_on) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  const auto transfer = program.begin();
  const auto handle = start(job.worker(0), "t", values, 1000, transfer);
  ASSERT_TRUE(handle.is_ok());
  std::thread other([&] { job.worker(1).shutdown("KeyError: 'label'"); });
  const Status status = wait(job.worker(0), *handle);
  EXPECT_NE(status.message().find("KeyError"), std::string::npos) << status;
  may_go_on = true;
  other.join();
}

// The device is still busy with a tensor that nobody needs any more.
TEST_F(DevicePushPull, AfterAFailureOfTheJobNobodyWaitsForTheDevice) {
  for (const int64_t pinned_bytes : {int64_t{0}, int64_t{64} << 20}) fail_beside_a_busy_device(pinned_bytes);
}

// One push_pull follows the other, each as soon as the last one's copy back is enqueued.
TEST_F(DevicePushPull, MemoryIsNotUsedAgainBeforeTheCopyBackIsDone) {
  constexpr size_t kCount = 2000, kTensors = 40;
  set_seed(5, 3000);
  Job job = make_job(2, 64 << 20);
  job.on_all([](int rank, Node& node) {
    PlayedProgram program;
    std::vector<std::vector<float>> seen(kTensors, std::vector<float>(kCount));
    std::vector<std::shared_ptr<device::Transfer>> transfers;
    for (size_t i = 0; i < kTensors; ++i) {
      auto* const values = program.allocate<float>(kCount);
      std::fill_n(values, kCount, static_cast<float>(i + static_cast<size_t>(rank)));
      transfers.push_back(program.begin());
      const auto handle = start(node, "t" + std::to_string(i % 4), values, kCount, transfers.back());
      ASSERT_TRUE(handle.is_ok()) << handle.status();
      ASSERT_TRUE(wait(node, *handle).is_ok());
      ASSERT_TRUE(transfers.back()->order_before(program.stream()).is_ok());
      program.launch([values, &into = seen[i]] { std::copy_n(values, into.size(), into.begin()); });
    }
    program.synchronize();
    for (size_t i = 0; i < kTensors; ++i)
      EXPECT_EQ(std::ranges::count(seen[i], static_cast<float>(2 * i + 1)), 2000) << "tensor " << i;
  });
}

TEST_F(DevicePushPull, CopiesAreAskedOnlyWhileThereAreAny) {
  const auto queries = [] { return device::played_function<uint64_t()>("played_cuda_queries")(); };
  Job job = make_job(2, 64 << 20);
  const uint64_t before = queries();
  job.on_all([](int rank, Node& node) { run_program(node, rank, 1, false); });
  EXPECT_GT(queries(), before);
  // The last copies are done, but the loop may not have seen it yet.
  const auto is_quiet = [&] {
    const uint64_t count = queries();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return queries() == count;
  };
  EXPECT_TRUE(is_quiet() || is_quiet() || is_quiet());
}

TEST_F(DevicePushPull, ATensorMayBeLargerThanWhatIsStagedAtATime) {
  constexpr size_t kCount = 12 << 20;  // 48 MiB
  set_seed(1, 0);
  Job job({.workers = 2, .ranks_per_machine = 0, .adjust = [](NodeConfig& config, int) {
             config.shared_staging = 1;
             config.partition_bytes = 1 << 20;
           }});
  job.on_all([](int rank, Node& node) {
    PlayedProgram program;
    auto* const values = program.allocate<float>(kCount);
    std::fill_n(values, kCount, static_cast<float>(rank + 1));
    const auto transfer = program.begin();
    const auto handle = start(node, "t", values, kCount, transfer);
    ASSERT_TRUE(handle.is_ok()) << handle.status();
    ASSERT_TRUE(wait(node, *handle).is_ok());
    ASSERT_TRUE(transfer->order_before(program.stream()).is_ok());
    program.synchronize();
    EXPECT_EQ(std::count(values, values + kCount, 3.0f), static_cast<std::ptrdiff_t>(kCount));
  });
}

// CUDA would refuse some calls meanwhile, and end the capture.
TEST_F(DevicePushPull, ACaptureByAnotherThreadIsNotDisturbed) {
  using device::cuda::Code;
  auto* const begin = device::played_function<Code(device::cuda::Stream, int)>("cuStreamBeginCapture_v2");
  auto* const end = device::played_function<Code(device::cuda::Stream, void**)>("cuStreamEndCapture");
  Job job = make_job(2, 64 << 20);
  // What a program does itself would disturb the capture: allocate, synchronize.
  PlayedProgram captured, programs[2];
  float* values[2];
  for (int rank = 0; rank < 2; ++rank) values[rank] = programs[rank].allocate<float>(1000);
  ASSERT_EQ(begin(captured.stream(), device::cuda::kCaptureGlobal), device::cuda::kSuccess);
  device::CudaDevice& gpu = **device::CudaDevice::get(device::played_driver(), 0);
  EXPECT_EQ(device::Transfer::begin(gpu, captured.stream()).status().code(), StatusCode::kInvalidArgument)
      << "a push_pull within a graph";
  job.on_all([&](int rank, Node& node) {
    const auto transfer = programs[rank].begin();
    const auto handle = start(node, "beside", values[rank], 1000, transfer);
    ASSERT_TRUE(handle.is_ok()) << handle.status();
    ASSERT_TRUE(wait(node, *handle).is_ok());
    while (!transfer->is_complete()) std::this_thread::yield();
  });
  void* graph = nullptr;
  EXPECT_EQ(end(captured.stream(), &graph), device::cuda::kSuccess);
}

}  // namespace
}  // namespace byteps::node
