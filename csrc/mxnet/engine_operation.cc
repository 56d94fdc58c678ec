#include "mxnet/engine_operation.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <semaphore>
#include <string>
#include <string_view>
#include <vector>

namespace byteps::mxnet {
namespace {

const BpsCApi* core = nullptr;
const Api* api = nullptr;
bool engine_is_naive = false;

class NDArray {
 public:
  NDArray() = default;
  ~NDArray() {
    if (handle_ != nullptr) api->free_array(handle_);
  }
  NDArray(const NDArray&) = delete;
  NDArray& operator=(const NDArray&) = delete;

  // Makes this a new reference to the array of `other`.
  bool refer_to(NDArrayHandle other) { return api->shallow_copy(other, &handle_) == 0; }
  NDArrayHandle handle() const { return handle_; }
  // The memory of an array that the running operation writes. nullptr: see api->last_error().
  void* data() const {
    if (api->to_default_layout != nullptr) api->to_default_layout(*static_cast<void**>(handle_));
    void* data = nullptr;
    return api->get_data(handle_, &data) == 0 ? data : nullptr;
  }

 private:
  NDArrayHandle handle_ = nullptr;
};

// A push_pull from the push to its end. The engine owns it, and deletes it after on_complete or
// when it skips the operation.
struct Operation {
  std::string title;         // shown in MXNet's profiles
  BpsMxnetPushPull request;  // without the fields that are used during the call only
  NDArray input;             // null: the same as `output`
  NDArray output;
  OnComplete on_complete{};
  bool has_run = false;

  static constexpr std::string_view kTitle = "BytepsPushPull ";
  std::string_view name() const { return std::string_view(title).substr(kTitle.size()); }

  void push() const { ++std::atomic_ref(request.variable->pending); }
  // Call fail() and end() before the engine or the caller can learn of the result.
  void fail() const { std::atomic_ref(request.variable->failed).store(1); }
  void end() const { --std::atomic_ref(request.variable->pending); }
};

// byteps/mxnet/native.py raises the exception that the message begins with.
Error error_of(int code, const char* message) {
  return Error(std::string("byteps.") + exception_of(code) + ": " + message);
}

// The last access to the operation here.
void complete(void* argument, int code, const char* message) {
  auto& operation = *static_cast<Operation*>(argument);
  if (code != 0) operation.fail();
  operation.end();
  if (code == 0) return operation.on_complete();
  const Error error = error_of(code, message);
  operation.on_complete(&error);
}

// Replaces complete() under NaiveEngine, which loses errors except for exceptions thrown by the
// operation: those fail the push.
class Wait {
 public:
  static void on_done(void* context, int code, const char* message) {
    auto& wait = *static_cast<Wait*>(context);
    wait.code_ = code;
    wait.message_ = message;
    wait.done_.release();
  }
  void complete(Operation& operation) {
    done_.acquire();
    if (code_ != 0) operation.fail();
    operation.end();
    if (code_ != 0) throw error_of(code_, message_.c_str());
    operation.on_complete();
  }

 private:
  std::binary_semaphore done_{0};
  int code_ = 0;
  std::string message_;
};

// The engine has finished an operation, or has skipped it.
void forget(void* argument) {
  const std::unique_ptr<Operation> operation(static_cast<Operation*>(argument));
  if (operation->has_run) return;
  core->refuse(operation->name().data(), operation->name().size(), operation->request.step,
               "MXNet has skipped it after an error of another operation");
  std::atomic_ref(operation->request.variable->skipped).store(1);
  operation->end();
}

// Appends an extra element, so that a shape without dimensions has an address. An array that is
// sent as bytes has the bytes of one element as its last dimension.
std::vector<int64_t> dims_of(const BpsMxnetPushPull& request, const int* shape, int num_dims) {
  std::vector<int64_t> dims(shape, shape + std::max(num_dims, 0));
  int64_t elements = 1;
  for (const int64_t dim : dims) elements *= dim;
  const int64_t element_bytes = elements > 0 ? static_cast<int64_t>(request.bytes) / elements : 1;
  if (DType{request.dtype} == DType::kUInt8 && element_bytes > 1) dims.push_back(element_bytes);
  dims.push_back(0);
  return dims;
}

// Fails the push_pull with MXNet's last error.
void refuse(Operation& operation) {
  const std::string why = api->last_error();
  core->refuse(operation.name().data(), operation.name().size(), operation.request.step, why.c_str());
  complete(&operation, -1, why.c_str());
}

void run(void* /*run_context*/, void* on_complete, void* argument) {
  auto& operation = *static_cast<Operation*>(argument);
  operation.has_run = true;
  operation.on_complete = *static_cast<const OnComplete*>(on_complete);
  // An array without elements has no memory in MXNet, but takes part all the same.
  void* const output = operation.request.bytes == 0 ? argument : operation.output.data();
  const bool in_place = operation.input.handle() == nullptr || operation.request.bytes == 0;
  const void* const input = in_place ? output : operation.input.data();
  if (output == nullptr || input == nullptr) return refuse(operation);
  int num_dims = 0;
  const int* shape = nullptr;
  if (api->get_shape(operation.output.handle(), &num_dims, &shape) != 0) return refuse(operation);
  const std::vector<int64_t> dims = dims_of(operation.request, shape, num_dims);
  BpsPushPull push_pull{.name = operation.name().data(),
                        .name_bytes = operation.name().size(),
                        .bytes = operation.request.bytes,
                        .input = input,
                        .output = output,
                        .dtype = operation.request.dtype,
                        .op = operation.request.op,
                        .root = operation.request.root,
                        .priority = operation.request.priority,
                        .staleness = operation.request.staleness,
                        .dims = num_dims < 0 ? nullptr : dims.data(),
                        .num_dims = dims.size() - 1,
                        .step = operation.request.step,
                        .on_done = &complete,
                        .context = argument};
  if (!engine_is_naive) return core->push_pull(&push_pull);
  Wait wait;
  push_pull.on_done = &Wait::on_done;
  push_pull.context = &wait;
  core->push_pull(&push_pull);
  wait.complete(operation);
}

int push_pull(const BpsMxnetPushPull& request) {
  auto operation = std::make_unique<Operation>();
  operation->title.append(Operation::kTitle).append(request.name, request.name_bytes);
  operation->request = request;
  if (!operation->output.refer_to(request.output)) return -1;
  NDArrayHandle writes[] = {request.output, request.variable->array, request.input};
  const int count = request.input == request.output ? 2 : 3;
  if (count == 3 && !operation->input.refer_to(request.input)) return -1;
  operation->push();
  const char* title = operation->title.c_str();
  return api->engine_push_async(&run, operation.release(), &forget, &kCpu, nullptr, 0, writes, count,
                                &kReadyFirst, request.priority, title, false);
}

// True under NaiveEngine: an operation on `array` ran on this thread before its push returned,
// though other engines run operations of this kind on threads of their own.
bool runs_within_the_push(NDArrayHandle array) {
  static thread_local bool has_run;
  has_run = false;
  const auto run = [](void*, void* on_complete, void*) {
    has_run = true;
    (*static_cast<const OnComplete*>(on_complete))();
  };
  api->engine_push_async(run, nullptr, nullptr, &kCpu, nullptr, 0, &array, 1, &kCpuPrioritized, 0,
                         "BytepsProbe", false);
  return has_run;
}

int set_engine(void* library, NDArrayHandle array) {
  api = Api::find(library);
  if (api == nullptr) return -1;
  engine_is_naive = runs_within_the_push(array);
  return 0;
}

int describe(NDArrayHandle array, BpsMxnetArray& description) {
  int num_dims = 0;
  const int* dims = nullptr;
  if (api->get_shape(array, &num_dims, &dims) != 0 || api->get_dtype(array, &description.dtype) != 0 ||
      api->get_storage_type(array, &description.storage_type) != 0 ||
      api->get_context(array, &description.device_type, &description.device_id) != 0)
    return -1;
  description.elements = num_dims < 0 ? 0 : 1;  // 0: the shape is unknown
  for (int i = 0; i < num_dims; ++i) description.elements *= dims[i];
  return 0;
}

}  // namespace
}  // namespace byteps::mxnet

uint32_t bps_mxnet_set_core(const BpsCApi* core) {
  if (core->version != BPS_C_API_VERSION) return BPS_C_API_VERSION;
  byteps::mxnet::core = core;
  return 0;
}

int bps_mxnet_set_engine(void* library, void* array) { return byteps::mxnet::set_engine(library, array); }

int bps_mxnet_describe(void* array, BpsMxnetArray* description) {
  return byteps::mxnet::describe(array, *description);
}

int bps_mxnet_push_pull(const BpsMxnetPushPull* request) { return byteps::mxnet::push_pull(*request); }
