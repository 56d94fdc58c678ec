#include "base/config.h"

#include <algorithm>
#include <string_view>

namespace byteps {
namespace {

class ErrorCollector {
 public:
  void expect(bool holds, const std::string& name, const std::string& expected, const std::string& got) {
    if (holds) return;
    if (!text_.empty()) text_ += "; ";
    text_ += name + ": expected " + expected + ", got " + got;
  }
  template <typename T>
  void expect_range(const std::string& name, T value, T low, T high) {
    expect(low <= value && value <= high, name, std::to_string(low) + " to " + std::to_string(high),
           std::to_string(value));
  }
  void expect_one_of(const std::string& name, const std::string& value,
                     std::initializer_list<std::string_view> choices) {
    std::string expected = "one of";
    for (std::string_view choice : choices) expected += " " + std::string(choice);
    expect(std::find(choices.begin(), choices.end(), value) != choices.end(), name, expected,
           "'" + value + "'");
  }
  Status status() const { return text_.empty() ? Status::ok() : invalid_argument("configuration: " + text_); }

 private:
  std::string text_;
};

}  // namespace

Status validate(const NodeConfig& config) {
  ErrorCollector errors;
  const bool is_worker = config.role == "worker";
  errors.expect_one_of("role", config.role, {"worker", "server", "scheduler"});
  errors.expect_range("num_workers", config.num_workers, is_worker ? 1 : 0, 16384);
  errors.expect_range("num_servers", config.num_servers, 0, 16384);
  errors.expect_range("num_workers + num_servers", int64_t{config.num_workers} + config.num_servers,
                      int64_t{0}, int64_t{16384});
  if (is_worker) {
    errors.expect_range("rank", config.rank, -1, config.num_workers - 1);
    errors.expect_range("local_rank", config.local_rank, -1,
                        (config.local_size > 0 ? config.local_size : config.num_workers) - 1);
  }
  errors.expect(is_worker || !config.host_scheduler, "host_scheduler", "false for role " + config.role,
                "true");
  errors.expect(!config.scheduler_ports.empty() || config.scheduler_fd >= 0, "scheduler_ports",
                "at least one port", "none");
  for (const int port : config.scheduler_ports) errors.expect_range("scheduler port", port, 1, 65535);
  errors.expect_range("start_timeout_s", config.start_timeout_s, 0.1, 1e6);
  errors.expect_range("timeout_s", config.timeout_s, 0.1, 1e6);
  errors.expect_range("op_timeout_s", config.op_timeout_s, 0.1, 1e7);
  errors.expect_range("stall_warning_s", config.stall_warning_s, 0.1, 1e7);
  if (config.partition_bytes != 0)
    errors.expect_range<int64_t>("partition_bytes", config.partition_bytes, 4096, 1 << 30);
  errors.expect_range<int64_t>("credit_bytes", config.credit_bytes, 1, int64_t{1} << 40);
  errors.expect_range("service_threads", config.service_threads, 0, 64);  // protocol::kMaxAddresses
  if (!config.placement.starts_with("weights:"))  // the placement code validates the weights
    errors.expect_one_of("placement", config.placement, {"auto", "allreduce", "ps", "weights:..."});
  errors.expect_range("nic_mbps", config.nic_mbps, 0.0, 1e9);
  errors.expect_one_of("transport", config.transport, {"auto", "tcp", "rdma"});
  errors.expect_range("rdma_gid_index", config.rdma_gid_index, -1, 255);
  errors.expect_range("rdma_traffic_class", config.rdma_traffic_class, 0, 255);
  errors.expect_range("rdma_service_level", config.rdma_service_level, 0, 15);
  errors.expect_range("rdma_timeout", config.rdma_timeout, 1, 31);
  errors.expect_range("rdma_spin_us", config.rdma_spin_us, 0, 1'000'000);
  errors.expect_one_of("log_level", config.log_level, {"error", "warning", "info", "debug"});
  return errors.status();
}

}  // namespace byteps
