#include "mxnet/engine_operation.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace byteps::mxnet {
namespace {

// What an NDArray is to the library: its first word points to its storage.
struct FakeStorage {
  std::array<float, 4> data{};
  bool is_reordered = false;
  bool has_data = true;
};
struct FakeArray {
  FakeStorage* storage;
};

// MXNet's engine, whose operations run when the test says so, and the core, which answers when it does.
struct Fake {
  struct Pushed {
    void (*run)(void*, void*, void*);
    void* param;
    void (*deleter)(void*);
    std::vector<void*> writes;
  };
  std::optional<Pushed> pushed;
  bool is_naive = false;
  int arrays = 0;  // handles that were not freed
  std::string last_error;

  std::optional<BpsPushPull> asked;
  std::string asked_name;
  std::string refused;
  bool core_answers_at_once = false;

  int completions = 0;
  std::string error;
  const BpsMxnetVariable* variable = nullptr;
  bool variable_had_failed = false;  // at completion
  uint32_t variable_pending = 99;    // at completion
};
Fake* fake = nullptr;

void on_complete(void* /*engine*/, void* param, const Error* error) {
  auto& its = *static_cast<Fake*>(param);
  ++its.completions;
  its.error = error == nullptr ? "" : error->what();
  if (its.variable == nullptr) return;
  its.variable_had_failed = its.variable->failed != 0;
  its.variable_pending = its.variable->pending;
}

void run_pushed() {
  OnComplete completion{&on_complete, nullptr, fake};
  fake->pushed->run(nullptr, &completion, fake->pushed->param);
}

void end_pushed() { fake->pushed->deleter(fake->pushed->param); }

void core_push_pull(const BpsPushPull* request) {
  fake->asked = *request;
  fake->asked_name.assign(request->name, request->name_bytes);
  if (fake->core_answers_at_once) request->on_done(request->context, 0, "");
}

void core_refuse(const char* name, size_t name_bytes, uint64_t step, const char* why) {
  fake->refused = std::string(name, name_bytes) + " in step " + std::to_string(step) + ": " + why;
}

constexpr BpsCApi kCore{
    .version = BPS_C_API_VERSION, .push_pull = &core_push_pull, .refuse = &core_refuse, .next_step = nullptr};

class EngineOperationTest : public testing::Test {
 protected:
  void SetUp() override {
    fake = &fake_;
    ASSERT_EQ(bps_mxnet_set_core(&kCore), 0u);
    set_engine();
    fake_.variable = &variable_;
    request_.variable = &variable_;
  }
  void TearDown() override { EXPECT_EQ(fake_.arrays, 0); }

  void set_engine() {
    ASSERT_EQ(bps_mxnet_set_engine(dlopen(nullptr, RTLD_NOW), &array_), 0);
    fake_.completions = 0;  // of the operation that finds out what engine it is
  }
  void set_naive_engine() {
    fake_.is_naive = true;
    set_engine();
  }
  void answer(int code, const char* message) { fake_.asked->on_done(fake_.asked->context, code, message); }

  Fake fake_;
  FakeStorage storage_;
  FakeStorage input_storage_;
  FakeArray array_{&storage_};
  FakeArray input_{&input_storage_};
  FakeArray variable_array_{nullptr};
  BpsMxnetVariable variable_{&variable_array_, 0, 0, 0};
  BpsMxnetPushPull request_{.name = "weights",
                            .name_bytes = 6,
                            .bytes = 16,
                            .input = &array_,
                            .output = &array_,
                            .variable = &variable_,
                            .dtype = 3,
                            .op = 1,
                            .root = 2,
                            .priority = -7,
                            .staleness = 5,
                            .step = 9};
};

TEST_F(EngineOperationTest, AsksTheCoreWhenTheEngineRunsIt) {
  ASSERT_EQ(bps_mxnet_push_pull(&request_), 0);
  EXPECT_FALSE(fake_.asked);
  EXPECT_EQ(fake_.pushed->writes, (std::vector<void*>{&array_, &variable_array_}));
  run_pushed();
  EXPECT_TRUE(storage_.is_reordered);
  EXPECT_EQ(fake_.asked_name, "weight");
  EXPECT_EQ(fake_.asked->input, storage_.data.data());
  EXPECT_EQ(fake_.asked->output, storage_.data.data());
  EXPECT_EQ(fake_.asked->bytes, 16u);
  EXPECT_EQ(fake_.asked->dtype, 3);
  EXPECT_EQ(fake_.asked->op, 1);
  EXPECT_EQ(fake_.asked->root, 2u);
  EXPECT_EQ(fake_.asked->priority, -7);
  EXPECT_EQ(fake_.asked->staleness, 5);
  EXPECT_EQ(fake_.asked->step, 9u);
  EXPECT_EQ(fake_.completions, 0);
  EXPECT_EQ(variable_.pending, 1u);
  std::thread([this] { answer(0, ""); }).join();
  EXPECT_EQ(fake_.completions, 1);
  EXPECT_EQ(fake_.error, "");
  EXPECT_EQ(fake_.variable_pending, 0u);
  end_pushed();
  EXPECT_EQ(variable_.failed, 0);
  EXPECT_EQ(variable_.skipped, 0);
}

TEST_F(EngineOperationTest, AnInputOfItsOwnIsWrittenToo) {
  request_.input = &input_;
  ASSERT_EQ(bps_mxnet_push_pull(&request_), 0);
  EXPECT_EQ(fake_.pushed->writes, (std::vector<void*>{&array_, &variable_array_, &input_}));
  run_pushed();
  EXPECT_TRUE(input_storage_.is_reordered);
  EXPECT_EQ(fake_.asked->input, input_storage_.data.data());
  EXPECT_EQ(fake_.asked->output, storage_.data.data());
  answer(0, "");
  end_pushed();
}

TEST_F(EngineOperationTest, AnErrorIsToldByTheNameOfItsExceptionAfterTheVariableHasFailed) {
  constexpr std::array kNames{"InvalidArgument", "NotInitialized", "Timeout",     "PeerLost", "Aborted",
                              "DataLoss",        "Authentication", "Unsupported", "Internal"};
  for (size_t i = 0; i < kNames.size(); ++i) {
    variable_.failed = 0;
    ASSERT_EQ(bps_mxnet_push_pull(&request_), 0);
    run_pushed();
    answer(static_cast<int>(i) + 1, "what happened");
    EXPECT_EQ(fake_.error, "byteps." + std::string(kNames[i]) + "Error: what happened");
    EXPECT_TRUE(fake_.variable_had_failed);
    EXPECT_EQ(fake_.variable_pending, 0u);
    end_pushed();
    EXPECT_EQ(variable_.skipped, 0);
  }
}

TEST_F(EngineOperationTest, AVariableKnowsThatTheEngineHasSkippedAnOperation) {
  ASSERT_EQ(bps_mxnet_push_pull(&request_), 0);
  EXPECT_EQ(variable_.pending, 1u);
  end_pushed();
  EXPECT_EQ(variable_.skipped, 1);
  EXPECT_EQ(fake_.refused.substr(0, 16), "weight in step 9") << "its round counts on the other ranks";
  EXPECT_EQ(variable_.pending, 0u);
  EXPECT_FALSE(fake_.asked);
}

TEST_F(EngineOperationTest, AnArrayWithoutDataIsAnError) {
  storage_.has_data = false;
  ASSERT_EQ(bps_mxnet_push_pull(&request_), 0);
  run_pushed();
  EXPECT_FALSE(fake_.asked);
  EXPECT_EQ(fake_.error, "byteps.InternalError: no data here");
  end_pushed();
}

TEST_F(EngineOperationTest, AnArrayWithoutElementsTakesPartThoughMxnetHasNoMemoryForIt) {
  request_.bytes = 0;
  FakeArray nothing{nullptr};
  request_.input = request_.output = &nothing;
  ASSERT_EQ(bps_mxnet_push_pull(&request_), 0);
  run_pushed();
  ASSERT_TRUE(fake_.asked);
  EXPECT_EQ(fake_.asked->bytes, 0u);
  answer(0, "");
  end_pushed();
  EXPECT_EQ(fake_.error, "");
}

TEST_F(EngineOperationTest, ANaiveEngineIsDoneAfterThePush) {
  set_naive_engine();
  fake_.core_answers_at_once = true;
  ASSERT_EQ(bps_mxnet_push_pull(&request_), 0);
  EXPECT_EQ(fake_.completions, 1);
  end_pushed();
  EXPECT_EQ(variable_.failed, 0);
}

TEST_F(EngineOperationTest, ANaiveEngineWaitsForAnotherThread) {
  static constexpr BpsCApi kSlow{.version = BPS_C_API_VERSION,
                                 .push_pull =
                                     [](const BpsPushPull* request) {
                                       std::thread([request = *request] {
                                         request.on_done(request.context, 4, "rank 1 is lost");
                                       }).detach();
                                     },
                                 .refuse = &core_refuse,
                                 .next_step = nullptr};
  ASSERT_EQ(bps_mxnet_set_core(&kSlow), 0u);
  set_naive_engine();
  EXPECT_EQ(bps_mxnet_push_pull(&request_), -1);  // MXNet's functions return what an operation throws
  EXPECT_EQ(fake_.last_error, "byteps.PeerLostError: rank 1 is lost");
  EXPECT_EQ(fake_.completions, 0);
  end_pushed();
  EXPECT_EQ(variable_.failed, 1);
}

TEST_F(EngineOperationTest, ArraysAreDescribedWithoutWaiting) {
  BpsMxnetArray description{};
  ASSERT_EQ(bps_mxnet_describe(&array_, &description), 0);
  EXPECT_EQ(description.elements, 12);
  EXPECT_EQ(description.dtype, 6);
  EXPECT_EQ(description.storage_type, 1);
  EXPECT_EQ(description.device_type, 2);
  EXPECT_EQ(description.device_id, 3);
}

TEST(Libraries, OthersAreRefused) {
  constexpr BpsCApi kNewer{.version = BPS_C_API_VERSION + 1,
                           .push_pull = &core_push_pull,
                           .refuse = &core_refuse,
                           .next_step = nullptr};
  EXPECT_EQ(bps_mxnet_set_core(&kNewer), static_cast<uint32_t>(BPS_C_API_VERSION));
  void* libm = dlopen("libm.so.6", RTLD_NOW);
  ASSERT_NE(libm, nullptr);
  EXPECT_EQ(bps_mxnet_set_engine(libm, nullptr), -1);
  dlclose(libm);
}

}  // namespace
}  // namespace byteps::mxnet

// MXNet's functions.
#define FAKE_MXNET extern "C" __attribute__((visibility("default"), used))

namespace {
using byteps::mxnet::fake;
using byteps::mxnet::FakeArray;
using byteps::mxnet::FakeStorage;
}  // namespace

FAKE_MXNET int MXEnginePushAsyncND(void (*run)(void*, void*, void*), void* param, void (*deleter)(void*),
                                   const byteps::mxnet::Context* /*context*/, void** /*reads*/, int num_reads,
                                   void** writes, int num_writes, const int* property, int /*priority*/,
                                   const char* name, bool /*wait*/) {
  EXPECT_EQ(num_reads, 0);
  const bool is_probe = name == std::string("BytepsProbe");
  EXPECT_EQ(*property, is_probe ? 3 : 5);
  fake->pushed = {run, param, deleter, std::vector<void*>(writes, writes + num_writes)};
  if (is_probe && !fake->is_naive) std::thread(&byteps::mxnet::run_pushed).join();
  if (!fake->is_naive) return 0;
  try {
    byteps::mxnet::run_pushed();
    return 0;
  } catch (const std::runtime_error& error) {
    fake->last_error = error.what();
    return -1;
  }
}

FAKE_MXNET int MXShallowCopyNDArray(void* array, void** copy) {
  ++fake->arrays;
  *copy = new FakeArray(*static_cast<FakeArray*>(array));
  return 0;
}

FAKE_MXNET int MXNDArrayFree(void* array) {
  --fake->arrays;
  delete static_cast<FakeArray*>(array);
  return 0;
}

FAKE_MXNET int MXNDArrayGetData(void* array, void** data) {
  FakeStorage& storage = *static_cast<FakeArray*>(array)->storage;
  fake->last_error = "no data here";
  *data = storage.data.data();
  return storage.has_data ? 0 : -1;
}

FAKE_MXNET int MXNDArrayGetShapeEx(void* /*array*/, int* num_dims, const int** dims) {
  static constexpr std::array kDims{3, 4};
  *num_dims = 2;
  *dims = kDims.data();
  return 0;
}

FAKE_MXNET int MXNDArrayGetDType(void* /*array*/, int* dtype) { return *dtype = 6, 0; }
FAKE_MXNET int MXNDArrayGetStorageType(void* /*array*/, int* type) { return *type = 1, 0; }
FAKE_MXNET int MXNDArrayGetContext(void* /*array*/, int* type, int* id) { return *type = 2, *id = 3, 0; }
FAKE_MXNET const char* MXGetLastError() { return fake->last_error.c_str(); }
FAKE_MXNET void _ZN5mxnet7NDArray5Chunk15Reorder2DefaultEv(void* storage) {
  static_cast<FakeStorage*>(storage)->is_reordered = true;
}
