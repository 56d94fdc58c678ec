#include "node/node.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/countdown.h"
#include "base/descriptors.h"
#include "base/log.h"
#include "node/host.h"

namespace byteps::node {
namespace {

// Longest wait of each step of an orderly leave for peers that do not answer. Data that peers
// receive slowly may take longer, as long as it moves within the job's timeout.
constexpr TimeUs kLeaveUs = 5'000'000;
// The same after a failure: a peer that does not answer then has probably failed.
constexpr TimeUs kLeaveFailedUs = 1'000'000;

log::Level level_from(const std::string& name) {
  if (name == "error") return log::Level::kError;
  if (name == "info") return log::Level::kInfo;
  return name == "debug" ? log::Level::kDebug : log::Level::kWarning;
}

std::atomic<bool> log_is_named = false;

std::string log_prefix(const NodeConfig& config, int rank) {
  if (config.role == "worker") return rank < 0 ? "r?" : "r" + std::to_string(rank);
  return config.role + (rank < 0 ? "" : " " + std::to_string(rank));
}

}  // namespace

Node::Node(NodeConfig config) : config_(std::move(config)), names_log_(!log_is_named.exchange(true)) {
  name_log(config_.rank);
}

Node::~Node() {
  shutdown();
  if (names_log_) log_is_named = false;
}

void Node::name_log(int rank) const {
  if (names_log_) log::set_prefix(log_prefix(config_, rank));
}

Result<std::unique_ptr<Node>> Node::create(const NodeConfig& config, const KeepWaiting& keep_waiting) {
  BPS_RETURN_IF_ERROR(validate(config));
  log::set_level(level_from(config.log_level));
  raise_descriptor_limit();
  std::unique_ptr<Node> node(new Node(config));
  node->start_deadline_us_ = now_us() + seconds_to_us(config.start_timeout_s);
  auto scheduler_hosts = await_scheduler_host(config, node->start_deadline_us_, keep_waiting);
  if (!scheduler_hosts) return scheduler_hosts.status();
  node->scheduler_hosts_ = std::move(*scheduler_hosts);
  node->routes_ = std::make_unique<Routes>(config);
  BPS_RETURN_IF_ERROR(node->start_loops());
  if (config.role != "scheduler") BPS_RETURN_IF_ERROR(node->routes_->open_rdma(config, node->ip_));
  if (config.role == "scheduler" || config.host_scheduler) BPS_RETURN_IF_ERROR(node->start_scheduler());
  if (config.role == "scheduler") return node;
  BPS_RETURN_IF_ERROR(node->start_service_and_join());
  BPS_RETURN_IF_ERROR(node->wait_for_start(keep_waiting));
  return node;
}

Status Node::wait_for_start(const KeepWaiting& keep_waiting) {
  BPS_RETURN_IF_ERROR(wait_for(started_, kNever, keep_waiting));  // the membership has the deadline
  return failure();
}

void Node::on_failed(const Status& why) {
  std::deque<std::shared_ptr<BarrierWait>> barriers;
  {
    MutexLock lock(mutex_);
    if (!failure_.is_ok()) return;
    failure_ = why;
    barriers.swap(barriers_);
  }
  BPS_LOG(kInfo) << "job failed: " << why.message();
  if (nic_probe_) nic_probe_->stop();
  // Shards first: they have to forget leased memory before the links that lease it free it.
  service_->fail(why);
  if (parent_link_) parent_link_->links().fail(why);
  if (worker_) worker_->fail(why);
  for (const auto& barrier : barriers) {
    barrier->status = why;
    barrier->done.set();
  }
  started_.set();
  finished_.set();
  announced_.set();
}

std::vector<std::pair<int, int>> Node::places() const {
  std::vector<std::pair<int, int>> places;
  for (uint32_t rank = 0; rank < roster_.num_workers; ++rank) {
    places.emplace_back(roster_.nodes[rank].local_rank, roster_.nodes[rank].local_size);
  }
  return places;
}

void Node::on_node_left(uint32_t node) {
  if (node < roster_.num_workers) service_->rank_left(node);
  if (parent_link_) parent_link_->links().peer_left(node);
  if (worker_) worker_->peer_left(node);
}

void Node::on_finished(const std::string& text) {
  BPS_LOG(kInfo) << text;
  // Workers that still wait for this server get this as the cause.
  if (!worker_) service_->fail(unavailable(text));
  finished_.set();
}

// Only one of the ranks on a machine logs it.
void Node::on_still_waiting(const std::string& text) {
  if (self_.local_rank <= 0 && config_.local_rank <= 0) BPS_LOG(kWarning) << "waits: " << text;
  MutexLock lock(mutex_);
  still_waiting_ = text;
}

Status Node::with_missing(const Status& why) const {
  if (why.code() != StatusCode::kDeadlineExceeded) return why;
  MutexLock lock(mutex_);
  return still_waiting_.empty() ? why : Status(why.code(), why.message() + "; " + still_waiting_);
}

Status Node::on_answer(const protocol::Control& message) {
  if (const auto* placed = std::get_if<protocol::Placed>(&message)) {
    return worker_ ? worker_->on_placed(*placed) : Status::ok();
  }
  if (const auto* refused = std::get_if<protocol::Refused>(&message)) {
    if (refused->tensor != 0)
      service_->fail_tensor(refused->tensor, refused->round, Status(refused->code, refused->text));
    if (worker_) worker_->on_refused(*refused);
    return Status::ok();
  }
  if (const auto* stalled = std::get_if<protocol::Stalled>(&message)) {
    BPS_LOG(kWarning) << stalled->describe();
    return Status::ok();
  }
  if (const auto* leaving = std::get_if<protocol::Leaving>(&message)) {
    on_leaving(*leaving);
    return Status::ok();
  }
  const auto& done = std::get<protocol::BarrierDone>(message);
  std::shared_ptr<BarrierWait> barrier;
  bool others_wait = false;
  {
    MutexLock lock(mutex_);
    if (barriers_.empty() || done.sequence != barrier_sequence_)
      return data_loss("answer to barrier " + std::to_string(done.sequence) + ", for which no thread waits");
    barrier = std::move(barriers_.front());
    barriers_.pop_front();
    others_wait = !barriers_.empty();
  }
  barrier->status = explain(Status(done.code, done.text));
  barrier->done.set();
  if (others_wait) send_barrier();
  return Status::ok();
}

void Node::on_child_lost(uint32_t child, const Status& why) { client_->suspect(child, why); }

// The scheduler names the tensor, because this process may not have declared it.
void Node::on_stalled(const protocol::Stalled& stalled) { client_->send(stalled); }

void Node::on_out_of_memory(const Status& why) {
  BPS_LOG(kError) << why.message();
  if (started_.is_set() && !roster_.nodes.empty()) client_->suspect(roster_.self, why);
}

void Node::on_control_out_of_memory(const Status& why) {
  BPS_LOG(kError) << why.message();
  if (has_client_) client_->give_up(why);
  if (scheduler_) scheduler_->give_up(why);
}

void Node::send_to_scheduler(protocol::Control message) { client_->send(std::move(message)); }

void Node::on_link_lost(uint32_t service, const Status& why) { client_->suspect(service, why); }

void Node::on_credit(uint64_t credit_bytes) {
  for (size_t i = 0; i < data_loops_.size(); ++i) {
    data_loops_[i]->post([outbox = outboxes_[i].get(), credit_bytes] { outbox->set_credit(credit_bytes); });
  }
}

void Node::on_leaving(const protocol::Leaving& leaving) {
  if (leaving.node == roster_.self) return announced_.set();
  {
    MutexLock lock(mutex_);
    left_after_[leaving.node] = leaving.after;
  }
  client_->send(protocol::Leaving{leaving.node, {}});
}

// Services name the rank that has left; this adds the exception after which it left.
Status Node::explain(const Status& failure) const {
  MutexLock lock(mutex_);
  for (const auto& [node, after] : left_after_) {
    if (node >= roster_.nodes.size()) continue;
    const std::string has_left = " has left the job";
    const size_t name = failure.message().find(roster_.nodes[node].describe());
    const size_t at = name == std::string::npos ? name : failure.message().find(has_left, name);
    if (at == std::string::npos) continue;
    return {failure.code(), std::string(failure.message()).insert(at + has_left.size(), " after " + after)};
  }
  return failure;
}

Status Node::usable() const {
  if (!worker_) return failed_precondition("only a worker can push_pull; this process is a " + config_.role);
  MutexLock lock(mutex_);
  if (shut_down_) return failed_precondition("byteps was shut down in this process; call init() again");
  return Status::ok();
}

Status Node::declare(const std::string& name, DType dtype, uint64_t bytes) {
  BPS_RETURN_IF_ERROR(usable());
  return worker_->declare(name, dtype, bytes);
}

Result<protocol::Handle> Node::push_pull(const protocol::PushPull& request, const std::byte* input,
                                         std::byte* output) {
  BPS_RETURN_IF_ERROR(usable());
  return worker_->push_pull(request, input, output);
}

void Node::push_pull(const protocol::PushPull& request, const std::byte* input, std::byte* output,
                     worker::OnDone on_done) {
  const Status status = usable();
  if (!status.is_ok()) return on_done(status);
  worker_->push_pull(request, input, output, std::move(on_done));
}

void Node::refuse(const std::string& name, uint64_t step, const Status& why) {
  if (usable().is_ok()) worker_->refuse(name, step, why);
}

Result<bool> Node::poll(protocol::Handle handle) {
  if (!worker_) return failed_precondition("only a worker has handles");
  return worker_->handles().poll(handle);
}

Status Node::wait(protocol::Handle handle, TimeUs deadline_us, const KeepWaiting& keep_waiting) {
  if (!worker_) return failed_precondition("only a worker has handles");
  WaitReporter still_here(
      *client_, [this, handle] { return worker_->name_wait(handle); }, control_loop_->now_us());
  while (true) {
    bool interrupted = false;
    const Status status =
        worker_->handles().wait(handle, std::min(deadline_us, still_here.next_us()), interrupted);
    const bool timed_out = status.code() == StatusCode::kDeadlineExceeded && worker_->handles().poll(handle);
    if (timed_out && control_loop_->now_us() < deadline_us) {
      still_here.tell();
    } else if (!interrupted) {
      return still_here.has_told() ? with_missing(status) : status;
    } else if (!keep_waiting()) {
      return aborted("interrupted");
    }
  }
}

Status Node::self_check() {
  tell_of_callbacks();
  return loop_watch_.check();
}

// Reports the waits of frameworks that use callbacks, because no thread of theirs waits.
void Node::tell_of_callbacks() {
  const auto stuck = worker_
                         ? worker_->handles().stuck_callback(control_loop_->now_us() - WaitReporter::kTellUs)
                         : std::nullopt;
  if (!stuck || stuck->handle != stuck_callback_) wait_reporter_.reset();
  stuck_callback_ = stuck ? stuck->handle : 0;
  if (!stuck) return;
  const auto what = [this, handle = stuck->handle] { return worker_->name_wait(handle); };
  if (!wait_reporter_) wait_reporter_.emplace(*client_, what, stuck->since_us);
  if (control_loop_->now_us() >= wait_reporter_->next_us()) wait_reporter_->tell();
}

Status Node::announce(protocol::Handle handle) {
  if (!worker_) return failed_precondition("only a worker has handles");
  return worker_->handles().announce(handle);
}

std::optional<protocol::Handle> Node::next_done() {
  return worker_ ? worker_->handles().next_done() : std::nullopt;
}

Status Node::barrier(const KeepWaiting& keep_waiting) {
  BPS_RETURN_IF_ERROR(usable());
  const auto barrier = std::make_shared<BarrierWait>();
  bool is_first = false;
  {
    MutexLock lock(mutex_);
    if (!failure_.is_ok()) return failure_;
    is_first = barriers_.empty();
    barriers_.push_back(barrier);
  }
  if (is_first) send_barrier();
  WaitReporter still_here(*client_, [] { return "a barrier"; }, control_loop_->now_us());
  Status status;
  do {  // the scheduler has the deadline
    status = wait_for(barrier->done, still_here.next_us(), keep_waiting);
    if (status.code() == StatusCode::kDeadlineExceeded) still_here.tell();
  } while (status.code() == StatusCode::kDeadlineExceeded);
  if (status.is_ok()) return still_here.has_told() ? with_missing(barrier->status) : barrier->status;
  // Interrupted: forgets this call, unless the scheduler already knows of it.
  MutexLock lock(mutex_);
  if (!barriers_.empty() && barriers_.front() != barrier) std::erase(barriers_, barrier);
  return status;
}

// The scheduler accepts one barrier of a rank at a time.
void Node::send_barrier() {
  uint32_t sequence = 0;
  {
    MutexLock lock(mutex_);
    sequence = ++barrier_sequence_;
  }
  client_->send(protocol::Barrier{sequence});
}

Status Node::failure() const {
  MutexLock lock(mutex_);
  return failure_;
}

Status Node::wait_until_done(const KeepWaiting& keep_waiting) {
  if (config_.role == "scheduler") {
    BPS_RETURN_IF_ERROR(wait_for(scheduler_->ended(), kNever, keep_waiting));
    return scheduler_->outcome();
  }
  BPS_RETURN_IF_ERROR(wait_for(finished_, kNever, keep_waiting));
  return failure();
}

// Blocks until all nodes, including this one, have been told; connections that it closes after that
// are not reported.
void Node::fail_job(const std::string& cause) {
  const TimeUs deadline_us = control_loop_->now_us() + kLeaveFailedUs;
  client_->fail_job(cause);
  while (finished_.wait(deadline_us) == EventFlag::Wake::kInterrupted) {
  }
}

// Tells the other ranks before this one leaves, so that their waits for it fail at once.
void Node::tell_why_it_leaves(const std::string& after) {
  if (finished_.is_set()) return;  // no rank waits any more
  const TimeUs deadline_us = control_loop_->now_us() + kLeaveFailedUs;
  client_->send(protocol::Leaving{roster_.self, after});
  while (announced_.wait(deadline_us) == EventFlag::Wake::kInterrupted) {
  }
}

void Node::shutdown(const std::string& cause, const std::string& after) {
  bool first = false;
  {
    MutexLock lock(mutex_);
    first = !std::exchange(shut_down_, true);
  }
  if (!first) {
    while (down_.wait(kNever) == EventFlag::Wake::kInterrupted) {
    }
    return;
  }
  if (client_ && !cause.empty()) fail_job(cause);
  if (client_ && cause.empty() && !after.empty()) tell_why_it_leaves(after);
  const auto deadline_us = [this] {
    return control_loop_->now_us() + (failure().is_ok() ? kLeaveUs : kLeaveFailedUs);
  };
  const auto grace_period = [&] {
    return GracePeriod(deadline_us(), failure().is_ok() ? static_cast<TimeUs>(roster_.timeout_us) : 0);
  };
  const auto leave_and_wait = [&](auto leave) {
    const GracePeriod period = grace_period();
    run_until_done(period.outer_deadline_us(),
                   [&](UniqueFunction<void()> done) { leave(period, std::move(done)); });
  };
  if (worker_) leave_and_wait([&](auto period, auto done) { worker_->leave(period, std::move(done)); });
  if (parent_link_) {
    leave_and_wait([&](auto period, auto done) {
      worker::ShardLinks::leave({&parent_link_->links()}, unavailable(self_.describe() + " has left the job"),
                                period, std::move(done));
    });
  }
  if (service_) leave_and_wait([&](auto period, auto done) { service_->leave(period, std::move(done)); });
  if (client_) {
    const TimeUs until_us = deadline_us();
    run_until_done(until_us, [&](UniqueFunction<void()> done) { client_->leave(until_us, std::move(done)); });
  }
  if (scheduler_) {
    const TimeUs until_us = deadline_us();
    const std::string host = worker_ ? self_.describe() + ", which ran the scheduler," : "the scheduler";
    run_until_done(until_us, [&](UniqueFunction<void()> done) {
      scheduler_->shutdown(host + " has left the job", until_us, std::move(done));
    });
  }
  for (const auto& loop : data_loops_) loop->stop();
  if (control_loop_) control_loop_->stop();
  if (worker_) worker_->handles().close();
  down_.set();
}

}  // namespace byteps::node
