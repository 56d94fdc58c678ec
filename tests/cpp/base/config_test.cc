#include "base/config.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace byteps {
namespace {

NodeConfig good() {
  NodeConfig config;
  config.scheduler_ports = {9000};
  return config;
}

TEST(ConfigTest, DefaultsWithAPortAreValid) { EXPECT_TRUE(validate(good()).is_ok()); }

TEST(ConfigTest, EachFaultIsNamed) {
  struct Case {
    const char* name;
    std::function<void(NodeConfig&)> spoil;
  };
  const Case cases[] = {
      {"role", [](NodeConfig& c) { c.role = "boss"; }},
      {"num_workers", [](NodeConfig& c) { c.num_workers = 0; }},
      {"num_servers", [](NodeConfig& c) { c.num_servers = -1; }},
      {"rank", [](NodeConfig& c) { c.rank = 1; }},
      {"local_rank", [](NodeConfig& c) { c.local_rank = 5; }},
      {"host_scheduler", [](NodeConfig& c) { c.role = "server", c.host_scheduler = true; }},
      {"scheduler_ports", [](NodeConfig& c) { c.scheduler_ports.clear(); }},
      {"scheduler port", [](NodeConfig& c) { c.scheduler_ports = {70000}; }},
      {"start_timeout_s", [](NodeConfig& c) { c.start_timeout_s = 0; }},
      {"timeout_s", [](NodeConfig& c) { c.timeout_s = -1; }},
      {"op_timeout_s", [](NodeConfig& c) { c.op_timeout_s = 0; }},
      {"stall_warning_s", [](NodeConfig& c) { c.stall_warning_s = 0; }},
      {"partition_bytes", [](NodeConfig& c) { c.partition_bytes = 1; }},
      {"credit_bytes", [](NodeConfig& c) { c.credit_bytes = 0; }},
      {"service_threads", [](NodeConfig& c) { c.service_threads = 65; }},
      {"num_workers + num_servers", [](NodeConfig& c) { c.num_workers = 16384, c.num_servers = 1; }},
      {"placement", [](NodeConfig& c) { c.placement = "best"; }},
      {"nic_mbps", [](NodeConfig& c) { c.nic_mbps = -1; }},
      {"log_level", [](NodeConfig& c) { c.log_level = "loud"; }},
  };
  for (const Case& test : cases) {
    NodeConfig config = good();
    test.spoil(config);
    const Status status = validate(config);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << test.name;
    EXPECT_NE(status.message().find(std::string(test.name) + ": expected"), std::string::npos) << status;
  }
}

TEST(ConfigTest, ServersMayLearnTheNumberOfWorkers) {
  NodeConfig config = good();
  config.role = "server";
  config.num_workers = 0;
  EXPECT_TRUE(validate(config).is_ok());
}

}  // namespace
}  // namespace byteps
