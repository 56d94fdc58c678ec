#include "node/async_node.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace byteps::node {
AsyncNode::AsyncNode(NodeConfig config, std::unique_ptr<Environment> environment)
    : config_(std::move(config)), environment_(std::move(environment)) {
  name_process(config_.rank);
}

AsyncNode::~AsyncNode() { stop(); }

void AsyncNode::name_process(int rank) {
  const std::string number = rank < 0 ? "" : std::to_string(rank);
  if (config_.role == "worker") return environment_->on_named("r" + (rank < 0 ? "?" : number));
  environment_->on_named(config_.role + (rank < 0 ? "" : " " + number));
}

void AsyncNode::on_failed(const Status& why) {
  std::deque<BarrierWait> barriers;
  {
    MutexLock lock(mutex_);
    if (!failure_.is_ok()) return;
    failure_ = why;
    barriers.swap(barriers_);
  }
  BPS_LOG(kInfo) << "job failed: " << why.message();
  if (nic_probe_) nic_probe_->stop();
  if (traffic_reporter_) traffic_reporter_->stop();
  // Shards first: they have to forget leased memory before the links that lease it free it.
  // A server that is lost must not fail the rounds of those who go on without it, nor an elastic
  // member those that the next generation completes.
  const bool others_go_on = config_.is_generation || (config_.role == "server" && roster_.failover);
  others_go_on ? service_->abandon(why) : service_->fail(why);
  if (parent_link_) parent_link_->links().fail(why);
  if (worker_) worker_->fail(why);
  for (BarrierWait& barrier : barriers) barrier.done(why);
  started_.reach();
  finished_.reach();
  announced_.reach();
  lingered_.reach();
}

void AsyncNode::abandon(const Status& why) {
  if (!control_loop_) return;
  control_loop_->post([this, why] {
    if (service_) on_failed(why);
  });
}

std::optional<transport::Address> AsyncNode::scheduler_address() const {
  return scheduler_ ? std::optional(scheduler_->address()) : std::nullopt;
}

void AsyncNode::on_scheduler_lost(const Status& why) {
  if (self_.local_rank <= 0)
    BPS_LOG(kWarning) << why.message() << "; training goes on, with a scheduler in "
                      << roster_.nodes[0].describe();
  add(metrics_.schedulers_lost, 1);
  if (standby_) standby_->take_over();
}

std::vector<std::pair<int, int>> AsyncNode::local_ranks() const {
  std::vector<std::pair<int, int>> ranks;
  for (uint32_t rank = 0; rank < roster_.num_workers; ++rank) {
    ranks.emplace_back(roster_.nodes[rank].local_rank, roster_.nodes[rank].local_size);
  }
  return ranks;
}

void AsyncNode::on_node_left(uint32_t node) {
  if (node < roster_.num_workers) service_->rank_left(node, false);
  if (parent_link_) parent_link_->links().peer_left(node);
  if (worker_) worker_->peer_left(node);
}

void AsyncNode::on_node_removed(const protocol::Removed& removed) {
  const std::string goes_on = "; training goes on without this server";
  if (self_.local_rank <= 0) BPS_LOG(kWarning) << removed.text << goes_on;
  add(metrics_.servers_lost, 1);
  tree_->lose(removed.node);
  service_->restart_waits();
  if (linger_until_us_ > 0) linger();
  if (parent_link_) parent_link_->links().lose(removed);
  if (worker_) worker_->lose_server(removed);
}

void AsyncNode::on_finished(const std::string& text) {
  BPS_LOG(kInfo) << text;
  // Workers that still wait for this server get this as the cause.
  if (!worker_) service_->fail(unavailable(text));
  finished_.reach();
  lingered_.reach();
}

// Only one of the ranks on a machine logs it.
void AsyncNode::on_still_waiting(const std::string& text) {
  if (self_.local_rank <= 0 && config_.local_rank <= 0) BPS_LOG(kWarning) << "waits: " << text;
  MutexLock lock(mutex_);
  still_waiting_ = text;
}

Status AsyncNode::with_missing(const Status& why) const {
  if (why.code() != StatusCode::kDeadlineExceeded) return why;
  MutexLock lock(mutex_);
  return still_waiting_.empty() ? why : Status(why.code(), why.message() + "; " + still_waiting_);
}

Status AsyncNode::on_answer(const protocol::Control& message) {
  if (const auto* placed = std::get_if<protocol::Placed>(&message)) {
    return worker_ ? worker_->on_placed(*placed) : Status::ok();
  }
  if (const auto* refused = std::get_if<protocol::Refused>(&message)) {
    if (refused->tensor != 0)
      service_->fail_tensor(refused->tensor, refused->round, Status(refused->code, refused->text));
    if (worker_) worker_->on_refused(*refused);
    return Status::ok();
  }
  if (const auto* forgotten = std::get_if<protocol::Forgotten>(&message)) {
    service_->forget(forgotten->keys);
    held_results_.forget(forgotten->keys);
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
  if (const auto* speeds = std::get_if<protocol::Speeds>(&message)) return on_speeds(*speeds);
  if (const auto* lingers = std::get_if<protocol::Lingers>(&message)) {
    if (lingers->node < roster_.num_workers) service_->rank_left(lingers->node, true);
    return Status::ok();
  }
  if (std::holds_alternative<protocol::AllLinger>(message)) {
    lingered_.reach();
    return Status::ok();
  }
  if (std::holds_alternative<protocol::Standby>(message)) {
    started_.reach();
    return Status::ok();
  }
  if (const auto* replicate = std::get_if<protocol::Replicate>(&message)) {
    if (!standby_) return data_loss("Replicate: this node is no standby");
    BPS_RETURN_IF_ERROR(standby_->on_replicate(*replicate));
    client_->send(protocol::Replicated{replicate->number});
    return Status::ok();
  }
  const auto& done = std::get<protocol::BarrierDone>(message);
  BarrierWait barrier;
  bool others_wait = false;
  {
    MutexLock lock(mutex_);
    if (barriers_.empty() || done.sequence != barrier_sequence_)
      return data_loss("answer to barrier " + std::to_string(done.sequence) + ", for which no thread waits");
    barrier = std::move(barriers_.front());
    barriers_.pop_front();
    others_wait = !barriers_.empty();
  }
  if (others_wait) send_barrier();
  barrier.done(explain(Status(done.code, done.text)));
  return Status::ok();
}

void AsyncNode::on_out_of_memory(const Status& why) {
  BPS_LOG(kError) << why.message();
  if (started_.is_reached() && !roster_.nodes.empty()) client_->suspect(roster_.self, why);
}

void AsyncNode::on_control_out_of_memory(const Status& why) {
  BPS_LOG(kError) << why.message();
  if (has_client_) client_->give_up(why);
  if (scheduler_) scheduler_->give_up(why);
  if (standby_) standby_->give_up(why);
}

void AsyncNode::on_credit(uint64_t credit_bytes) {
  for (size_t i = 0; i < data_loops_.size(); ++i) {
    data_loops_[i]->post([outbox = outboxes_[i].get(), credit_bytes] { outbox->set_credit(credit_bytes); });
  }
}

void AsyncNode::on_leaving(const protocol::Leaving& leaving) {
  if (leaving.node == roster_.self) return announced_.reach();
  {
    MutexLock lock(mutex_);
    left_after_[leaving.node] = leaving.after;
  }
  client_->send(protocol::Leaving{leaving.node, {}});
}

// Services name the rank that has left; this adds the exception after which it left.
Status AsyncNode::explain(const Status& failure) const {
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

Status AsyncNode::usable() const {
  if (!worker_) return failed_precondition("only a worker can push_pull; this process is a " + config_.role);
  MutexLock lock(mutex_);
  if (leaving_) return failed_precondition("byteps was shut down in this process; call init() again");
  return Status::ok();
}

Status AsyncNode::declare(const std::string& name, DType dtype, uint64_t bytes) {
  BPS_RETURN_IF_ERROR(usable());
  return worker_->declare(name, dtype, bytes);
}

Result<protocol::Handle> AsyncNode::push_pull(const protocol::PushPull& request,
                                              const worker::TensorMemory& memory) {
  BPS_RETURN_IF_ERROR(usable());
  return worker_->push_pull(request, memory);
}

void AsyncNode::push_pull(const protocol::PushPull& request, const worker::TensorMemory& memory,
                          worker::OnDone on_done) {
  const Status status = usable();
  if (!status.is_ok()) return on_done(status);
  worker_->push_pull(request, memory, std::move(on_done));
}

void AsyncNode::refuse(const std::string& name, uint64_t step, const Status& why) {
  if (usable().is_ok()) worker_->refuse(name, step, why);
}

void AsyncNode::request_plan(const protocol::Plan& plan) {
  if (usable().is_ok()) worker_->request_plan(plan);
}

Result<bool> AsyncNode::poll(protocol::Handle handle) {
  if (!worker_) return failed_precondition("only a worker has handles");
  return worker_->handles().poll(handle);
}

Status AsyncNode::result(protocol::Handle handle) {
  if (!worker_) return failed_precondition("only a worker has handles");
  bool interrupted = false;
  return worker_->handles().wait(handle, 0, interrupted);
}

Status AsyncNode::self_check() {
  tell_of_callbacks();
  if (traffic_reporter_) traffic_reporter_->wake();
  return loop_watch_.check();
}

// Reports the waits of frameworks that use callbacks, because no thread of theirs waits.
void AsyncNode::tell_of_callbacks() {
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

Status AsyncNode::announce(protocol::Handle handle) {
  if (!worker_) return failed_precondition("only a worker has handles");
  return worker_->handles().announce(handle);
}

std::optional<protocol::Handle> AsyncNode::next_done() {
  return worker_ ? worker_->handles().next_done() : std::nullopt;
}

uint64_t AsyncNode::barrier(UniqueFunction<void(const Status&)> done) {
  Status status = usable();
  bool is_first = false;
  uint64_t number = 0;
  {
    MutexLock lock(mutex_);
    if (status.is_ok()) status = failure_;
    number = ++last_barrier_;
    is_first = status.is_ok() && barriers_.empty();
    if (status.is_ok()) barriers_.push_back({number, std::move(done)});
  }
  if (!status.is_ok()) done(status);
  if (is_first) send_barrier();
  return number;
}

std::set<uint64_t> AsyncNode::summed_tensors() const {
  return service_ ? service_->summed_tensors() : std::set<uint64_t>();
}

std::set<uint64_t> AsyncNode::known_tensors() const {
  if (scheduler_) return scheduler_->known_tensors();
  return standby_ ? standby_->known_tensors() : std::set<uint64_t>();
}

void AsyncNode::forget_barrier(uint64_t number) {
  MutexLock lock(mutex_);
  if (barriers_.empty() || barriers_.front().number == number) return;
  std::erase_if(barriers_, [number](const BarrierWait& each) { return each.number == number; });
}

// The scheduler accepts one barrier of a rank at a time.
void AsyncNode::send_barrier() {
  uint32_t sequence = 0;
  {
    MutexLock lock(mutex_);
    sequence = ++barrier_sequence_;
  }
  client_->send(protocol::Barrier{sequence});
}

Status AsyncNode::failure() const {
  if (scheduler_ && !client_) return scheduler_->ended().is_reached() ? scheduler_->outcome() : Status::ok();
  MutexLock lock(mutex_);
  return failure_;
}

}  // namespace byteps::node
