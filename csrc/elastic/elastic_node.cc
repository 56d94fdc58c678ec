#include "elastic/elastic_node.h"

#include <optional>
#include <utility>

#include "base/descriptors.h"
#include "base/log.h"
#include "node/host.h"

namespace byteps::elastic {
namespace {

void wait_whatever_signals_come(EventFlag& flag) {
  while (flag.wait(kNever) == EventFlag::Wake::kInterrupted) {
  }
}

// What a call that blocks waits for. Kept by the callback, which may come after an interrupt.
template <typename Value>
struct Answer {
  EventFlag done;
  std::optional<Value> value;
};

}  // namespace

ElasticNode::ElasticNode(const NodeConfig& config)
    : node_(config, [] { return node::make_host_environment(); }) {}

Result<std::shared_ptr<ElasticNode>> ElasticNode::create(const NodeConfig& config,
                                                         const KeepWaiting& keep_waiting) {
  BPS_RETURN_IF_ERROR(validate(config));
  log::set_level(log::level_from(config.log_level));
  raise_descriptor_limit();
  std::shared_ptr<ElasticNode> node(new ElasticNode(config));
  const TimeUs deadline_us = byteps::now_us() + seconds_to_us(config.start_timeout_s);
  auto hosts = node::await_scheduler_host(config, deadline_us, keep_waiting);
  if (!hosts) return hosts.status();
  std::vector<transport::Address> coordinator;
  for (const int port : config.scheduler_ports) {
    for (const transport::Address& host : *hosts)
      coordinator.push_back({host.ip, static_cast<uint16_t>(port)});
  }
  BPS_RETURN_IF_ERROR(node->node_.start(std::move(coordinator), deadline_us));
  // The coordinator has the deadlines.
  BPS_RETURN_IF_ERROR(wait_for(node->node_.started().flag(), kNever, keep_waiting));
  BPS_RETURN_IF_ERROR(node->node_.failure());
  return node;
}

Status ElasticNode::wait(protocol::Handle handle, TimeUs deadline_us, const KeepWaiting& keep_waiting) {
  while (true) {
    bool interrupted = false;
    const Status status = node_.handles().wait(handle, deadline_us, interrupted);
    if (!interrupted) return status;
    if (!keep_waiting()) return aborted("interrupted");
  }
}

Status ElasticNode::barrier(const KeepWaiting& keep_waiting) {
  const auto answer = std::make_shared<Answer<Status>>();
  node_.barrier([answer](const Status& status) {
    answer->value = status;
    answer->done.set();
  });
  BPS_RETURN_IF_ERROR(wait_for(answer->done, kNever, keep_waiting));
  return *answer->value;
}

Result<Change> ElasticNode::commit(const KeepWaiting& keep_waiting) {
  const auto answer = std::make_shared<Answer<Result<Change>>>();
  node_.commit([answer](Result<Change> change) {
    answer->value = std::move(change);
    answer->done.set();
  });
  BPS_RETURN_IF_ERROR(wait_for(answer->done, kNever, keep_waiting));
  return *answer->value;
}

void ElasticNode::shut_down(const std::string& cause, bool others_stay) {
  if (shut_down_.exchange(true)) return wait_whatever_signals_come(down_);
  node_.leave(cause, others_stay);
  wait_whatever_signals_come(node_.left().flag());
  node_.stop();
  down_.set();
}

}  // namespace byteps::elastic
