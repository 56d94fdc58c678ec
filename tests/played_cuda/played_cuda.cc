// A CUDA driver that is played: the functions of libcuda.so.1 that the core and its tests use, over
// host memory. Streams are threads; operations take random times, from a seed, so what is not
// ordered runs in every order. It is as strict as the real driver, and more:
//
// - memory that a copy to the host will fill is filled with kPoison when the copy is enqueued, so
//   whoever reads it early gets wrong values;
// - a copy from or to memory that was freed, or never allocated, ends the process;
// - after an error of the device (played_cuda_fail_after) every call returns it, and nothing that
//   was enqueued runs, host functions included.
//
// tests/cpp/device/cuda_rules.cc compares its rules with those of a real driver.
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "device/cuda_abi.h"

namespace byteps::device::cuda {

// Counts records, so that a wait refers to one of them.
struct EventObject {
  uint64_t recorded = 0;
  uint64_t completed = 0;
  bool is_captured = false;
};

struct StreamObject {
  struct Operation {
    std::function<bool()> may_run;  // with the lock; empty: yes
    std::function<void()> run;      // without the lock
    std::function<void()> ended;    // with the lock; may be empty
  };
  bool is_blocking = true;  // ordered with the legacy default stream
  bool is_capturing = false;
  bool is_closing = false;
  bool has_ended = false;   // the thread has
  bool is_running = false;  // an operation
  uint64_t enqueued = 0;
  uint64_t executed = 0;
  std::deque<Operation> operations;
  std::thread thread;
};

struct ContextObject {
  int users = 0;
  StreamObject* legacy = nullptr;
};

namespace {

constexpr std::byte kPoison{0xDD};
constexpr int kDevices = 2;
constexpr Code kErrorNotPermitted = 800;
constexpr Code kErrorStreamCaptureInvalidated = 901;

struct Range {
  const std::byte* begin;
  size_t bytes;
};

struct Player {
  std::mutex mutex;
  std::condition_variable changed;
  std::array<ContextObject, kDevices> contexts;
  std::map<const std::byte*, size_t> device_memory, pinned;
  std::set<StreamObject*> streams;
  std::vector<StreamObject*> destroyed;  // whose threads may still work
  std::vector<std::unique_ptr<EventObject>> events;
  std::minstd_rand random{[] {
    const char* const seed = std::getenv("PLAYED_CUDA_SEED");
    return seed == nullptr ? 1u : static_cast<unsigned>(std::atoi(seed));
  }()};
  int max_delay_us = 200;
  int64_t fail_after = -1;  // operations until the device fails; negative: never
  Code fail_with = kErrorIllegalAddress;
  Code failed = kSuccess;
  int capturing_globally = 0;
  bool capture_is_spoilt = false;
  uint64_t queries = 0;  // calls of cuEventQuery
};

void end_threads();

Player& player() {
  static Player* const instance = [] {
    std::atexit(end_threads);
    return new Player;
  }();
  return *instance;
}

struct ThreadState {
  std::vector<Context> contexts;
  int capture_mode = kCaptureGlobal;
  bool in_host_function = false;
};
thread_local ThreadState this_thread;

using Lock = std::unique_lock<std::mutex>;

bool contains(const std::map<const std::byte*, size_t>& ranges, const void* begin, size_t bytes) {
  const auto* const first = static_cast<const std::byte*>(begin);
  auto after = ranges.upper_bound(first);
  if (after == ranges.begin()) return false;
  const auto& [start, size] = *std::prev(after);
  return first + bytes <= start + size;
}

void require_device_memory(const Player& player, const void* begin, size_t bytes) {
  if (contains(player.device_memory, begin, bytes)) return;
  std::fprintf(stderr, "played CUDA: a copy uses %zu bytes at %p, which are not memory of the device\n",
               bytes, begin);
  std::abort();
}

void run(StreamObject* stream) {
  Player& all = player();
  Lock lock(all.mutex);
  for (;;) {
    all.changed.wait(lock, [&] {
      if (stream->operations.empty()) return stream->is_closing;
      return all.failed == kSuccess &&
             (!stream->operations.front().may_run || stream->operations.front().may_run());
    });
    if (stream->operations.empty()) {
      stream->has_ended = true;
      return;
    }
    if (all.fail_after >= 0 && all.fail_after-- == 0) {
      all.failed = all.fail_with;
      all.changed.notify_all();
      continue;
    }
    auto operation = std::move(stream->operations.front());
    stream->operations.pop_front();
    stream->is_running = true;
    const int delay_us =
        all.max_delay_us > 0 ? static_cast<int>(all.random() % static_cast<unsigned>(all.max_delay_us)) : 0;
    lock.unlock();
    if (delay_us > 20) std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
    if (operation.run) operation.run();
    lock.lock();
    if (operation.ended) operation.ended();
    ++stream->executed;
    stream->is_running = false;
    all.changed.notify_all();
  }
}

StreamObject* new_stream(Player& all, bool is_blocking) {
  auto* const stream = new StreamObject;
  stream->is_blocking = is_blocking;
  stream->thread = std::thread(run, stream);
  all.streams.insert(stream);
  return stream;
}

// At the end of the process: what is enqueued does not run any more.
void end_threads() {
  Player& all = player();
  std::vector<StreamObject*> streams;
  {
    const Lock lock(all.mutex);
    streams.assign(all.streams.begin(), all.streams.end());
    streams.insert(streams.end(), all.destroyed.begin(), all.destroyed.end());
    for (StreamObject* const stream : streams) {
      stream->operations.clear();
      stream->is_closing = true;
    }
    all.changed.notify_all();
  }
  for (StreamObject* const stream : streams) stream->thread.join();
}

// The legacy default stream and blocking streams wait for what was enqueued in the other before.
uint64_t enqueue(Player& all, StreamObject* stream, StreamObject::Operation operation) {
  std::vector<std::pair<StreamObject*, uint64_t>> before;
  bool is_legacy = false;
  for (const ContextObject& context : all.contexts) is_legacy |= context.legacy == stream;
  for (StreamObject* const other : all.streams) {
    bool other_is_legacy = false;
    for (const ContextObject& context : all.contexts) other_is_legacy |= context.legacy == other;
    const bool is_ordered = is_legacy ? other->is_blocking : other_is_legacy && stream->is_blocking;
    if (other != stream && is_ordered && other->executed < other->enqueued)
      before.emplace_back(other, other->enqueued);
  }
  if (!before.empty()) {
    operation.may_run = [&all, before, may_run = std::move(operation.may_run)] {
      for (const auto& [other, number] : before) {
        if (all.streams.contains(other) && other->executed < number) return false;
      }
      return !may_run || may_run();
    };
  }
  stream->operations.push_back(std::move(operation));
  all.changed.notify_all();
  return ++stream->enqueued;
}

// The stream that a handle means; null: none.
StreamObject* find(Player& all, Stream stream) {
  if (stream != nullptr) return all.streams.contains(stream) ? stream : nullptr;
  if (this_thread.contexts.empty()) return nullptr;
  Context context = this_thread.contexts.back();
  if (context->legacy == nullptr) context->legacy = new_stream(all, true);
  return context->legacy;
}

// What every call checks first.
Code check(Player& all, bool is_unsafe_during_capture = false) {
  if (all.failed != kSuccess) return all.failed;
  if (this_thread.in_host_function) return kErrorNotPermitted;
  if (is_unsafe_during_capture && all.capturing_globally > 0 && this_thread.capture_mode == kCaptureGlobal) {
    all.capture_is_spoilt = true;
    return kErrorStreamCaptureUnsupported;
  }
  return kSuccess;
}

#define PLAYED_CHECK(...) \
  Player& all = player(); \
  Lock lock(all.mutex);   \
  if (const Code code = check(all __VA_OPT__(, ) __VA_ARGS__); code != kSuccess) return code

}  // namespace

#define PLAYED extern "C" __attribute__((visibility("default")))

// --- control of the player, for tests

// The device fails at its next operation but `operations`; negative: never.
PLAYED void played_cuda_fail_after(int64_t operations, Code code) {
  Player& all = player();
  const Lock lock(all.mutex);
  all.fail_after = operations;
  all.fail_with = code;
}
PLAYED void played_cuda_set_seed(unsigned seed, int max_delay_us) {
  Player& all = player();
  const Lock lock(all.mutex);
  all.random.seed(seed);
  all.max_delay_us = max_delay_us;
}
// All calls return `code` from now on.
PLAYED void played_cuda_fail_now(Code code) {
  Player& all = player();
  const Lock lock(all.mutex);
  all.failed = code;
  all.changed.notify_all();
}
// A new device after a failure; the operations of the old one are forgotten.
PLAYED void played_cuda_recover() {
  Player& all = player();
  const Lock lock(all.mutex);
  all.failed = kSuccess;
  all.fail_after = -1;
  all.pinned.clear();
  for (StreamObject* const stream : all.streams) {
    stream->executed += stream->operations.size();
    stream->operations.clear();
  }
  for (const auto& event : all.events) event->completed = event->recorded;
  all.changed.notify_all();
}
// Returns when no operation of the stream (null: none) runs; after an error cuStreamSynchronize does not wait.
PLAYED void played_cuda_wait_for_running(Stream stream) {
  Player& all = player();
  Lock lock(all.mutex);
  all.changed.wait(lock, [&] { return stream == nullptr || !stream->is_running; });
}
PLAYED uint64_t played_cuda_queries() {
  Player& all = player();
  const Lock lock(all.mutex);
  return all.queries;
}

PLAYED uint64_t played_cuda_pinned_bytes() {
  Player& all = player();
  const Lock lock(all.mutex);
  uint64_t bytes = 0;
  for (const auto& [begin, size] : all.pinned) bytes += size;
  return bytes;
}

// --- the driver

PLAYED Code cuInit(unsigned) { return kSuccess; }
PLAYED Code cuDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}
PLAYED Code cuGetErrorName(Code code, const char** name) {
  static const std::map<Code, const char*> names = {
      {kErrorInvalidValue, "CUDA_ERROR_INVALID_VALUE"},
      {kErrorOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
      {kErrorDeinitialized, "CUDA_ERROR_DEINITIALIZED"},
      {kErrorInvalidContext, "CUDA_ERROR_INVALID_CONTEXT"},
      {kErrorInvalidHandle, "CUDA_ERROR_INVALID_HANDLE"},
      {kErrorIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS"},
      {kErrorHostMemoryAlreadyRegistered, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
      {kErrorNotPermitted, "CUDA_ERROR_NOT_PERMITTED"},
      {kErrorStreamCaptureUnsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"}};
  const auto found = names.find(code);
  *name = found == names.end() ? "CUDA_ERROR_PLAYED" : found->second;
  return kSuccess;
}
PLAYED Code cuGetErrorString(Code, const char** text) {
  *text = "an error of the played driver";
  return kSuccess;
}
PLAYED Code cuDeviceGetCount(int* count) {
  *count = kDevices;
  return kSuccess;
}
PLAYED Code cuDeviceGetName(char* name, int capacity, Ordinal) {
  std::snprintf(name, static_cast<size_t>(capacity), "Played GPU");
  return kSuccess;
}
PLAYED Code cuDeviceGetPCIBusId(char* id, int capacity, Ordinal device) {
  std::snprintf(id, static_cast<size_t>(capacity), "0000:0%d:00.0", device + 1);
  return kSuccess;
}

PLAYED Code cuDevicePrimaryCtxGetState(Ordinal device, unsigned* flags, int* active) {
  if (device < 0 || device >= kDevices) return kErrorInvalidDevice;
  PLAYED_CHECK();
  *flags = 0;
  *active = all.contexts[static_cast<size_t>(device)].users > 0;
  return kSuccess;
}
PLAYED Code cuDevicePrimaryCtxRetain(Context* context, Ordinal device) {
  if (device < 0 || device >= kDevices) return kErrorInvalidDevice;
  PLAYED_CHECK();
  *context = &all.contexts[static_cast<size_t>(device)];
  ++(*context)->users;
  return kSuccess;
}
PLAYED Code cuCtxPushCurrent_v2(Context context) {
  this_thread.contexts.push_back(context);
  return kSuccess;
}
PLAYED Code cuCtxPopCurrent_v2(Context* context) {
  if (this_thread.contexts.empty()) return kErrorInvalidContext;
  *context = this_thread.contexts.back();
  this_thread.contexts.pop_back();
  return kSuccess;
}

PLAYED Code cuStreamCreate(Stream* stream, unsigned flags) {
  PLAYED_CHECK();
  if (this_thread.contexts.empty()) return kErrorInvalidContext;
  *stream = new_stream(all, (flags & kStreamNonBlocking) == 0);
  return kSuccess;
}
PLAYED Code cuStreamDestroy_v2(Stream stream) {
  PLAYED_CHECK();
  if (!all.streams.contains(stream)) return kErrorInvalidHandle;
  all.streams.erase(stream);
  stream->is_closing = true;
  all.changed.notify_all();
  all.destroyed.push_back(stream);  // what was enqueued still runs
  std::vector<StreamObject*> ended;
  std::erase_if(all.destroyed, [&](StreamObject* each) {
    if (each->has_ended) ended.push_back(each);
    return each->has_ended;
  });
  lock.unlock();
  for (StreamObject* const each : ended) {
    each->thread.join();
    delete each;
  }
  return kSuccess;
}
PLAYED Code cuStreamSynchronize(Stream handle) {
  PLAYED_CHECK(true);
  StreamObject* const stream = find(all, handle);
  if (stream == nullptr) return kErrorInvalidHandle;
  const uint64_t until = stream->enqueued;
  all.changed.wait(lock, [&] { return stream->executed >= until || all.failed != kSuccess; });
  return all.failed;
}
PLAYED Code cuStreamWaitEvent(Stream handle, Event event, unsigned) {
  PLAYED_CHECK();
  StreamObject* const stream = find(all, handle);
  if (stream == nullptr) return kErrorInvalidHandle;
  enqueue(all, stream, {[event, number = event->recorded] { return event->completed >= number; }, {}, {}});
  return kSuccess;
}
PLAYED Code cuStreamIsCapturing(Stream handle, int* status) {
  PLAYED_CHECK();
  StreamObject* const stream = find(all, handle);
  if (stream == nullptr) return kErrorInvalidHandle;
  *status = stream->is_capturing ? kCaptureActive : kCaptureNone;
  return kSuccess;
}
PLAYED Code cuStreamBeginCapture_v2(Stream stream, int mode) {
  PLAYED_CHECK();
  stream->is_capturing = true;
  if (mode == kCaptureGlobal) ++all.capturing_globally;
  return kSuccess;
}
PLAYED Code cuStreamEndCapture(Stream stream, void** graph) {
  PLAYED_CHECK();
  stream->is_capturing = false;
  if (all.capturing_globally > 0) --all.capturing_globally;
  *graph = nullptr;
  return std::exchange(all.capture_is_spoilt, false) ? kErrorStreamCaptureInvalidated : kSuccess;
}
PLAYED Code cuThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, this_thread.capture_mode);
  return kSuccess;
}

PLAYED Code cuEventCreate(Event* event, unsigned) {
  PLAYED_CHECK();
  if (this_thread.contexts.empty()) return kErrorInvalidContext;
  all.events.push_back(std::make_unique<EventObject>());
  *event = all.events.back().get();
  return kSuccess;
}
PLAYED Code cuEventDestroy_v2(Event) { return kSuccess; }  // freed at the end of the process
PLAYED Code cuEventRecord(Event event, Stream handle) {
  PLAYED_CHECK();
  StreamObject* const stream = find(all, handle);
  if (stream == nullptr) return handle == nullptr ? kErrorInvalidContext : kErrorInvalidHandle;
  event->is_captured = stream->is_capturing;
  if (stream->is_capturing) return kSuccess;
  const uint64_t number = ++event->recorded;
  enqueue(all, stream, {{}, {}, [event, number] { event->completed = std::max(event->completed, number); }});
  return kSuccess;
}
PLAYED Code cuEventQuery(Event event) {
  PLAYED_CHECK(true);
  ++all.queries;
  if (event->is_captured) return kErrorStreamCaptureUnsupported;
  return event->completed >= event->recorded ? kSuccess : kErrorNotReady;
}
PLAYED Code cuEventSynchronize(Event event) {
  PLAYED_CHECK(true);
  const uint64_t number = event->recorded;
  all.changed.wait(lock, [&] { return event->completed >= number || all.failed != kSuccess; });
  return all.failed;
}
PLAYED Code cuLaunchHostFunc(Stream handle, HostFunction function, void* argument) {
  PLAYED_CHECK();
  StreamObject* const stream = find(all, handle);
  if (stream == nullptr) return kErrorInvalidHandle;
  enqueue(all, stream,
          {{},
           [function, argument] {
             this_thread.in_host_function = true;
             function(argument);
             this_thread.in_host_function = false;
           },
           {}});
  return kSuccess;
}

PLAYED Code cuMemAlloc_v2(Address* address, size_t bytes) {
  PLAYED_CHECK(true);
  if (this_thread.contexts.empty()) return kErrorInvalidContext;
  auto* const memory = static_cast<std::byte*>(std::malloc(bytes));
  std::memset(memory, static_cast<int>(kPoison), bytes);
  all.device_memory[memory] = bytes;
  *address = reinterpret_cast<Address>(memory);
  return kSuccess;
}
PLAYED Code cuMemFree_v2(Address address) {
  PLAYED_CHECK(true);
  const auto found = all.device_memory.find(reinterpret_cast<std::byte*>(address));
  if (found == all.device_memory.end()) return kErrorInvalidValue;
  // As the real one: when all work is done.
  all.changed.wait(lock, [&] {
    for (const StreamObject* const stream : all.streams) {
      if (stream->executed < stream->enqueued && all.failed == kSuccess) return false;
    }
    return true;
  });
  std::free(reinterpret_cast<void*>(address));
  all.device_memory.erase(found);
  return kSuccess;
}
PLAYED Code cuMemHostRegister_v2(void* address, size_t bytes, unsigned) {
  PLAYED_CHECK(true);
  const auto* const begin = static_cast<std::byte*>(address);
  for (const auto& [start, size] : all.pinned) {
    if (begin < start + size && start < begin + bytes) return kErrorHostMemoryAlreadyRegistered;
  }
  all.pinned[begin] = bytes;
  return kSuccess;
}
PLAYED Code cuMemHostUnregister(void* address) {
  PLAYED_CHECK(true);
  return all.pinned.erase(static_cast<std::byte*>(address)) == 1 ? kSuccess : 713;
}

PLAYED Code cuMemcpyDtoHAsync_v2(void* to, Address address, size_t bytes, Stream handle) {
  PLAYED_CHECK();
  StreamObject* const stream = find(all, handle);
  if (stream == nullptr) return kErrorInvalidHandle;
  const auto* const from = reinterpret_cast<const std::byte*>(address);
  require_device_memory(all, from, bytes);
  const bool is_pinned = contains(all.pinned, to, bytes);
  if (is_pinned) std::memset(to, static_cast<int>(kPoison), bytes);
  const uint64_t number = enqueue(all, stream, {{}, [to, from, bytes] { std::memcpy(to, from, bytes); }, {}});
  // Plain memory is filled when the call returns.
  if (!is_pinned)
    all.changed.wait(lock, [&] { return stream->executed >= number || all.failed != kSuccess; });
  return all.failed;
}
PLAYED Code cuMemcpyHtoDAsync_v2(Address address, const void* from, size_t bytes, Stream handle) {
  PLAYED_CHECK();
  StreamObject* const stream = find(all, handle);
  if (stream == nullptr) return kErrorInvalidHandle;
  auto* const to = reinterpret_cast<std::byte*>(address);
  require_device_memory(all, to, bytes);
  if (contains(all.pinned, from, bytes)) {
    enqueue(all, stream, {{}, [to, from, bytes] { std::memcpy(to, from, bytes); }, {}});
    return kSuccess;
  }
  // Plain memory has been read when the call returns.
  const auto* const first = static_cast<const std::byte*>(from);
  enqueue(all, stream,
          {{},
           [to, copy = std::vector<std::byte>(first, first + bytes)] {
             std::memcpy(to, copy.data(), copy.size());
           },
           {}});
  return kSuccess;
}
PLAYED Code cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, Stream handle) {
  PLAYED_CHECK();
  StreamObject* const stream = find(all, handle);
  if (stream == nullptr) return kErrorInvalidHandle;
  enqueue(all, stream,
          {{},
           [to, from, bytes] {
             std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
           },
           {}});
  return kSuccess;
}

}  // namespace byteps::device::cuda
