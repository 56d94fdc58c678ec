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
#include "node/job_node.h"

namespace byteps::node {

class Node final : public JobNode, public AsyncNode {
 public:
  // Joins the job and blocks until all nodes have joined, at most config.start_timeout_s. A
  // scheduler only starts. kInvalidArgument: wrong configuration. kAborted: interrupted. Other
  // errors: as AsyncNode::started().
  static Result<std::unique_ptr<Node>> create(const NodeConfig& config, const KeepWaiting& keep_waiting);
  ~Node() override { shut_down({}, {}); }

  int rank() const override { return AsyncNode::rank(); }
  int size() const override { return AsyncNode::size(); }
  int local_rank() const override { return AsyncNode::local_rank(); }
  int local_size() const override { return AsyncNode::local_size(); }
  int num_servers() const override { return AsyncNode::num_servers(); }
  std::vector<std::pair<int, int>> local_ranks() const override { return AsyncNode::local_ranks(); }
  Status declare(const std::string& name, DType dtype, uint64_t bytes) override {
    return AsyncNode::declare(name, dtype, bytes);
  }
  Result<protocol::Handle> push_pull(const protocol::PushPull& request,
                                     const worker::TensorMemory& memory) override {
    return AsyncNode::push_pull(request, memory);
  }
  void push_pull(const protocol::PushPull& request, const worker::TensorMemory& memory,
                 worker::OnDone on_done) override {
    AsyncNode::push_pull(request, memory, std::move(on_done));
  }
  void refuse(const std::string& name, uint64_t step, const Status& why) override {
    AsyncNode::refuse(name, step, why);
  }
  Result<bool> poll(protocol::Handle handle) override { return AsyncNode::poll(handle); }
  Status announce(protocol::Handle handle) override { return AsyncNode::announce(handle); }
  std::optional<protocol::Handle> next_done() override { return AsyncNode::next_done(); }
  Status failure() const override { return AsyncNode::failure(); }
  void add_metrics(Metrics& sums) const override { byteps::add_metrics(sums, metrics()); }
  transport::rdma::RegistrationCounts rdma_counts() const override { return AsyncNode::rdma_counts(); }

  // Tells the scheduler of a long wait.
  Status wait(protocol::Handle handle, TimeUs deadline_us, const KeepWaiting& keep_waiting) override;
  Status barrier(const KeepWaiting& keep_waiting) override;
  Status wait_until_done(const KeepWaiting& keep_waiting) override;
  void shutdown(const std::string& cause = {}, const std::string& after = {}) override {
    shut_down(cause, after);
  }

 private:
  explicit Node(const NodeConfig& config);
  void shut_down(const std::string& cause, const std::string& after);

  std::atomic<bool> shut_down_ = false;
  EventFlag down_;  // shutdown() is complete
};

}  // namespace byteps::node
