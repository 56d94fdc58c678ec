#include "elastic/async_elastic_node.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "elastic/names.h"
#include "node/transports.h"

namespace byteps::elastic {
namespace {

// Longest wait of a member that leaves for the coordinator.
constexpr TimeUs kLeaveUs = 5'000'000;

}  // namespace

uint32_t rank_of(uint32_t member, const std::vector<uint32_t>& members) {
  return static_cast<uint32_t>(std::ranges::find(members, member) - members.begin());
}

AsyncElasticNode::AsyncElasticNode(NodeConfig config, MakeEnvironment make_environment)
    : config_(std::move(config)),
      make_environment_(std::move(make_environment)),
      environment_(make_environment_()),
      tcp_(environment_->make_control_tcp(config_)) {}

AsyncElasticNode::~AsyncElasticNode() {
  stop();
  link_.reset();
}

Status AsyncElasticNode::start(std::vector<transport::Address> coordinator, TimeUs deadline_us) {
  auto ip = environment_->own_address(config_, coordinator);
  if (!ip) return ip.status();
  ip_ = *ip;
  auto loop =
      environment_->make_loop("bps-elastic", [](const Status& why) { BPS_LOG(kError) << why.message(); });
  if (!loop) return loop.status();
  loop_ = std::move(*loop);
  handles_ = std::make_unique<worker::HandleTable>(handle_metrics_, *loop_, environment_->make_completions());
  link_ = std::make_unique<cluster::CoordinatorLink>(*loop_, *tcp_, *this);
  loop_->post([this, coordinator = std::move(coordinator), deadline_us]() mutable {
    link_->enrol(std::move(coordinator),
                 {environment_->process_id(), environment_->host_name(), config_.version}, deadline_us);
  });
  return Status::ok();
}

Status AsyncElasticNode::on_coordinator(const protocol::Control& message) {
  if (const auto* enrolled = std::get_if<protocol::Enrolled>(&message)) {
    member_ = enrolled->member;
  } else if (const auto* form = std::get_if<protocol::Form>(&message)) {
    return on_form(*form);
  } else if (const auto* entered = std::get_if<protocol::Entered>(&message)) {
    on_entered(entered->generation);
  } else if (const auto* cancelled = std::get_if<protocol::Cancelled>(&message)) {
    if (next_ && next_->number() == cancelled->generation) drop(next_);
  } else if (const auto* resigned = std::get_if<protocol::Resigned>(&message)) {
    if (resigned->member == member_) {
      may_leave_ = true;
      if (!recovering_) leave_node();  // else others may need what this member has
    } else {
      link_->send(*resigned);
    }
  } else if (const auto* missing = std::get_if<protocol::Missing>(&message)) {
    missing_ = missing->workers;
    if (missing_ > 0)
      BPS_LOG(kWarning) << missing_ << " workers are missing; the job waits for them at its next commit";
    go_on_waiting_for_workers();
  }
  return Status::ok();
}

void AsyncElasticNode::note_state() {
  loop_->post([this] { has_state_ = true; });
}

void AsyncElasticNode::commit(UniqueFunction<void(Result<Change>)> done) {
  loop_->post([this, done = std::move(done)]() mutable {
    Status status;
    {
      MutexLock lock(mutex_);
      status = ended_;
      if (status.is_ok() && !ops_.empty())
        status = invalid_argument("commit with push_pulls in flight ('" + ops_.begin()->first +
                                  "'): call synchronize() on them first");
      commit_mark_ = ledger_.mark();
    }
    if (status.is_ok() && commit_done_)
      status = invalid_argument("commit while another thread is in a commit");
    if (!status.is_ok()) return done(status);
    commit_done_ = std::move(done);
    send_flags();
  });
}

// The smallest and, negated, the largest generation that a rank can enter; whether workers are
// missing.
void AsyncElasticNode::send_flags() {
  const int64_t ready = next_ && next_->has_started ? next_->number() : 0;
  // Not the last one, which a data loop may still be writing to if others have entered meanwhile.
  flags_ = std::make_shared<Flags>(Flags{ready, -ready, missing_ > 0 ? -1 : 0});
  wait_ = Wait::kFlags;
  auto* const memory = reinterpret_cast<std::byte*>(flags_->data());
  push_pull({.name = kFlagsName, .dtype = DType::kInt64, .bytes = sizeof(Flags), .op = ReduceOp::kMin},
            {.input = memory, .output = memory}, [this, flags = flags_](const Status& status) {
              loop_->post([this, flags, status] {
                if (flags == flags_) on_flags(status);
              });
            });
}

void AsyncElasticNode::on_flags(const Status& status) {
  wait_ = Wait::kNothing;
  if (!status.is_ok()) return finish_commit(status);
  {
    MutexLock lock(mutex_);
    ledger_.release(commit_mark_);
  }
  const auto [smallest, largest_negated, missing] = *flags_;
  if (smallest > 0 && smallest == -largest_negated) return enter(static_cast<uint32_t>(smallest));
  if (missing == 0) return finish_commit(Change());
  wait_ = Wait::kWorkers;
  go_on_waiting_for_workers();
}

void AsyncElasticNode::go_on_waiting_for_workers() {
  if (wait_ != Wait::kWorkers) return;
  if (missing_ == 0 || (next_ && next_->has_started)) send_flags();
}

void AsyncElasticNode::finish_commit(Result<Change> change) {
  if (commit_done_) std::exchange(commit_done_, nullptr)(std::move(change));
}

void AsyncElasticNode::on_verdict(const Status& why) { fail(why); }

void AsyncElasticNode::on_coordinator_lost(const Status& why) {
  bool is_running = false;
  {
    MutexLock lock(mutex_);
    coordinator_lost_ = why;
    is_running = present_ && !is_frozen_;
  }
  if (leaves_) return leave_node();
  if (!is_running || missing_ > 0) return fail(why);
  BPS_LOG(kWarning) << why.message() << "; training goes on, but no worker may come or be lost any more";
}

void AsyncElasticNode::fail(const Status& why) {
  {
    MutexLock lock(mutex_);
    if (ended_.is_ok()) ended_ = why;
  }
  drop(next_);
  drop(recovering_);
  freeze(why);
  started_.reach();
}

void AsyncElasticNode::leave(const std::string& cause, bool others_stay) {
  if (!loop_) return left_.reach();
  loop_->post([this, cause, others_stay] {
    leaves_ = true;
    cause_ = cause;
    if (!failure().is_ok() || !coordinator_failure().is_ok() || member_ == 0) return leave_node();
    link_->send(protocol::Resign{cause, others_stay});
    loop_->run_at(loop_->now_us() + kLeaveUs, [this] { leave_node(); });
  });
}

void AsyncElasticNode::leave_node() {
  if (std::exchange(has_resigned_, true)) return;
  GenerationPtr present;
  {
    MutexLock lock(mutex_);
    if (ended_.is_ok())
      ended_ = failed_precondition("byteps was shut down in this process; call init() again");
    present = std::exchange(present_, nullptr);
    is_frozen_ = true;
  }
  is_drained_ = true;
  drop(next_);
  drop(recovering_);
  link_->close(loop_->now_us() + kLeaveUs);
  leaving_ = present;
  present ? retire(std::move(present)) : finish_leaving();
}

// Nodes of earlier generations may still wait for members that do not answer; nobody waits for them.
void AsyncElasticNode::finish_leaving() {
  fail_all_operations();
  finish_commit(failure());
  left_.reach();
}

void AsyncElasticNode::stop() {
  std::vector<GenerationPtr> all;
  if (loop_) {
    loop_->stop();
    MutexLock lock(mutex_);
    all.assign(retired_.begin(), retired_.end());
    for (const GenerationPtr& each : {present_, next_, recovering_})
      if (each) all.push_back(each);
  }
  for (const GenerationPtr& each : all) each->node->stop();
  if (handles_) handles_->close();
}

Status AsyncElasticNode::failure() const {
  MutexLock lock(mutex_);
  return ended_;
}

int AsyncElasticNode::rank() const {
  MutexLock lock(mutex_);
  return static_cast<int>(rank_of(member_, epoch_members_));
}

Status AsyncElasticNode::coordinator_failure() const {
  MutexLock lock(mutex_);
  return coordinator_lost_;
}

uint32_t AsyncElasticNode::epoch() const {
  MutexLock lock(mutex_);
  return epoch_;
}

int AsyncElasticNode::size() const {
  MutexLock lock(mutex_);
  return static_cast<int>(epoch_members_.size());
}

std::vector<std::pair<int, int>> AsyncElasticNode::local_ranks() const {
  MutexLock lock(mutex_);
  return local_ranks_;
}

int AsyncElasticNode::local_rank() const { return local_ranks()[static_cast<size_t>(rank())].first; }

int AsyncElasticNode::local_size() const { return local_ranks()[static_cast<size_t>(rank())].second; }

std::vector<uint32_t> AsyncElasticNode::members() const {
  MutexLock lock(mutex_);
  std::vector<uint32_t> members = present_ ? present_->form.members : std::vector<uint32_t>();
  std::ranges::sort(members);
  return members;
}

void AsyncElasticNode::add_metrics(Metrics& sums) const {
  MutexLock lock(mutex_);
  byteps::add_metrics(sums, past_);
  if (present_) byteps::add_metrics(sums, present_->node->metrics());
}

}  // namespace byteps::elastic
