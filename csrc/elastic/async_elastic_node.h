// A worker of an elastic job: what node/async_node.h is to a worker of a job of fixed size. Its
// push_pulls go through one node after the other, one for each generation of the job
// (protocol/coordinator_state.h). A push_pull outlives the node that has begun it: if the node fails
// because a member of its generation is lost, a node of the next generation completes it
// (protocol/ledger.h). So the program notices a loss only by a step that takes a little longer.
//
// rank() and size() are those of the epoch. They change only within commit(), which all ranks call
// equally often, with no push_pull in flight: there they agree to enter a generation that numbers the
// ranks anew, without the lost ones and with those that have come.
//
// No method blocks, so the simulator runs it as well; elastic_node.h adds what blocks.
//
// Threads: decisions about generations are made on one loop ("bps-elastic"); push_pulls begin on any
// thread, and end on data loops of the nodes or on the thread of the Completions.
#pragma once

#include <array>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/annotations.h"
#include "base/config.h"
#include "base/milestone.h"
#include "cluster/coordinator_link.h"
#include "elastic/exchange.h"
#include "node/async_node.h"
#include "protocol/ledger.h"
#include "worker/handle_table.h"

namespace byteps::elastic {

// The rank of a member among `members`, which are in the order of ranks.
uint32_t rank_of(uint32_t member, const std::vector<uint32_t>& members);

// What commit() has changed.
struct Change {
  bool is_entered = false;     // this process is in another epoch now
  bool has_newcomers = false;  // which need the state of the training
};

class AsyncElasticNode : public cluster::CoordinatorEvents {
 public:
  using MakeEnvironment = std::function<std::unique_ptr<node::Environment>()>;

  // `config`: as for a worker's node. The coordinator is at config.scheduler_host.
  AsyncElasticNode(NodeConfig config, MakeEnvironment make_environment);
  ~AsyncElasticNode() override;  // calls stop()

  // Starts to enrol. `coordinator`: addresses of config.scheduler_host, with ports. started()
  // follows, unless this returns an error.
  Status start(std::vector<transport::Address> coordinator, TimeUs deadline_us);
  // This member has entered its first generation, or has failed: see failure().
  Milestone& started() { return started_; }
  // ok, or why the job has ended for this member.
  Status failure() const;
  // Leaves the job; once. As Resign. left() follows.
  void leave(const std::string& cause, bool others_stay);
  Milestone& left() { return left_; }
  // Stops all loops, without leaving. Idempotent. Not on one of the loops.
  void stop();

  // Any thread, all below. Valid from started() on.
  int rank() const;
  int size() const;
  int local_rank() const;
  int local_size() const;
  std::vector<std::pair<int, int>> local_ranks() const;
  uint32_t epoch() const;
  // Not ok: the coordinator is lost, so ranks do not change any more.
  Status coordinator_failure() const;
  // The members of the present generation, by number of the member, ascending.
  std::vector<uint32_t> members() const;

  // As AsyncNode. Tensors of devices and stored tensors are refused.
  Result<protocol::Handle> push_pull(const protocol::PushPull& request, const worker::TensorMemory& memory);
  void push_pull(const protocol::PushPull& request, const worker::TensorMemory& memory,
                 worker::OnDone on_done);
  void refuse(const std::string& name, uint64_t step, const Status& why);
  Status declare(const std::string& name, DType dtype, uint64_t bytes);
  worker::HandleTable& handles() { return *handles_; }
  // `done`: when all ranks have called it as often. One at a time.
  void barrier(worker::OnDone done);
  // This process has the state of the training. Those that are there when the job begins have it.
  void note_state();
  // All ranks call it equally often. `done` is called on the loop or within this call, and gets
  // kInvalidArgument if push_pulls are in flight.
  void commit(UniqueFunction<void(Result<Change>)> done);
  // Sums over all generations so far.
  void add_metrics(Metrics& sums) const;

  Status on_coordinator(const protocol::Control& message) override;
  void on_verdict(const Status& why) override;
  void on_coordinator_lost(const Status& why) override;

 private:
  // One generation that this member takes part in, and its node.
  struct Generation : std::enable_shared_from_this<Generation> {
    protocol::Form form;
    std::unique_ptr<node::AsyncNode> node;
    bool has_started = false;
    size_t attempts = 0;  // push_pulls that its node has not answered; guarded by mutex_
    uint32_t number() const { return form.generation; }
  };
  using GenerationPtr = std::shared_ptr<Generation>;

  // A push_pull of the program.
  struct Op {
    protocol::Handle handle;
    protocol::PushPull request;
    worker::TensorMemory memory;
    protocol::Ledger::Values result;
    uint64_t order = 0;
    uint32_t at = 0;              // generation whose node works on it; 0: none
    size_t attempts = 0;          // push_pulls of that node that it has not answered
    bool is_interrupted = false;  // one of them, by the end of the generation
    uint32_t first_rest = 0;      // number of the first one, if parts of the result are there already
    bool is_inside = false;       // begin() is still on the stack
    Status failure;               // the first one of a push_pull of the node
  };
  // Where the result of a node becomes that of the program.
  struct Landing {
    const std::byte* from;
    std::byte* to;
    bool is_cold;  // nobody reads it soon
    void copy(const protocol::ByteRange& part) const;
  };
  static Landing landing_of(const Op& op);
  // A push_pull of a node for what is still to be summed of an Op.
  struct Attempt {
    protocol::PushPull request;
    worker::TensorMemory memory;
  };
  using Flags = std::array<int64_t, 3>;
  enum class Wait { kNothing, kFlags, kWorkers };

  // Push_pulls (elastic_operations.cc)
  Status begin(protocol::Handle handle, const protocol::PushPull& request,
               const worker::TensorMemory& memory);
  void submit(const std::string& name) BPS_EXCLUDES(mutex_);
  std::vector<Attempt> attempts_of(const std::string& name, Op& op) BPS_REQUIRES(mutex_);
  void fail_without_root(const GenerationPtr& generation, const protocol::PushPull& request, size_t attempts);
  void on_part(const Generation& generation, const std::string& name, const Landing& landing, Bytes part);
  void on_attempt_done(const GenerationPtr& generation, const std::string& name, const Status& status);
  void finish(const Op& op, const Status& status);
  void resubmit_all();
  std::optional<uint32_t> rank_in(const Generation& generation, uint32_t rank) const BPS_REQUIRES(mutex_);

  // Generations (elastic_generations.cc), and commits, on the loop
  Status on_form(const protocol::Form& form);
  void on_entered(uint32_t entered);
  GenerationPtr make_generation(const protocol::Form& form);
  // Its node has started, or has failed.
  void on_node_news(const GenerationPtr& generation);
  void on_node_failed(const GenerationPtr& generation, const Status& why);
  // Nothing of the present generation changes memory any more, when on_drained() has followed.
  void freeze(const Status& why);
  void on_drained(const GenerationPtr& generation);
  void go_on_if_ready();
  void on_knowledge(const GenerationPtr& generation, Result<std::vector<Knowledge>> all);
  // Where the parts are at this member, whose rank this is, or shall be.
  Result<std::vector<ResultTransfer>> places_of(
      const std::vector<protocol::Reconciliation::Transfer>& transfers, uint32_t rank) const;
  void finish_recovery(const GenerationPtr& generation, const protocol::Reconciliation& reconciliation);
  void number_rests() BPS_REQUIRES(mutex_);
  // Enters the generation of this number, with or without a node of it.
  void enter(uint32_t epoch);
  void retire(GenerationPtr generation);
  void drop(GenerationPtr& generation);
  void send_flags();
  void on_flags(const Status& status);
  void go_on_waiting_for_workers();
  void finish_commit(Result<Change> change);
  Status without_coordinator(const std::string& why) const;
  void break_off(const GenerationPtr& generation, const std::string& why);
  void fail(const Status& why);
  void fail_all_operations();
  void leave_node();
  void finish_leaving();

  const NodeConfig config_;
  const MakeEnvironment make_environment_;
  std::unique_ptr<node::Environment> environment_;  // of this object, not of a node
  std::unique_ptr<transport::Transport> tcp_;
  std::unique_ptr<transport::EventLoop> loop_;
  std::unique_ptr<cluster::CoordinatorLink> link_;
  std::string ip_;
  Metrics handle_metrics_;
  std::unique_ptr<worker::HandleTable> handles_;
  std::byte barrier_{};  // content of the push_pull of a barrier
  Milestone started_;
  Milestone left_;

  // On the loop:
  uint32_t member_ = 0;
  GenerationPtr next_;        // numbers the ranks; entered by commit()
  GenerationPtr recovering_;  // follows present_ when its node has started and present_ is frozen
  std::list<GenerationPtr> retired_;
  std::map<uint32_t, protocol::Form> planned_;  // by number, which may be entered
  uint32_t entering_ = 0;                       // epoch that others have entered; 0: none
  bool is_drained_ = true;                      // there is no present generation, or nothing of it runs
  bool is_exchanging_ = false;                  // with the members of recovering_
  bool has_state_ = false;
  uint32_t missing_ = 0;
  Wait wait_ = Wait::kNothing;
  UniqueFunction<void(Result<Change>)> commit_done_;
  uint64_t commit_mark_ = 0;
  std::shared_ptr<Flags> flags_;  // of the last send_flags(); null in a new epoch
  bool leaves_ = false;
  bool may_leave_ = false;  // the others know that it resigns
  bool has_resigned_ = false;
  GenerationPtr leaving_;  // the last one
  std::string cause_;

  mutable Mutex mutex_;
  GenerationPtr present_ BPS_GUARDED_BY(mutex_);  // null: none
  bool is_frozen_ BPS_GUARDED_BY(mutex_) = true;  // push_pulls wait
  protocol::Ledger ledger_ BPS_GUARDED_BY(mutex_);
  bool was_refused_ BPS_GUARDED_BY(mutex_) = false;  // a call, since the table of ledger_ was sent
  std::map<std::string, Op> ops_ BPS_GUARDED_BY(mutex_);
  uint64_t last_order_ BPS_GUARDED_BY(mutex_) = 0;
  uint32_t epoch_ BPS_GUARDED_BY(mutex_) = 0;
  std::vector<uint32_t> epoch_members_ BPS_GUARDED_BY(mutex_);  // by rank
  std::vector<std::pair<int, int>> local_ranks_ BPS_GUARDED_BY(mutex_);
  Status ended_ BPS_GUARDED_BY(mutex_);
  Status coordinator_lost_ BPS_GUARDED_BY(mutex_);
  Metrics past_ BPS_GUARDED_BY(mutex_);  // of nodes that are gone
};

}  // namespace byteps::elastic
