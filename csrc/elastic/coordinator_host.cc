#include "elastic/coordinator_host.h"

#include <utility>

#include "base/log.h"

namespace byteps::elastic {

Result<std::unique_ptr<CoordinatorHost>> CoordinatorHost::create(const NodeConfig& config,
                                                                 protocol::CoordinatorOptions options) {
  log::set_level(log::level_from(config.log_level));
  std::unique_ptr<CoordinatorHost> host(new CoordinatorHost);
  host->environment_ = node::make_host_environment();
  host->tcp_ = host->environment_->make_control_tcp(config);
  auto loop = host->environment_->make_loop("bps-coordinator",
                                            [](const Status& why) { BPS_LOG(kError) << why.message(); });
  if (!loop) return loop.status();
  host->loop_ = std::move(*loop);
  options.version = config.version;
  options.timeout_us = seconds_to_us(config.timeout_s);
  options.start_timeout_us = seconds_to_us(config.start_timeout_s);
  host->coordinator_ = std::make_unique<cluster::Coordinator>(*host->loop_, std::move(options));
  Status status = unavailable("the coordinator has no port to listen on");
  if (config.scheduler_fd >= 0) {
    status = host->coordinator_->listen(*host->tcp_, config.scheduler_fd);
  } else {
    for (const int port : config.scheduler_ports) {
      status = host->coordinator_->listen(*host->tcp_, {config.scheduler_host, static_cast<uint16_t>(port)});
      if (status.is_ok()) break;
    }
  }
  BPS_RETURN_IF_ERROR(status);
  return host;
}

CoordinatorHost::~CoordinatorHost() {
  coordinator_.reset();
  if (loop_) loop_->stop();
}

Status CoordinatorHost::wait(const KeepWaiting& keep_waiting) {
  BPS_RETURN_IF_ERROR(wait_for(coordinator_->ended().flag(), kNever, keep_waiting));
  return coordinator_->outcome();
}

}  // namespace byteps::elastic
