// One process's part in a job: builds its roles from a NodeConfig, joins, and takes them down in order.
//
//   worker     a Worker, a summation Service, a Client; in rank 0 perhaps the Scheduler
//   server     a Service and a Client
//   scheduler  a Scheduler
//
// Threads: `service_threads` data loops ("bps-data-N"), each with one shard of the service and the worker's links to
// shards that are paired with it, and one control loop ("bps-control") for scheduler and client. Nothing else runs.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/annotations.h"
#include "base/config.h"
#include "base/event_flag.h"
#include "base/metrics.h"
#include "cluster/client.h"
#include "cluster/scheduler.h"
#include "node/loop_watch.h"
#include "node/nic_probe.h"
#include "node/parent_link.h"
#include "node/routes.h"
#include "node/wait_reporter.h"
#include "node/waiting.h"
#include "protocol/outbox.h"
#include "protocol/pacing.h"
#include "protocol/tree.h"
#include "summation/service.h"
#include "worker/worker.h"

namespace byteps::node {

class Node final : public cluster::ClientEvents, public summation::ShardEvents, public worker::WorkerEvents {
 public:
  // Joins the job and blocks until all nodes have, at most config.start_timeout_s. A scheduler only starts.
  // kInvalidArgument: the configuration. kPermissionDenied: secret or job differ. kDeadlineExceeded and
  // kUnavailable name who did not come or cannot be reached.
  static Result<std::unique_ptr<Node>> create(const NodeConfig& config, const KeepWaiting& keep_waiting);
  ~Node() override;  // shutdown()

  // Any thread, all below. These numbers are constant.
  int rank() const { return self_.rank; }
  int size() const { return static_cast<int>(roster_.num_workers); }
  int num_servers() const { return static_cast<int>(roster_.nodes.size()) - size(); }
  int local_rank() const { return self_.local_rank; }
  int local_size() const { return self_.local_size; }
  // Of every worker, by rank: its local_rank and local_size.
  std::vector<std::pair<int, int>> places() const;

  // Errors of the next five: of Worker, and kFailedPrecondition for a role other than worker or after shutdown.
  Status declare(const std::string& name, DType dtype, uint64_t bytes);
  Result<protocol::Handle> push_pull(const protocol::PushPull& request, const std::byte* input,
                                     std::byte* output);
  // Worker's: all errors go to `on_done`.
  void push_pull(const protocol::PushPull& request, const std::byte* input, std::byte* output,
                 worker::OnDone on_done);
  // A push_pull by this name was refused before it came here: protocol::PushPullTable::refuse. Never fails.
  void refuse(const std::string& name, uint64_t step, const Status& why);
  Result<bool> poll(protocol::Handle handle);
  Status wait(protocol::Handle handle, TimeUs deadline_us, const KeepWaiting& keep_waiting);
  // worker::HandleTable's. `next_done` is for one thread at most, and ends with the shutdown.
  Status announce(protocol::Handle handle);
  std::optional<protocol::Handle> next_done();

  // Blocks until every worker has called it. Calls of several threads go one after the other.
  Status barrier(const KeepWaiting& keep_waiting);
  // ok while the job is well.
  Status failure() const;
  const Metrics& metrics() const { return metrics_; }
  transport::rdma::RegistrationCounts rdma_counts() const { return routes_->rdma_counts(); }
  // Server, scheduler: blocks until all workers have left in order (ok), or the job has failed (why).
  Status wait_until_done(const KeepWaiting& keep_waiting);
  // Leaves the job: in order, or because of `cause` (an exception that ends the program), by which the job then fails
  // for all. `after`: an exception on whose way this is called; who waits for this node is told of it. Idempotent; one
  // caller does it, others wait for it.
  void shutdown(const std::string& cause = {}, const std::string& after = {});

  void on_probe_setup(const protocol::ProbeSetup& setup) override;
  void on_probe_start(const protocol::ProbeStart& start) override;
  void on_started(const protocol::Roster& roster) override;
  void on_failed(const Status& why) override;
  void on_node_left(uint32_t node) override;
  void on_finished(const std::string& text) override;
  Status self_check() override;
  void on_still_waiting(const std::string& text) override;
  Status on_answer(const protocol::Control& message) override;
  void on_child_lost(uint32_t child, const Status& why) override;
  void on_stalled(const protocol::Stalled& stalled) override;
  void send_to_scheduler(protocol::Control message) override;
  void on_link_lost(uint32_t service, const Status& why) override;
  void on_credit(uint64_t credit_bytes) override;
  Status explain(const Status& failure) const override;

 private:
  struct BarrierWait {
    EventFlag done;
    Status status;
  };

  explicit Node(NodeConfig config);
  void name_log(int rank) const;
  Status start_loops();
  Status start_scheduler();
  Status start_service_and_join();
  Status wait_for_start(const KeepWaiting& keep_waiting);
  protocol::Join make_join(const std::vector<std::string>& addresses,
                           const std::vector<std::string>& local_addresses,
                           const std::vector<std::string>& rdma_addresses) const;
  void start_service(const protocol::Tree& tree);
  void build_worker(const protocol::Tree& tree);
  // To all services that this node may contribute to at `level`.
  void build_links(const protocol::Tree& tree, protocol::Level level, worker::ShardLinks& links,
                   worker::LinkEvents& events);
  worker::ShardLink make_link(const protocol::Tree& tree, uint32_t service, size_t shard,
                              protocol::Level level, worker::LinkEvents& events);
  Status usable() const;
  void send_barrier();
  void tell_of_callbacks();
  // On a data loop, which is of no use any more.
  void on_out_of_memory(const Status& why);
  // Likewise on the control loop: this process has no way left to tell the others why, but they notice.
  void on_control_out_of_memory(const Status& why);
  void fail_job(const std::string& cause);
  void on_leaving(const protocol::Leaving& leaving);
  void tell_why_it_leaves(const std::string& after);
  // Whom this rank waited for in vain, which `why` may not know.
  Status with_missing(const Status& why) const;

  const NodeConfig config_;
  const bool names_log_;  // the first node of its process does, and nodes beside it do not
  TimeUs start_deadline_us_ = 0;
  std::vector<transport::Address> scheduler_hosts_;  // what config_.scheduler_host stands for
  std::string ip_;                                   // that others reach this node at
  Metrics metrics_;
  std::unique_ptr<Routes> routes_;
  std::vector<std::unique_ptr<transport::EventLoop>> data_loops_;
  std::vector<std::unique_ptr<protocol::Outbox>> outboxes_;  // of each of them, used on its thread
  std::unique_ptr<transport::EventLoop> control_loop_;
  LoopWatch loop_watch_;  // of the data loops; on the control loop
  // Destroyed in the opposite order: nobody calls what is gone already.
  std::unique_ptr<cluster::Scheduler> scheduler_;
  std::unique_ptr<summation::Service> service_;
  std::unique_ptr<NodeParentLink> parent_link_;  // null: this node's service has nothing above it
  std::unique_ptr<worker::Worker> worker_;
  std::unique_ptr<NicProbe> nic_probe_;  // null: this node was not asked to take part; on the control loop
  std::unique_ptr<cluster::Client> client_;
  std::atomic<bool> has_client_ = false;  // for the control loop, which runs before
  std::optional<WaitReporter>
      wait_reporter_;  // of what no thread waits for; on the control loop, as the next one
  protocol::Handle stuck_callback_ = 0;

  EventFlag started_;        // the roster is there, or the start has failed
  EventFlag finished_;       // all workers have left, or the job has failed
  EventFlag announced_;      // all know why this node leaves, or the job has failed
  EventFlag down_;           // shutdown() is through
  protocol::Roster roster_;  // constant once started_
  std::optional<protocol::Pace> pace_;
  protocol::NodeInfo self_;

  mutable Mutex mutex_;
  Status failure_ BPS_GUARDED_BY(mutex_);
  bool shut_down_ BPS_GUARDED_BY(mutex_) = false;
  std::string still_waiting_ BPS_GUARDED_BY(mutex_);
  std::map<uint32_t, std::string> left_after_ BPS_GUARDED_BY(mutex_);  // by node: which exception
  uint32_t barrier_sequence_ BPS_GUARDED_BY(mutex_) = 0;
  std::deque<std::shared_ptr<BarrierWait>> barriers_
      BPS_GUARDED_BY(mutex_);  // the scheduler knows the first one
};

}  // namespace byteps::node
