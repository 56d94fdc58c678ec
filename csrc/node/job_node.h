// What the threads of a program use of its part in a job, whether the job has a fixed size (node.h)
// or an elastic one (elastic/elastic_node.h).
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/event_flag.h"
#include "base/metrics.h"
#include "base/status.h"
#include "protocol/push_pull_table.h"
#include "transport/rdma/registrations.h"
#include "worker/worker.h"

namespace byteps::node {

// All methods: any thread but those of the node's loops.
class JobNode {
 public:
  virtual ~JobNode() = default;

  // In an elastic job these change within its commit() only.
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int local_rank() const = 0;
  virtual int local_size() const = 0;
  virtual int num_servers() const = 0;
  // (local_rank, local_size) of every worker, by rank.
  virtual std::vector<std::pair<int, int>> local_ranks() const = 0;

  // As AsyncNode.
  virtual Status declare(const std::string& name, DType dtype, uint64_t bytes) = 0;
  virtual Result<protocol::Handle> push_pull(const protocol::PushPull& request,
                                             const worker::TensorMemory& memory) = 0;
  virtual void push_pull(const protocol::PushPull& request, const worker::TensorMemory& memory,
                         worker::OnDone on_done) = 0;
  virtual void refuse(const std::string& name, uint64_t step, const Status& why) = 0;
  virtual Result<bool> poll(protocol::Handle handle) = 0;
  virtual Status announce(protocol::Handle handle) = 0;
  virtual std::optional<protocol::Handle> next_done() = 0;
  // ok while the job runs, and when it has ended in order; otherwise why it has failed.
  virtual Status failure() const = 0;
  // Adds its counters to `sums`; ratios replace those in `sums`.
  virtual void add_metrics(Metrics& sums) const = 0;
  virtual transport::rdma::RegistrationCounts rdma_counts() const = 0;

  // As worker::HandleTable::wait, and goes on after signals while `keep_waiting` returns true.
  virtual Status wait(protocol::Handle handle, TimeUs deadline_us, const KeepWaiting& keep_waiting) = 0;
  // Blocks until every worker has called it. Calls of several threads of a process run one after
  // the other.
  virtual Status barrier(const KeepWaiting& keep_waiting) = 0;
  // Blocks until all workers have left in order (ok), or the job has failed (the cause).
  virtual Status wait_until_done(const KeepWaiting& keep_waiting) = 0;
  // Leaves the job. Idempotent: one caller does it, others block until it is done. `cause`, `after`:
  // as AsyncNode::leave.
  virtual void shutdown(const std::string& cause, const std::string& after) = 0;
};

}  // namespace byteps::node
