// A node of a process with threads of its own: what AsyncNode does, and calls that block until it
// is done.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "base/config.h"
#include "base/event_flag.h"
#include "base/status.h"
#include "node/async_node.h"

namespace byteps::node {

// All methods: any thread but those of the node's loops.
class Node final : public AsyncNode {
 public:
  // Joins the job and blocks until all nodes have joined, at most config.start_timeout_s. A
  // scheduler only starts. kInvalidArgument: wrong configuration. kAborted: interrupted. Other
  // errors: as AsyncNode::started().
  static Result<std::unique_ptr<Node>> create(const NodeConfig& config, const KeepWaiting& keep_waiting);
  ~Node() override { shutdown(); }

  // As worker::HandleTable::wait, and goes on after signals while `keep_waiting` returns true.
  // Tells the scheduler of a long wait.
  Status wait(protocol::Handle handle, TimeUs deadline_us, const KeepWaiting& keep_waiting);
  // Blocks until every worker has called it. Calls of several threads of a process run one after
  // the other.
  Status barrier(const KeepWaiting& keep_waiting);
  // For servers and schedulers: blocks until all workers have left in order (ok), or the job has
  // failed (the cause).
  Status wait_until_done(const KeepWaiting& keep_waiting);
  // Leaves the job (AsyncNode::leave). Idempotent: one caller does it, others block until it is
  // done.
  void shutdown(const std::string& cause = {}, const std::string& after = {});

 private:
  explicit Node(const NodeConfig& config);

  std::atomic<bool> shut_down_ = false;
  EventFlag down_;  // shutdown() is complete
};

}  // namespace byteps::node
