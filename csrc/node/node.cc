#include "node/node.h"

#include <algorithm>
#include <utility>

#include "base/descriptors.h"
#include "base/log.h"
#include "node/host.h"

namespace byteps::node {
namespace {

void wait_whatever_signals_come(EventFlag& flag) {
  while (flag.wait(kNever) == EventFlag::Wake::kInterrupted) {
  }
}

}  // namespace

Node::Node(const NodeConfig& config) : AsyncNode(config, make_host_environment()) {}

Result<std::unique_ptr<Node>> Node::create(const NodeConfig& config, const KeepWaiting& keep_waiting) {
  BPS_RETURN_IF_ERROR(validate(config));
  log::set_level(log::level_from(config.log_level));
  raise_descriptor_limit();
  std::unique_ptr<Node> node(new Node(config));
  const TimeUs deadline_us = byteps::now_us() + seconds_to_us(config.start_timeout_s);
  auto scheduler = await_scheduler_host(config, deadline_us, keep_waiting);
  if (!scheduler) return scheduler.status();
  BPS_RETURN_IF_ERROR(node->start(std::move(*scheduler), deadline_us));
  if (config.role == "scheduler") return node;
  // The membership has the deadline.
  BPS_RETURN_IF_ERROR(wait_for(node->started().flag(), kNever, keep_waiting));
  BPS_RETURN_IF_ERROR(node->failure());
  return node;
}

Status Node::wait(protocol::Handle handle, TimeUs deadline_us, const KeepWaiting& keep_waiting) {
  if (worker() == nullptr) return failed_precondition("only a worker has handles");
  WaitReporter still_here(client(), [this, handle] { return worker()->name_wait(handle); }, now_us());
  while (true) {
    bool interrupted = false;
    const Status status =
        worker()->handles().wait(handle, std::min(deadline_us, still_here.next_us()), interrupted);
    const bool timed_out = status.code() == StatusCode::kDeadlineExceeded && AsyncNode::poll(handle);
    if (timed_out && now_us() < deadline_us) {
      still_here.tell();
    } else if (!interrupted) {
      return still_here.has_told() ? with_missing(status) : status;
    } else if (!keep_waiting()) {
      return aborted("interrupted");
    }
  }
}

Status Node::barrier(const KeepWaiting& keep_waiting) {
  struct Answer {
    EventFlag done;
    Status status;
  };
  const auto answer = std::make_shared<Answer>();
  const uint64_t number = AsyncNode::barrier([answer](const Status& status) {
    answer->status = status;
    answer->done.set();
  });
  if (answer->done.is_set()) return answer->status;
  WaitReporter still_here(client(), [] { return "a barrier"; }, now_us());
  Status status;
  do {  // the scheduler has the deadline
    status = wait_for(answer->done, still_here.next_us(), keep_waiting);
    if (status.code() == StatusCode::kDeadlineExceeded) still_here.tell();
  } while (status.code() == StatusCode::kDeadlineExceeded);
  if (status.is_ok()) return still_here.has_told() ? with_missing(answer->status) : answer->status;
  forget_barrier(number);  // interrupted
  return status;
}

Status Node::wait_until_done(const KeepWaiting& keep_waiting) {
  BPS_RETURN_IF_ERROR(wait_for(finished().flag(), kNever, keep_waiting));
  return failure();
}

void Node::shut_down(const std::string& cause, const std::string& after) {
  if (shut_down_.exchange(true)) return wait_whatever_signals_come(down_);
  leave(cause, after);
  wait_whatever_signals_come(left().flag());
  stop();
  down_.set();
}

}  // namespace byteps::node
