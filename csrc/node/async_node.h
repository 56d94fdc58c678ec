// One process's part in a job: creates its roles (ARCHITECTURE.md) from a NodeConfig, joins, and
// leaves in order. No method blocks, so the simulator runs it as well; node.h adds what blocks.
//
// Event loops: data loops ("bps-data-N"), each with one or more shards of the service and the
// worker's links to the shards paired with them, and a control loop ("bps-control") with scheduler
// and client.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/annotations.h"
#include "base/config.h"
#include "base/grace_period.h"
#include "base/metrics.h"
#include "base/milestone.h"
#include "base/unique_function.h"
#include "cluster/client.h"
#include "cluster/scheduler.h"
#include "cluster/standby.h"
#include "node/environment.h"
#include "node/loop_watch.h"
#include "node/nic_probe.h"
#include "node/parent_link.h"
#include "node/routes.h"
#include "node/traffic_reporter.h"
#include "node/wait_reporter.h"
#include "protocol/outbox.h"
#include "protocol/pacing.h"
#include "protocol/tree.h"
#include "summation/service.h"
#include "worker/worker.h"

namespace byteps::node {

class AsyncNode : public cluster::ClientEvents, public summation::ShardEvents, public worker::WorkerEvents {
 public:
  // `config` is valid (base/config.h).
  AsyncNode(NodeConfig config, std::unique_ptr<Environment> environment);
  ~AsyncNode() override;  // calls stop()

  // Starts to join the job; a scheduler only starts. The deadline is config.start_timeout_s from
  // now. `scheduler`: addresses of config.scheduler_host. started() follows, unless this returns an
  // error: kUnavailable: an address cannot be used; kInvalidArgument: wrong configuration.
  Status start(std::vector<transport::Address> scheduler, TimeUs start_deadline_us);
  // All nodes have joined, or the start has failed: see failure(). kPermissionDenied: secret or job
  // differ. kDeadlineExceeded and kUnavailable name the nodes that have not joined or cannot be
  // reached. Never reached by a scheduler alone.
  Milestone& started() { return started_; }
  // All workers have left in order, or the job has failed. A scheduler alone: all nodes have been
  // told as well.
  Milestone& finished() { return scheduler_ && !client_ ? scheduler_->ended() : finished_; }
  // ok while the job runs, and when it has ended in order; otherwise why it has failed.
  Status failure() const;
  // Leaves the job; to be called once. `cause`: an exception that ends the program and fails the
  // job for all nodes; empty: leaves in order. `after`: an exception that is propagating during an
  // orderly leave, for ranks that wait for this node. left() follows, on the control loop, or
  // immediately if the start has failed before that loop ran.
  void leave(const std::string& cause, const std::string& after);
  Milestone& left() { return left_; }
  // Any thread. This node gives up, as if the job had failed because of `why`; nobody is told. All
  // push_pulls end. For members of elastic jobs, which go on with another node.
  void abandon(const Status& why);
  // Stops the event loops, without leaving. Idempotent. Not on one of the loops.
  void stop();

  // Of the scheduler of this process, from start() on; nullopt: none.
  std::optional<transport::Address> scheduler_address() const;

  // All methods below: any thread. These numbers are constant from started() on.
  int rank() const { return self_.rank; }
  int size() const { return static_cast<int>(roster_.num_workers); }
  // At the start of the job.
  int num_servers() const { return static_cast<int>(roster_.nodes.size() - roster_.num_added) - size(); }
  int local_rank() const { return self_.local_rank; }
  int local_size() const { return self_.local_size; }
  // (local_rank, local_size) of every worker, by rank.
  std::vector<std::pair<int, int>> local_ranks() const;

  // Errors of the next five: those of Worker, and kFailedPrecondition for a role other than worker
  // or after leave().
  Status declare(const std::string& name, DType dtype, uint64_t bytes);
  Result<protocol::Handle> push_pull(const protocol::PushPull& request, const worker::TensorMemory& memory);
  // As in Worker: all errors go to `on_done`.
  void push_pull(const protocol::PushPull& request, const worker::TensorMemory& memory,
                 worker::OnDone on_done);
  // Counts a push_pull of this name that an adapter has refused (protocol::PushPullTable::refuse):
  // the round fails on all ranks. Never fails.
  void refuse(const std::string& name, uint64_t step, const Status& why);
  // As Worker::request_plan. Does nothing where push_pull() would fail.
  void request_plan(const protocol::Plan& plan);
  Result<bool> poll(protocol::Handle handle);
  // Frees the handle of a push_pull that is done, and returns the push_pull's status.
  Status result(protocol::Handle handle);
  // As in worker::HandleTable. `next_done` is for one thread at most, and ends with stop().
  Status announce(protocol::Handle handle);
  std::optional<protocol::Handle> next_done();

  // `done` is called on the control loop or within this call, when every worker has called
  // barrier() as often as this one, or with an error. The calls of a process take effect one after
  // the other. Returns a number for forget_barrier().
  uint64_t barrier(UniqueFunction<void(const Status&)> done);
  // Takes back a call of barrier() of which the scheduler does not know yet.
  void forget_barrier(uint64_t number);
  const Metrics& metrics() const { return metrics_; }
  // After stop(). The numbers of the names that the service has summed and not forgotten, and of
  // those that the scheduler knows if it is in this process.
  std::set<uint64_t> summed_tensors() const;
  std::set<uint64_t> known_tensors() const;
  transport::rdma::RegistrationCounts rdma_counts() const { return routes_->rdma_counts(); }

  void on_probe_setup(const protocol::ProbeSetup& setup) override;
  void on_probe_start(const protocol::ProbeStart& start) override;
  void on_started(const protocol::Roster& roster) override;
  void on_failed(const Status& why) override;
  void on_scheduler_lost(const Status& why) override;
  void on_node_left(uint32_t node) override;
  void on_node_removed(const protocol::Removed& removed) override;
  void on_node_added(const protocol::NodeInfo& server) override;
  void on_finished(const std::string& text) override;
  Status self_check() override;
  void on_still_waiting(const std::string& text) override;
  Status on_answer(const protocol::Control& message) override;
  void on_child_lost(uint32_t child, const Status& why) override { client_->suspect(child, why); }
  // The scheduler names the tensor, because this process may not have declared it.
  void on_stalled(const protocol::Stalled& stalled) override { client_->send(stalled); }
  void send_to_scheduler(protocol::Control message) override { client_->send(std::move(message)); }
  void on_link_lost(uint32_t service, const Status& why) override { client_->suspect(service, why); }
  void on_credit(uint64_t credit_bytes) override;
  Status explain(const Status& failure) const override;

 protected:
  // For waits of threads.
  TimeUs now_us() const { return control_loop_->now_us(); }
  cluster::Client& client() { return *client_; }
  worker::Worker* worker() { return worker_.get(); }  // null: not a worker
  // Adds to `why` the nodes that this rank waited for in vain.
  Status with_missing(const Status& why) const;

 private:
  struct BarrierWait {
    uint64_t number;
    UniqueFunction<void(const Status&)> done;
  };

  void name_process(int rank);
  void open_shared_pool();
  Status start_loops();
  Status start_scheduler();
  Status start_service_and_join();
  // Shards that the service offers to the scheduler, and the data loop of each.
  size_t num_offered_shards() const;
  size_t loop_of_shard(size_t shard) const { return shard % data_loops_.size(); }
  protocol::Join make_join(std::vector<protocol::Endpoint> endpoints) const;
  void start_service();
  void offer_standby();
  void set_pace(const std::vector<uint32_t>& shares_ppb);
  std::vector<uint64_t> rates_to_ranks() const;
  void start_traffic_reporter();
  Status on_speeds(const protocol::Speeds& speeds);
  // The links to the services of the cluster level; null: none.
  worker::ShardLinks* paced_links();
  void build_worker();
  // The links of this node's roles.
  struct LinksOfLevel {
    protocol::Level level;
    worker::ShardLinks& links;
    worker::LinkEvents& events;
  };
  std::vector<LinksOfLevel> all_links();
  // Creates links to a service for each level at which this node may contribute to it.
  void add_links(uint32_t service);
  worker::ShardLink make_link(uint32_t service, size_t shard, const LinksOfLevel& of_level);
  Status usable() const;
  void send_barrier();
  void tell_of_callbacks();
  // On a data loop that is out of memory and cannot go on.
  void on_out_of_memory(const Status& why);
  // The same on the control loop: this process cannot tell the others the cause, but they notice
  // that it is gone.
  void on_control_out_of_memory(const Status& why);
  void on_leaving(const protocol::Leaving& leaving);
  // Deadline and grace period of a step of leaving that begins now.
  TimeUs leave_deadline_us() const;
  GracePeriod leave_grace_period() const;
  void leave_roles(const std::string& cause, const std::string& after);
  // Stays in the job for a while, as others may need results that this rank holds.
  void linger();

  const NodeConfig config_;
  const std::unique_ptr<Environment> environment_;
  TimeUs start_deadline_us_ = 0;
  // Addresses of config_.scheduler_host.
  std::vector<transport::Address> scheduler_hosts_;
  std::string ip_;  // address at which others reach this node
  Metrics metrics_;
  std::shared_ptr<transport::SharedPool> shared_pool_;  // null: none
  std::unique_ptr<transport::Transport> tcp_;           // measures network cards, and tries services
  std::unique_ptr<transport::Transport> control_tcp_;   // of the connections to the scheduler
  std::unique_ptr<Routes> routes_;
  std::vector<std::unique_ptr<transport::EventLoop>> data_loops_;
  std::vector<std::unique_ptr<protocol::Outbox>> outboxes_;  // one per data loop, on its thread
  std::unique_ptr<transport::EventLoop> control_loop_;
  LoopWatch loop_watch_;  // watches the data loops; used on the control loop
  // Destroyed in reverse order, so that no object calls a destroyed one.
  std::unique_ptr<cluster::Scheduler> scheduler_;
  std::unique_ptr<cluster::Standby> standby_;  // null: not rank 0, or none; used on the control loop
  std::unique_ptr<summation::Service> service_;
  worker::HeldResults held_results_;                       // used if Roster::failover
  std::unique_ptr<NodeParentLink> parent_link_;            // null: no level above this node's service
  std::unique_ptr<worker::DeviceStaging> device_staging_;  // null: not a worker
  std::unique_ptr<worker::Worker> worker_;
  // Null: this node does not take part. Used on the control loop.
  std::unique_ptr<NicProbe> nic_probe_;
  std::unique_ptr<cluster::Client> client_;
  // Read on the control loop, which runs before client_ is set.
  std::atomic<bool> has_client_ = false;
  // Reports waits of callbacks, for which no thread waits. Both used on the control loop.
  std::optional<WaitReporter> wait_reporter_;
  protocol::Handle stuck_callback_ = 0;

  Milestone started_;                   // the roster has arrived, or the start has failed
  Milestone finished_;                  // all workers have left, or the job has failed
  Milestone announced_;                 // all nodes know why this node leaves, or the job has failed
  Milestone lingered_;                  // all workers want to leave, or the job is over
  Milestone left_;                      // all steps of leave() are done
  protocol::Roster roster_;             // constant from started_ on
  std::optional<protocol::Tree> tree_;  // used on the control loop, as are the next three
  std::optional<protocol::Pace> pace_;
  TimeUs linger_until_us_ = 0;            // 0: it does not linger
  std::deque<protocol::NodeInfo> nodes_;  // of the roster and those added since; links refer to them
  std::unique_ptr<TrafficReporter> traffic_reporter_;  // null: no reports; used on the control loop
  protocol::NodeInfo self_;

  mutable Mutex mutex_;
  Status failure_ BPS_GUARDED_BY(mutex_);
  bool leaving_ BPS_GUARDED_BY(mutex_) = false;
  std::string still_waiting_ BPS_GUARDED_BY(mutex_);
  std::map<uint32_t, std::string> left_after_ BPS_GUARDED_BY(mutex_);  // by node: the exception
  uint32_t barrier_sequence_ BPS_GUARDED_BY(mutex_) = 0;
  uint64_t last_barrier_ BPS_GUARDED_BY(mutex_) = 0;  // number
  // The scheduler knows only of the first one.
  std::deque<BarrierWait> barriers_ BPS_GUARDED_BY(mutex_);
};

}  // namespace byteps::node
