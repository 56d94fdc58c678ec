// The rules of the CUDA driver on which csrc/device/ relies, as a table of cases. Runs over the
// played driver in the tests, and over the real one where there is a GPU (tools/gpu_slot).
//
//     cuda_rules [libcuda.so.1]
//
// Prints a line for each rule: its name, what was expected, what was seen. Exit code 1: one differs.
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "device/cuda_driver.h"

namespace {

using namespace byteps::device;
using Clock = std::chrono::steady_clock;

const cuda::Functions* cu;
void* library;

constexpr size_t kBytes = 1 << 20;

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }
double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// A function that the core does not use; null: the played driver does not have it.
template <typename Function>
Function* extra(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

std::string name_of(cuda::Code code) {
  if (code == cuda::kSuccess) return "success";
  const char* name = nullptr;
  cu->get_error_name(code, &name);
  return std::to_string(code) + (name != nullptr ? " " + std::string(name) : "");
}

struct Stream {
  explicit Stream(unsigned flags = cuda::kStreamNonBlocking) { cu->stream_create(&stream, flags); }
  ~Stream() { cu->stream_destroy(stream); }
  cuda::Stream stream = nullptr;
};
struct Event {
  Event() { cu->event_create(&event, cuda::kEventDisableTiming); }
  ~Event() { cu->event_destroy(event); }
  cuda::Event event = nullptr;
};
struct DeviceMemory {
  DeviceMemory() { cu->mem_alloc(&address, kBytes); }
  ~DeviceMemory() { cu->mem_free(address); }
  cuda::Address address = 0;
};
struct HostMemory {
  explicit HostMemory(bool pinned, int flags = MAP_PRIVATE) : is_pinned(pinned) {
    data = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    std::memset(data, 1, kBytes);
    if (pinned) registered = cu->mem_host_register(data, kBytes, cuda::kHostRegisterPortable);
  }
  ~HostMemory() {
    if (is_pinned) cu->mem_host_unregister(data);
    munmap(data, kBytes);
  }
  bool is_pinned;
  cuda::Code registered = cuda::kSuccess;
  void* data;
};

// Keeps a stream busy until release() or 5 s.
struct Gate {
  std::atomic<bool> open = false;
  std::atomic<bool> reached = false;
  void block(cuda::Stream stream) {
    cu->launch_host_func(
        stream,
        [](void* self) {
          auto* const gate = static_cast<Gate*>(self);
          gate->reached = true;
          for (int i = 0; i < 5000 && !gate->open; ++i) sleep_ms(1);
        },
        this);
  }
  void release() { open = true; }
};
// Notes that a stream has come to a point.
struct Mark {
  std::atomic<bool> reached = false;
  void put(cuda::Stream stream) {
    cu->launch_host_func(stream, [](void* self) { static_cast<Mark*>(self)->reached = true; }, this);
  }
  bool within(int ms) const {
    for (int i = 0; i < ms && !reached; ++i) sleep_ms(1);
    return reached;
  }
};
const char* yes(bool is) { return is ? "yes" : "no"; }

// Runs `f` in a thread with the context, and returns its result.
std::string in_thread(const std::function<std::string()>& f, cuda::Context context) {
  std::string result;
  std::thread([&] {
    if (context != nullptr) cu->ctx_push_current(context);
    result = f();
  }).join();
  return result;
}

cuda::Context primary;

struct Rule {
  const char* name;
  const char* expected;
  std::function<std::string()> observe;
  // Where the played driver is stricter than the real one, because the manual is.
  const char* of_played_driver = nullptr;
};

std::string during_capture_elsewhere(bool relaxed, const std::function<cuda::Code()>& call) {
  Stream captured;
  using Begin = cuda::Code(cuda::Stream, int);
  using End = cuda::Code(cuda::Stream, void**);
  auto* const begin = extra<Begin>("cuStreamBeginCapture_v2");
  auto* const end = extra<End>("cuStreamEndCapture");
  begin(captured.stream, cuda::kCaptureGlobal);
  const std::string seen = in_thread(
      [&] {
        int mode = cuda::kCaptureRelaxed;
        if (relaxed) cu->thread_exchange_capture_mode(&mode);
        return name_of(call());
      },
      primary);
  void* graph = nullptr;
  const cuda::Code ended = end(captured.stream, &graph);
  return seen + (ended == cuda::kSuccess ? "" : ", and the capture fails");
}

std::vector<Rule> rules() {
  return {
      {"a wait on an event that was never recorded is no wait", "success yes",
       [] {
         Stream stream;
         Event event;
         Mark mark;
         const cuda::Code code = cu->stream_wait_event(stream.stream, event.event, 0);
         mark.put(stream.stream);
         return name_of(code) + " " + yes(mark.within(1000));
       }},
      {"an event that was never recorded is done", "success",
       [] {
         Event event;
         return name_of(cu->event_query(event.event));
       }},
      {"a wait refers to the last record before it", "yes",
       [] {
         Stream first, second, waits;
         Event event;
         Gate gate;
         cu->event_record(event.event, first.stream);
         cu->stream_synchronize(first.stream);
         cu->stream_wait_event(waits.stream, event.event, 0);
         gate.block(second.stream);
         cu->event_record(event.event, second.stream);
         Mark mark;
         mark.put(waits.stream);
         // Host functions may share a thread, so the copy engine is asked instead.
         const bool went_on = mark.within(200) || !gate.reached;
         gate.release();
         cu->stream_synchronize(second.stream);
         return std::string(yes(went_on || mark.within(1000)));
       }},
      {"an event may be destroyed while a stream waits for it", "no yes",
       [] {
         Stream first, waits;
         Gate gate;
         DeviceMemory device;
         HostMemory host(true);
         gate.block(first.stream);
         {
           Event event, done;
           cu->event_record(event.event, first.stream);
           cu->stream_wait_event(waits.stream, event.event, 0);
         }
         Event copied;
         cu->copy_to_host(host.data, device.address, kBytes, waits.stream);
         cu->event_record(copied.event, waits.stream);
         sleep_ms(50);
         const bool early = cu->event_query(copied.event) == cuda::kSuccess;
         gate.release();
         return std::string(yes(early)) + " " + yes(cu->event_synchronize(copied.event) == cuda::kSuccess);
       }},
      {"a stream that is destroyed still does its work, and nobody waits", "yes yes",
       [] {
         Gate gate;
         Mark mark;
         const auto start = Clock::now();
         {
           Stream stream;
           gate.block(stream.stream);
           mark.put(stream.stream);
         }
         const bool at_once = ms_since(start) < 1000;
         gate.release();
         return std::string(yes(at_once)) + " " + yes(mark.within(1000));
       }},
      {"a copy to pinned memory returns at once", "yes",
       [] {
         Stream stream;
         Gate gate;
         DeviceMemory device;
         HostMemory host(true);
         gate.block(stream.stream);
         const auto start = Clock::now();
         cu->copy_to_host(host.data, device.address, kBytes, stream.stream);
         const bool at_once = ms_since(start) < 1000;
         gate.release();
         cu->stream_synchronize(stream.stream);
         return std::string(yes(at_once));
       }},
      {"a copy to plain memory returns when it is done", "yes",
       [] {
         Stream stream;
         Gate gate;
         DeviceMemory device;
         HostMemory host(false);
         gate.block(stream.stream);
         std::thread opens([&] {
           sleep_ms(100);
           gate.release();
         });
         const auto start = Clock::now();
         cu->copy_to_host(host.data, device.address, kBytes, stream.stream);
         const bool waited = ms_since(start) > 80;
         opens.join();
         cu->stream_synchronize(stream.stream);
         return std::string(yes(waited));
       }},
      {"plain memory may be changed when a copy from it has returned", "yes",
       [] {
         Stream stream;
         DeviceMemory device;
         HostMemory host(false), back(true);
         std::memset(host.data, 7, kBytes);
         cu->copy_to_device(device.address, host.data, kBytes, stream.stream);
         std::memset(host.data, 9, kBytes);
         cu->copy_to_host(back.data, device.address, kBytes, stream.stream);
         cu->stream_synchronize(stream.stream);
         const auto* const bytes = static_cast<const char*>(back.data);
         return std::string(yes(bytes[0] == 7 && bytes[kBytes - 1] == 7));
       }},
      {"the legacy stream waits for blocking streams", "no",
       [] {
         Stream blocking(0);
         Gate gate;
         Event event;
         gate.block(blocking.stream);
         cu->event_record(event.event, nullptr);
         sleep_ms(50);
         const bool early = cu->event_query(event.event) == cuda::kSuccess;
         gate.release();
         cu->stream_synchronize(blocking.stream);
         return std::string(yes(early));
       }},
      {"the legacy stream does not wait for non-blocking streams", "yes",
       [] {
         Stream stream;
         Gate gate;
         Event event;
         gate.block(stream.stream);
         cu->event_record(event.event, nullptr);
         sleep_ms(50);
         const bool early = cu->event_query(event.event) == cuda::kSuccess;
         gate.release();
         cu->stream_synchronize(stream.stream);
         return std::string(yes(early));
       }},
      {"memory cannot be registered twice", "712 CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
       [] {
         HostMemory host(true);
         return name_of(cu->mem_host_register(host.data, kBytes, cuda::kHostRegisterPortable));
       }},
      {"nor a part of it", "712 CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
       [] {
         HostMemory host(true);
         return name_of(cu->mem_host_register(static_cast<char*>(host.data) + 65536, 65536, 0));
       }},
      {"shared memory can be registered", "success",
       [] {
         HostMemory host(true, MAP_SHARED);
         return name_of(host.registered);
       }},
      {"an event cannot be recorded on the legacy stream without a context", "201 CUDA_ERROR_INVALID_CONTEXT",
       [] {
         Event event;
         return in_thread([&] { return name_of(cu->event_record(event.event, nullptr)); }, nullptr);
       }},
      {"other calls need no current context", "success success success success",
       [] {
         Stream stream;
         Event event;
         DeviceMemory device;
         HostMemory host(true);
         return in_thread(
             [&] {
               const cuda::Code codes[] = {
                   cu->event_record(event.event, stream.stream),
                   cu->stream_wait_event(stream.stream, event.event, 0),
                   cu->copy_to_host(host.data, device.address, kBytes, stream.stream),
                   cu->stream_synchronize(stream.stream),
               };
               std::string seen;
               for (const cuda::Code code : codes) seen += (seen.empty() ? "" : " ") + name_of(code);
               return seen;
             },
             nullptr);
       }},
      {"a stream that is captured says so", "1",
       [] {
         Stream captured;
         extra<cuda::Code(cuda::Stream, int)>("cuStreamBeginCapture_v2")(captured.stream,
                                                                         cuda::kCaptureRelaxed);
         int status = 0;
         cu->stream_is_capturing(captured.stream, &status);
         void* graph = nullptr;
         extra<cuda::Code(cuda::Stream, void**)>("cuStreamEndCapture")(captured.stream, &graph);
         return std::to_string(status);
       }},
      {"while another thread captures, a query of an event",
       "900 CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, and the capture fails",
       [] {
         Event event;
         return during_capture_elsewhere(false, [&] { return cu->event_query(event.event); });
       }},
      {"the same after leaving the strict mode", "success",
       [] {
         Event event;
         return during_capture_elsewhere(true, [&] { return cu->event_query(event.event); });
       }},
      {"while another thread captures, registering memory",
       "900 CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, and the capture fails",
       [] {
         HostMemory host(false);
         const std::string seen = during_capture_elsewhere(
             false, [&] { return cu->mem_host_register(host.data, kBytes, cuda::kHostRegisterPortable); });
         cu->mem_host_unregister(host.data);
         return seen;
       }},
      {"the same after leaving the strict mode (registering)", "success",
       [] {
         HostMemory host(false);
         const std::string seen = during_capture_elsewhere(
             true, [&] { return cu->mem_host_register(host.data, kBytes, cuda::kHostRegisterPortable); });
         cu->mem_host_unregister(host.data);
         return seen;
       }},
      {"while another thread captures, a copy and a record on other streams", "success",
       [] {
         Stream stream;
         Event event;
         DeviceMemory device;
         HostMemory host(true);
         const std::string seen = during_capture_elsewhere(false, [&] {
           const cuda::Code code = cu->copy_to_host(host.data, device.address, kBytes, stream.stream);
           return code != cuda::kSuccess ? code : cu->event_record(event.event, stream.stream);
         });
         cu->stream_synchronize(stream.stream);
         return seen;
       }},
      {"while another thread captures, a stream and an event can be made", "success",
       [] {
         return during_capture_elsewhere(false, [&] {
           cuda::Stream stream = nullptr;
           const cuda::Code code = cu->stream_create(&stream, cuda::kStreamNonBlocking);
           if (code != cuda::kSuccess) return code;
           cuda::Event event = nullptr;
           return cu->event_create(&event, cuda::kEventDisableTiming);
         });
       }},
      {"a host function that calls CUDA", "success",
       [] {
         struct Call {
           cuda::Event event;
           cuda::Code code;
         };
         Stream stream;
         Event event;
         Call call{event.event, -1};
         cu->launch_host_func(
             stream.stream,
             [](void* argument) {
               auto* const of = static_cast<Call*>(argument);
               of->code = cu->event_query(of->event);
             },
             &call);
         cu->stream_synchronize(stream.stream);
         return name_of(call.code);
       },
       "800 CUDA_ERROR_NOT_PERMITTED"},
      {"a host function on a side stream does not hold up copies", "yes",
       [] {
         Stream stream, side;
         Gate gate;
         Event first, second;
         DeviceMemory device;
         HostMemory host(true);
         cu->copy_to_host(host.data, device.address, kBytes, stream.stream);
         cu->event_record(first.event, stream.stream);
         cu->stream_wait_event(side.stream, first.event, 0);
         gate.block(side.stream);
         while (!gate.reached) sleep_ms(1);
         cu->copy_to_host(host.data, device.address, kBytes, stream.stream);
         cu->event_record(second.event, stream.stream);
         sleep_ms(100);
         const bool went_on = cu->event_query(second.event) == cuda::kSuccess;
         gate.release();
         cu->stream_synchronize(side.stream);
         return std::string(yes(went_on));
       }},
  };
}

// How late this process learns that a copy of 1 MiB is done, in us, compared with asking all the time.
void print_latencies() {
  struct Told {
    std::atomic<int64_t> at_ns = 0;
  };
  const auto now_ns = [] {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
  };
  Stream stream, side;
  Event event;
  DeviceMemory device;
  HostMemory host(true);
  std::vector<double> asked, told;
  for (int i = 0; i < 51; ++i) {
    Told by_host_function;
    const int64_t start = now_ns();
    cu->copy_to_host(host.data, device.address, kBytes, stream.stream);
    cu->event_record(event.event, stream.stream);
    cu->stream_wait_event(side.stream, event.event, 0);
    cu->launch_host_func(
        side.stream,
        [](void* argument) {
          static_cast<Told*>(argument)->at_ns =
              std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
        },
        &by_host_function);
    while (cu->event_query(event.event) != cuda::kSuccess) {
    }
    const int64_t seen = now_ns();
    while (by_host_function.at_ns == 0) std::this_thread::yield();
    asked.push_back(static_cast<double>(seen - start) / 1e3);
    told.push_back(static_cast<double>(by_host_function.at_ns - seen) / 1e3);
  }
  for (auto* const times : {&asked, &told}) std::sort(times->begin(), times->end());
  std::printf(
      "a copy of 1 MiB: median %.0f us until cuEventQuery says so; a host function runs %.0f us later (90 "
      "%%: %.0f)\n",
      asked[25], told[25], told[46]);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string file = argc > 1 ? argv[1] : "libcuda.so.1";
  const auto driver = CudaDriver::load(file);
  if (!driver) {
    std::fprintf(stderr, "%s\n", driver.status().message().c_str());
    return 2;
  }
  cu = &(*driver)->functions();
  library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  unsigned flags = 0;
  int active = -1;
  cu->primary_ctx_get_state(0, &flags, &active);
  std::printf("driver %d; the primary context exists before its first use: %s\n", (*driver)->version(),
              yes(active != 0));
  cu->primary_ctx_retain(&primary, 0);
  cu->ctx_push_current(primary);
  const bool is_played = extra<void()>("played_cuda_recover") != nullptr;
  int different = 0;
  for (const Rule& rule : rules()) {
    const char* const expected =
        is_played && rule.of_played_driver != nullptr ? rule.of_played_driver : rule.expected;
    const std::string seen = rule.observe();
    const bool is_as_expected = seen == expected;
    different += !is_as_expected;
    std::printf("%s | %s | expected: %s | seen: %s\n", is_as_expected ? "ok  " : "DIFF", rule.name, expected,
                seen.c_str());
    std::fflush(stdout);
  }
  if (!is_played) print_latencies();
  std::fflush(stdout);
  // Streams that are being destroyed would outlive the library.
  std::_Exit(different > 0 ? 1 : 0);
}
