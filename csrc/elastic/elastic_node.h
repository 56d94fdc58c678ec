// An elastic member of a process with threads of its own: what AsyncElasticNode does, and calls that
// block until it is done.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/config.h"
#include "base/event_flag.h"
#include "elastic/async_elastic_node.h"
#include "node/job_node.h"

namespace byteps::elastic {

// All methods: any thread but those of the node's loops.
class ElasticNode final : public node::JobNode {
 public:
  // Enrols and blocks until this member takes part, at most config.start_timeout_s after the
  // coordinator has started the job. kInvalidArgument: wrong configuration. kAborted: interrupted.
  // kDeadlineExceeded, kUnavailable: the coordinator cannot be reached, or has ended the job.
  static Result<std::shared_ptr<ElasticNode>> create(const NodeConfig& config,
                                                     const KeepWaiting& keep_waiting);
  ~ElasticNode() override { shut_down({}, false); }

  void note_state() { node_.note_state(); }
  // As AsyncElasticNode::commit.
  Result<Change> commit(const KeepWaiting& keep_waiting);
  // Members of the present generation, by number of the member: those whose contributions a sum has
  // that completes now.
  std::vector<uint32_t> members() const { return node_.members(); }
  Status coordinator_failure() const { return node_.coordinator_failure(); }
  // Leaves, while the others go on.
  void leave_others() { shut_down({}, true); }

  int rank() const override { return node_.rank(); }
  int size() const override { return node_.size(); }
  int local_rank() const override { return node_.local_rank(); }
  int local_size() const override { return node_.local_size(); }
  int num_servers() const override { return 0; }
  std::vector<std::pair<int, int>> local_ranks() const override { return node_.local_ranks(); }
  Status declare(const std::string& name, DType dtype, uint64_t bytes) override {
    return node_.declare(name, dtype, bytes);
  }
  Result<protocol::Handle> push_pull(const protocol::PushPull& request,
                                     const worker::TensorMemory& memory) override {
    return node_.push_pull(request, memory);
  }
  void push_pull(const protocol::PushPull& request, const worker::TensorMemory& memory,
                 worker::OnDone on_done) override {
    node_.push_pull(request, memory, std::move(on_done));
  }
  void refuse(const std::string& name, uint64_t step, const Status& why) override {
    node_.refuse(name, step, why);
  }
  Result<bool> poll(protocol::Handle handle) override { return node_.handles().poll(handle); }
  Status announce(protocol::Handle handle) override { return node_.handles().announce(handle); }
  std::optional<protocol::Handle> next_done() override { return node_.handles().next_done(); }
  Status failure() const override { return node_.failure(); }
  void add_metrics(Metrics& sums) const override { node_.add_metrics(sums); }
  transport::rdma::RegistrationCounts rdma_counts() const override { return {}; }
  Status wait(protocol::Handle handle, TimeUs deadline_us, const KeepWaiting& keep_waiting) override;
  Status barrier(const KeepWaiting& keep_waiting) override;
  // There is nothing to wait for: workers of elastic jobs do not serve others.
  Status wait_until_done(const KeepWaiting&) override { return Status::ok(); }
  void shutdown(const std::string& cause, const std::string& /*after*/) override { shut_down(cause, false); }

 private:
  explicit ElasticNode(const NodeConfig& config);
  void shut_down(const std::string& cause, bool others_stay);

  AsyncElasticNode node_;
  std::atomic<bool> shut_down_ = false;
  EventFlag down_;  // shut_down() is complete
};

}  // namespace byteps::elastic
