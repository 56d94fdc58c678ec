#include "node/wait_reporter.h"

#include <gtest/gtest.h>

#include "base/event_flag.h"
#include "support/job.h"
#include "support/log_reader.h"

namespace byteps::node {
namespace {

// Frameworks wait like this: by a callback, without a waiting thread.
TEST(StillHereTest, ACallbackWaitIsReportedToo) {
  LogReader log;
  const auto adjust = [](NodeConfig& config, int) {
    config.timeout_s = 4;  // four heartbeats per timeout
    config.log_level = "warning";
  };
  Job job({.workers = 2, .servers = 0, .adjust = adjust});
  ASSERT_TRUE(job.all_started());
  std::vector<float> values(4, 1.0f);
  auto* data = reinterpret_cast<std::byte*>(values.data());
  EventFlag done;
  const protocol::PushPull request{.name = "late", .dtype = DType::kFloat32, .bytes = 16};
  job.worker(0).push_pull(request, {data, data}, [&done](const Status&) { done.set(); });
  EXPECT_TRUE(log.wait_for("push_pull of 'late': rank 1 (host "));
  std::vector<float> others(4, 1.0f);
  EXPECT_TRUE(push_pull(job.worker(1), "late", others, DType::kFloat32).is_ok());
  done.wait(kNever);
  EXPECT_EQ(values[0], 2.0f);
}

}  // namespace
}  // namespace byteps::node
