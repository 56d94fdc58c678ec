#include "c_api/current_job.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/event_flag.h"
#include "support/job.h"

namespace byteps::c_api {
namespace {

using node::Job;
using node::JobOptions;
using node::Node;

// A push_pull through the table, and its outcome.
struct Call {
  Call(std::string tensor_name, std::vector<float>& values, ReduceOp reduce_op = ReduceOp::kSum)
      : name(std::move(tensor_name)) {
    request = {.name = name.data(),
               .name_bytes = name.size(),
               .bytes = values.size() * sizeof(float),
               .input = values.data(),
               .output = values.data(),
               .dtype = static_cast<uint8_t>(DType::kFloat32),
               .op = static_cast<uint8_t>(reduce_op),
               .root = 0,
               .priority = 0,
               .staleness = 0,
               .dims = nullptr,
               .num_dims = 0,
               .step = 0,
               .on_done = &Call::on_done,
               .context = this};
  }

  void start() { table().push_pull(&request); }
  void wait() { ASSERT_EQ(done.wait(now_us() + 60'000'000), EventFlag::Wake::kSet); }

  static void on_done(void* context, int code, const char* message) {
    auto& call = *static_cast<Call*>(context);
    call.code = static_cast<StatusCode>(code);
    call.message = message;
    ++call.times;
    call.done.set();
  }

  const std::string name;
  BpsPushPull request{};
  EventFlag done;
  StatusCode code = StatusCode::kInternal;
  std::string message;
  int times = 0;
};

// A pointer as the C functions expect it; the job of the test owns the node.
std::shared_ptr<Node> borrowed(Node& node) {
  return {&node, [](Node*) {}};
}

TEST(CurrentJobTest, WithoutAJobThePushPullFailsAtOnce) {
  leave_job("there is no job");
  std::vector<float> values(10, 1);
  Call call("x", values);
  call.start();
  EXPECT_EQ(call.code, StatusCode::kFailedPrecondition);
  EXPECT_EQ(call.message, "there is no job");
  EXPECT_EQ(call.times, 1);
}

TEST(CurrentJobTest, StepsAreCountedByLabelInEachJob) {
  const auto metrics = enter_job_alone();
  EXPECT_EQ(table().next_step("a", 1), 1u);
  EXPECT_EQ(table().next_step("a", 1), 2u);
  EXPECT_EQ(table().next_step("b", 1), 1u);
  const auto next = enter_job_alone();
  EXPECT_EQ(table().next_step("a", 1), 1u) << "another job, whose other ranks have counted none";
  leave_job("the test is over");
}

TEST(CurrentJobTest, ARankThatIsAloneGetsItsOwn) {
  const auto metrics = enter_job_alone();
  std::vector<float> values(10, 3);
  std::vector<float> output(10, 0);
  Call call("x", values);
  call.request.output = output.data();
  call.start();
  EXPECT_EQ(call.code, StatusCode::kOk);
  EXPECT_EQ(output, values);
  EXPECT_EQ(metrics->push_pulls.load(), 1u);
  EXPECT_EQ(metrics->push_pull_bytes.load(), 40u);
  EXPECT_EQ(enter_job_alone()->push_pulls.load(), 0u);
  leave_job("over");
}

TEST(CurrentJobTest, UnknownRequestsAreRefused) {
  enter_job_alone();
  std::vector<float> values(10, 3);
  for (const auto& [dtype, op] : {std::pair{99, 1}, {3, 99}, {3, 7}, {3, 8}}) {
    Call call("x", values);
    call.request.dtype = static_cast<uint8_t>(dtype);
    call.request.op = static_cast<uint8_t>(op);
    call.start();
    EXPECT_NE(call.code, StatusCode::kOk) << dtype << " " << op;
    EXPECT_FALSE(call.message.empty());
  }
  leave_job("over");
}

TEST(CurrentJobTest, RanksWithAndWithoutTheTableMeet) {
  Job job(JobOptions{.workers = 2, .servers = 0, .ranks_per_machine = 2, .adjust = nullptr});
  ASSERT_TRUE(job.all_started());
  enter_job(borrowed(job.worker(0)));
  for (int round = 0; round < 3; ++round) {
    std::vector<std::vector<float>> mine(20, std::vector<float>(1000, 1));
    std::vector<std::unique_ptr<Call>> calls;
    for (size_t i = 0; i < mine.size(); ++i)
      calls.push_back(std::make_unique<Call>("tensor" + std::to_string(i), mine[i]));
    std::thread other([&] {
      for (const auto& call : calls) {
        std::vector<float> theirs(1000, 2);
        ASSERT_TRUE(push_pull(job.worker(1), call->name, theirs, DType::kFloat32).is_ok());
      }
    });
    for (const auto& call : calls) call->start();
    for (const auto& call : calls) call->wait();
    other.join();
    for (size_t i = 0; i < mine.size(); ++i) {
      EXPECT_EQ(calls[i]->code, StatusCode::kOk);
      EXPECT_EQ(calls[i]->times, 1);
      EXPECT_EQ(mine[i], std::vector<float>(1000, 3));
    }
  }
  std::vector<float> none, others_none;
  Call empty("empty", none);
  std::thread other(
      [&] { EXPECT_TRUE(push_pull(job.worker(1), "empty", others_none, DType::kFloat32).is_ok()); });
  empty.start();
  empty.wait();
  other.join();
  EXPECT_EQ(empty.code, StatusCode::kOk);
  leave_job("over");
}

TEST(CurrentJobTest, ANameInFlightIsRefusedAndTheFirstGoesOn) {
  Job job(JobOptions{.workers = 2, .servers = 0, .ranks_per_machine = 2, .adjust = nullptr});
  ASSERT_TRUE(job.all_started());
  enter_job(borrowed(job.worker(0)));
  std::vector<float> values(10, 1);
  std::vector<float> others(10, 1);
  Call first("x", values);
  Call second("x", others);
  first.start();
  second.start();
  EXPECT_EQ(second.code, StatusCode::kInvalidArgument);
  std::vector<float> theirs(10, 2);
  ASSERT_TRUE(push_pull(job.worker(1), "x", theirs, DType::kFloat32).is_ok());
  first.wait();
  EXPECT_EQ(first.code, StatusCode::kOk);
  EXPECT_EQ(values.front(), 3);
  leave_job("over");
}

TEST(CurrentJobTest, LeavingEndsPushPullsInFlightAndMayRunBesideThem) {
  Job job(JobOptions{.workers = 2, .servers = 0, .ranks_per_machine = 2, .adjust = nullptr});
  ASSERT_TRUE(job.all_started());
  enter_job(borrowed(job.worker(0)));
  std::vector<float> values(10, 1);
  Call waiting("nobody else has this", values);
  waiting.start();
  std::thread starter([&] {
    for (int i = 0; i < 200; ++i) {
      std::vector<float> more(10, 1);
      Call call("more" + std::to_string(i), more);
      call.start();
      call.wait();
      EXPECT_NE(call.code, StatusCode::kOk);
    }
  });
  leave_job("byteps was shut down");
  job.worker(0).shutdown();
  waiting.wait();
  EXPECT_EQ(waiting.code, StatusCode::kFailedPrecondition);
  starter.join();
}

TEST(CurrentJobTest, AnAbandonedJobIsNotTouchedAgain) {
  enter_job_alone();
  abandon_job("forked");
  std::vector<float> values(10, 1);
  Call call("x", values);
  call.start();
  EXPECT_EQ(call.message, "forked");
}

}  // namespace
}  // namespace byteps::c_api
