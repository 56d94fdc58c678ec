// The worker role: push_pull of named tensors through the summation services of a job.
//
// Any thread may call. A push_pull goes: name -> partitions (protocol/push_pull_table) -> the link to each
// partition's parent (on its own loop's thread) -> result in the tensor -> last partition settled -> handle done.
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
#include "worker/handle_table.h"
#include "worker/shard_links.h"

namespace byteps::worker {

// What a worker needs of its process.
class WorkerEvents {
 public:
  virtual ~WorkerEvents() = default;
  // Any thread.
  virtual void send_to_scheduler(protocol::Control message) = 0;
  // As LinkEvents.
  virtual void on_link_lost(uint32_t service, const Status& why) = 0;
  // The process's outboxes get another credit. Any thread.
  virtual void on_credit(uint64_t credit_bytes) = 0;
  // A failure as the program gets it, with what this process knows of it. Any thread.
  virtual Status explain(const Status& failure) const = 0;
};

struct WorkerOptions {
  uint32_t rank = 0;
  uint64_t credit_bytes = 0;  // as configured
  bool autotune = false;      // rank 0 looks for better partitions and credit; counts there only
};

class Worker final : public LinkEvents {
 public:
  Worker(const WorkerOptions& options, protocol::Tree tree, const protocol::PartitionRule& rule,
         Metrics& metrics, const Clock& clock, WorkerEvents& events);

  // To fill before the first push_pull: with the links to all that may be a parent in a tree, and to all that may keep
  // something (protocol::Level::kRanks).
  ShardLinks& links() { return links_; }
  ShardLinks& parameter_store_links() { return parameter_store_links_; }

  // Of a tensor that is not kept. Errors: protocol::PushPullTable::declare.
  Status declare(const std::string& name, DType dtype, uint64_t bytes);
  // [request.bytes] at `input` and `output`, which may be equal; both valid, and the input unchanged, until the
  // handle is done. Does not block. Errors: protocol::PushPullTable::start.
  Result<protocol::Handle> push_pull(const protocol::PushPull& request, const std::byte* input,
                                     std::byte* output);
  // Without a handle: `on_done` is called when it is done, on a thread for that; errors of the start come there, too,
  // at once.
  void push_pull(const protocol::PushPull& request, const std::byte* input, std::byte* output,
                 OnDone on_done);
  // protocol::PushPullTable::refuse.
  void refuse(const std::string& name, uint64_t step, const Status& why);
  HandleTable& handles() { return handles_; }

  // The scheduler's answers.
  Status on_placed(const protocol::Placed& placed);
  void on_refused(const protocol::Refused& refused);

  void peer_left(uint32_t service);
  // PushPullTable's.
  std::string name_wait(protocol::Handle handle);
  // The job has failed: everything in flight and everything later ends with `why`.
  void fail(const Status& why);
  // In order: what is in flight fails, all links say goodbye; then calls `done`, as ShardLinks::leave.
  void leave(GracePeriod grace_period, UniqueFunction<void()> done);

  void on_completed(protocol::Handle handle, const Result<protocol::Plan>& outcome) override;
  void on_link_lost(uint32_t service, const Status& why) override { events_.on_link_lost(service, why); }

 private:
  struct Memory {
    const std::byte* input;
    std::byte* output;
  };
  // What has to be done once the lock is released, so that no callback runs under it.
  struct Work {
    std::vector<protocol::Control> messages;  // to the scheduler
    std::optional<protocol::Plan> plan;
    // By link, in the order of first use, which does not depend on addresses.
    std::vector<std::pair<ShardLink*, std::vector<OutgoingPartition>>> partitions;
    std::unordered_map<ShardLink*, size_t> indices;  // in `partitions`
    std::vector<std::pair<protocol::Handle, Status>> finished;
  };
  Status start(protocol::Handle handle, const protocol::PushPull& request, Memory memory)
      BPS_EXCLUDES(mutex_);
  static void add_partition(Work& work, ShardLink& link, OutgoingPartition partition);
  Work take_work() BPS_REQUIRES(mutex_);
  void do_work(Work work) BPS_EXCLUDES(mutex_);
  void change_plan(const protocol::Plan& plan);
  void tune(const protocol::PushPull& request) BPS_REQUIRES(mutex_);
  OutgoingPartition make_outgoing(const protocol::StartPartition& start) BPS_REQUIRES(mutex_);

  const WorkerOptions options_;
  Metrics& metrics_;
  const Clock& clock_;
  WorkerEvents& events_;
  HandleTable handles_;
  ShardLinks links_;
  ShardLinks parameter_store_links_;
  Mutex mutex_;
  protocol::PushPullTable table_ BPS_GUARDED_BY(mutex_);
  std::unordered_map<protocol::Handle, Memory> memory_ BPS_GUARDED_BY(mutex_);
  protocol::TableActions actions_ BPS_GUARDED_BY(mutex_);  // reused
  protocol::StepMeter steps_ BPS_GUARDED_BY(mutex_);
  std::optional<protocol::Tuner> tuner_ BPS_GUARDED_BY(mutex_);
};

}  // namespace byteps::worker
