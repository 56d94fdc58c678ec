#include "support/job.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <thread>

namespace byteps::node {
namespace {

// Creates a listening socket on a port chosen by the kernel, as a launcher does.
int listen_on_loopback(uint16_t& port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  BPS_CHECK(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) << "bind";
  BPS_CHECK(listen(fd, 128) == 0) << "listen";
  socklen_t length = sizeof address;
  BPS_CHECK(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0) << "getsockname";
  port = ntohs(address.sin_port);
  return fd;
}

}  // namespace

Job::Job(JobOptions options) : options_(std::move(options)) {
  uint16_t port = 0;
  const int fd = listen_on_loopback(port);
  const int count = options_.workers + options_.servers;
  nodes_.resize(static_cast<size_t>(count));
  start_status_.resize(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    NodeConfig config;
    config.role = i < options_.workers ? "worker" : "server";
    config.rank = i < options_.workers ? i : -1;
    config.num_workers = options_.workers;
    config.num_servers = options_.servers;
    if (const int together = options_.ranks_per_machine; together > 0) {
      config.machine =
          config.role == "worker" ? "machine" + std::to_string(i / together) : "cpu" + std::to_string(i);
    }
    config.scheduler_host = "127.0.0.1";
    config.scheduler_ports = {port};
    config.host_scheduler = i == 0;
    config.scheduler_by_rank_0 = true;
    if (i == 0) config.scheduler_fd = fd;
    config.secret = "a secret";
    config.job_id = "test";
    config.start_timeout_s = 20;
    config.timeout_s = 10;
    config.op_timeout_s = 30;
    config.partition_bytes = 64 << 10;
    config.service_threads = 2;
    config.log_level = "error";
    if (options_.adjust) options_.adjust(config, i);
    threads.emplace_back([this, i, config] {
      auto node = Node::create(config, [] { return true; });
      auto& status = start_status_[static_cast<size_t>(i)];
      if (node) {
        nodes_[static_cast<size_t>(i)] = std::move(*node);
      } else {
        status = node.status();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

Job::~Job() {
  std::vector<std::thread> threads;
  for (const auto& node : nodes_) {
    if (node) threads.emplace_back([&node] { node->shutdown(); });
  }
  for (std::thread& thread : threads) thread.join();
}

bool Job::all_started() const {
  for (const Status& status : start_status_) {
    if (!status.is_ok()) return false;
  }
  return true;
}

void Job::on_all(const std::function<void(int, Node&)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options_.workers; ++rank) {
    threads.emplace_back([this, rank, &body] { body(rank, worker(rank)); });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace byteps::node
