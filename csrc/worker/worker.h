// The worker role: push_pull of named tensors through the summation services of a job.
//
// Thread-safe. The path of a push_pull: name -> partitions (protocol/push_pull_table.h) -> the link
// to each partition's parent, on its loop -> results in the tensor -> handle done. Partitions of
// device memory pass worker/device_staging.h on the way to the link and back.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/annotations.h"
#include "base/metrics.h"
#include "protocol/push_pull_table.h"
#include "protocol/tuner.h"
#include "worker/device_staging.h"
#include "worker/handle_table.h"
#include "worker/shard_links.h"

namespace byteps::worker {

// Callbacks of a worker into its process.
class WorkerEvents {
 public:
  virtual ~WorkerEvents() = default;
  // Any thread. Called under a lock of the worker, so that messages keep the order of the
  // decisions: must not call the worker.
  virtual void send_to_scheduler(protocol::Control message) = 0;
  // As LinkEvents::on_link_lost.
  virtual void on_link_lost(uint32_t service, const Status& why) = 0;
  // The credit of the process's outboxes changes, in bytes per connection. Any thread.
  virtual void on_credit(uint64_t credit_bytes) = 0;
  // Returns the status that the program gets for `failure`: adds the cause if this process knows
  // it. Any thread.
  virtual Status explain(const Status& failure) const = 0;
};

struct WorkerOptions {
  uint32_t rank = 0;
  uint64_t credit_bytes = 0;  // bytes in flight per connection, as configured
  bool autotune = false;      // tunes partition size and credit; effective on rank 0 only
  protocol::NameLimits names = {};
};

// Where a tensor is: in host memory, or, with `transfer`, at these addresses of a device. `input` may
// be equal to `output`. `on_part`: for tensors in host memory.
struct TensorMemory {
  const std::byte* input;
  std::byte* output;
  std::shared_ptr<device::Transfer> transfer = nullptr;
  std::shared_ptr<const OnPart> on_part = nullptr;
};

class Worker final : public LinkEvents, public DeviceStagingEvents {
 public:
  // `staging`: for tensors on devices; must exist as long as this object's links.
  Worker(const WorkerOptions& options, protocol::Tree tree, const protocol::PartitionRule& rule,
         Metrics& metrics, const Clock& clock, std::unique_ptr<Completions> completions,
         DeviceStaging& staging, WorkerEvents& events);

  // The caller adds all links before the first push_pull, and those to a server that comes later
  // before add_server(): to services that may be a parent in a tree, and to those that may store
  // tensors (protocol::Level::kRanks).
  ShardLinks& links() { return links_; }
  ShardLinks& parameter_store_links() { return parameter_store_links_; }

  // Requests the placement of a tensor in advance; not for stored tensors. `bytes`: its size.
  // Errors: as protocol::PushPullTable::declare.
  Status declare(const std::string& name, DType dtype, uint64_t bytes);
  // Starts a push_pull of request.bytes bytes. The memory must stay valid, and the input unchanged,
  // until the handle is done; that of a device until its Transfer is complete. Does not block.
  // Errors: as protocol::PushPullTable::start.
  Result<protocol::Handle> push_pull(const protocol::PushPull& request, const TensorMemory& memory);
  // As above, without a handle: `on_done` is called on the thread of the Completions when the
  // push_pull is done. If it cannot start, `on_done` gets the error within this call.
  void push_pull(const protocol::PushPull& request, const TensorMemory& memory, OnDone on_done);
  // As protocol::PushPullTable::refuse.
  void refuse(const std::string& name, uint64_t step, const Status& why);
  // Requests another partition scale and credit for later push_pulls, as the tuner does. Effective
  // on rank 0 only.
  void request_plan(const protocol::Plan& plan);
  // Requests another placement in the plans of later push_pulls (protocol::Speeds). Effective on
  // rank 0 only.
  void request_placement(uint8_t placement);
  HandleTable& handles() { return handles_; }

  // Messages from the scheduler. An error of on_placed means that the message is invalid.
  Status on_placed(const protocol::Placed& placed);
  void on_refused(const protocol::Refused& refused);

  // The node `service` has left the job in order.
  void peer_left(uint32_t service);
  // As ShardLinks::lose.
  void lose_server(const protocol::Removed& removed);
  // A server has come: the scheduler may name it in placements from now on.
  void add_server(const protocol::NodeInfo& server);
  // Whether a push_pull is in flight.
  bool is_busy();
  // As PushPullTable::name_wait.
  std::string name_wait(protocol::Handle handle);
  // The job has failed: all push_pulls, present and future, fail with `why`.
  void fail(const Status& why);
  // Leaves the job in order: push_pulls in flight fail, all links send a goodbye; then calls `done`
  // as ShardLinks::leave does.
  void leave(GracePeriod grace_period, UniqueFunction<void()> done);

  void on_completed(OutgoingPartition partition, const Result<protocol::Plan>& outcome) override;
  void on_link_lost(uint32_t service, const Status& why) override { events_.on_link_lost(service, why); }
  void on_outcomes_moved(std::vector<protocol::DataHead> outcomes) override {
    links_for(outcomes.front()).move(outcomes);
  }
  void on_partitions_moved(std::vector<OutgoingPartition> partitions) override {
    links_for(partitions.front().head).move(std::move(partitions));
  }
  void on_staged(ToSend partitions) override;
  void on_staging_failed(const std::vector<protocol::StartPartition>& starts, const Status& why) override;
  void on_copied_back(protocol::Handle handle, const Result<protocol::Plan>& outcome) override;

 private:
  struct Memory {
    TensorMemory tensor;
    bool is_cold;
  };
  // Actions for after the lock is released.
  struct Work {
    std::optional<protocol::Plan> plan;
    // By link, in the order of first use, which does not depend on addresses.
    std::vector<std::pair<ShardLink*, std::vector<OutgoingPartition>>> partitions;
    std::unordered_map<ShardLink*, size_t> indices;  // in `partitions`
    std::vector<DevicePartitions> to_stage;          // by handle
    std::vector<std::pair<protocol::Handle, Status>> finished;
  };
  Status start(protocol::Handle handle, const protocol::PushPull& request, const TensorMemory& memory)
      BPS_EXCLUDES(mutex_);
  // Calls `f(table_, actions_)` under the lock, then does the work. `f` only changes the table: it
  // must not call out, block or keep the references.
  template <typename F>
  void change(F&& f) BPS_EXCLUDES(mutex_);
  // A link carries either stored tensors only, or none.
  ShardLinks& links_for(const protocol::DataHead& head) {
    return is_stored(head.op) ? parameter_store_links_ : links_;
  }
  void add_partition(Work& work, const protocol::Parent& parent, OutgoingPartition partition);
  void complete(protocol::Handle handle, const Result<protocol::Plan>& outcome);
  // Moves a partition that starts into `work`.
  void start_partition(Work& work, protocol::StartPartition& start) BPS_REQUIRES(mutex_);
  // Sends messages to the scheduler, and returns the other actions.
  Work take_work() BPS_REQUIRES(mutex_);
  // `quickly`: partitions may be sent on this thread (EventLoop::run_soon).
  void do_work(Work work, bool quickly = false) BPS_EXCLUDES(mutex_);
  void change_plan(const protocol::Plan& plan);
  void count_move(uint8_t placement) BPS_REQUIRES(mutex_);
  void tune(const protocol::PushPull& request) BPS_REQUIRES(mutex_);
  OutgoingPartition make_outgoing(const protocol::StartPartition& start) BPS_REQUIRES(mutex_);

  const WorkerOptions options_;
  Metrics& metrics_;
  const Clock& clock_;
  DeviceStaging& staging_;
  WorkerEvents& events_;
  HandleTable handles_;
  ShardLinks links_;
  ShardLinks parameter_store_links_;
  const uint32_t num_final_roots_;  // Tree::num_final_roots()
  Mutex mutex_;
  protocol::PushPullTable table_ BPS_GUARDED_BY(mutex_);
  std::unordered_map<protocol::Handle, Memory> memory_ BPS_GUARDED_BY(mutex_);
  protocol::TableActions actions_ BPS_GUARDED_BY(mutex_);  // empty between calls
  protocol::StepMeter steps_ BPS_GUARDED_BY(mutex_);
  std::optional<protocol::Tuner> tuner_ BPS_GUARDED_BY(mutex_);
  uint8_t placement_ BPS_GUARDED_BY(mutex_) = 0;  // the newest one that a push_pull has used
};

}  // namespace byteps::worker
