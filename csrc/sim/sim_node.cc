#include "sim/sim_node.h"

#include <utility>

#include "sim/sim_channel.h"

namespace byteps::sim {
namespace {

// As in node/: each step of an orderly end waits so long for peers, and a node so long for the scheduler's report.
constexpr TimeUs kLeaveUs = 200'000;
constexpr TimeUs kLeaveFailedUs = 200'000;
constexpr TimeUs kReportUs = 400'000;
constexpr TimeUs kConnectAgainUs = 5'000;

}  // namespace

using protocol::MembershipActions;

SimNode::SimNode(World& world, VirtualProcess& process, size_t index, SimUser* user)
    : world_(world), process_(process), index_(index), user_(user), outbox_(world.scenario.credit_bytes) {}

// ---- start --------------------------------------------------------------------------------------------------

void SimNode::start() {
  const Scenario& scenario = world_.scenario;
  const bool hosts_scheduler = scenario.scheduler_in_rank_0 && index_ == 0;
  if (hosts_scheduler) scheduler_ = std::make_unique<SimScheduler>(world_, process_, nullptr);
  for (uint32_t i = 0; i < scenario.shards[index_]; ++i) {
    SimShard& shard = *shards_.emplace_back(std::make_unique<SimShard>(world_, process_, outbox_, *this));
    world_.network.listen(process_, address_of_shard(i),
                          [&shard](Endpoint& endpoint) { shard.adopt(endpoint); });
  }
  connect_deadline_us_ = world_.clock.now() + scenario.start_timeout_us;
  membership_ =
      std::make_unique<protocol::Membership>("scheduler at 10.0.0.1:9000", scenario.scheduler_in_rank_0,
                                             connect_deadline_us_ + kReportUs, scenario.timeout_us);
  membership_->on_begin(world_.clock.now());
  schedule_tick();
  connect();
}

void SimNode::connect() {
  world_.network.connect(process_, SimScheduler::kAddress, connect_deadline_us_,
                         [this](Result<Endpoint*> endpoint) { on_connected(std::move(endpoint)); });
}

void SimNode::connect_again() {
  if (channel_ != nullptr) std::exchange(channel_, nullptr)->close();
  process_.at(world_.clock.now() + kConnectAgainUs, [this] { connect(); });
}

std::string SimNode::address_of_shard(size_t shard) const {
  return "10.0.0." + std::to_string(index_ + 2) + ":" + std::to_string(9000 + shard);
}

protocol::Join SimNode::make_join() const {
  const Scenario& scenario = world_.scenario;
  protocol::NodeInfo info{.role = is_worker() ? protocol::Role::kWorker : protocol::Role::kServer,
                          .rank = is_worker() && scenario.ranks_are_given ? static_cast<int32_t>(index_) : -1,
                          .pid = 100 + index_,
                          .host = "host" + std::to_string(scenario.machines[index_]),
                          .machine = "machine" + std::to_string(scenario.machines[index_]),
                          .addresses = {},
                          .local_addresses = {},
                          .rdma_addresses = {}};
  for (size_t i = 0; i < shards_.size(); ++i) info.addresses.push_back(address_of_shard(i));
  const bool knows_size = is_worker() || scenario.sizes_are_given;
  return {.self = std::move(info),
          .num_workers = knows_size ? scenario.num_workers : 0,
          .num_servers = knows_size ? scenario.num_servers : 0,
          .version = {}};
}

void SimNode::on_connected(Result<Endpoint*> endpoint) {
  MembershipActions actions;
  if (leaving_ || !membership_->failure().is_ok()) {
    if (endpoint) (*endpoint)->close();
    return;
  }
  if (endpoint) {
    channel_ = *endpoint;
    channel_->start(this);
    membership_->on_connected(make_join(), world_.clock.now(), actions);
  } else {
    membership_->on_scheduler_closed(endpoint.status(), actions);
  }
  apply(actions);
}

// ---- what the scheduler says --------------------------------------------------------------------------------

void SimNode::on_frame(Endpoint&, const Frame& frame) {
  const Result<protocol::Control> message = read_control(frame);
  if (!message) return world_.report(process_, message.status().to_string());
  MembershipActions actions;
  const Status status = membership_->on_message(*message, world_.clock.now(), actions);
  if (!status.is_ok()) return world_.report(process_, status.to_string());
  apply(actions);
  if (membership_->failure().is_ok()) on_probe_message(*message);
  const Status answered = membership_->failure().is_ok() ? on_answer(*message) : Status::ok();
  if (!answered.is_ok()) world_.report(process_, answered.to_string());
}

void SimNode::on_probe_message(const protocol::Control& message) {
  if (const auto* setup = std::get_if<protocol::ProbeSetup>(&message)) {
    const std::string address = address_of_shard(shards_.size());
    probe_ = std::make_unique<SimProbe>(world_, process_, setup->epoch);
    probe_->listen(address);
    send(protocol::ProbeReady{{address}});
  }
  if (const auto* start = std::get_if<protocol::ProbeStart>(&message))
    probe_->measure(*start, [this](protocol::ProbeDone done) { send(done); });
}

Status SimNode::on_answer(const protocol::Control& message) {
  if (const auto* placed = std::get_if<protocol::Placed>(&message)) {
    return worker_ ? worker_->on_placed(*placed) : Status::ok();
  }
  if (const auto* refused = std::get_if<protocol::Refused>(&message)) {
    if (refused->tensor != 0) {
      for (const auto& shard : shards_)
        shard->fail_tensor(refused->tensor, refused->round, Status(refused->code, refused->text));
    }
    if (worker_) worker_->on_refused(*refused);
  }
  if (const auto* stalled = std::get_if<protocol::Stalled>(&message)) {
    world_.note(process_, 1, [&] { return stalled->describe(); });
    if (stalled->name.empty()) world_.report(process_, "nobody knows the name of a tensor that is in use");
  }
  if (const auto* leaving = std::get_if<protocol::Leaving>(&message)) {
    if (leaving->node == membership_->roster().self) {
      on_verdict();
    } else {
      send(protocol::Leaving{leaving->node, {}});
    }
  }
  if (const auto* done = std::get_if<protocol::BarrierDone>(&message)) {
    if (barriers_.erase(done->sequence) == 0) return data_loss("answer to a barrier that nobody waits for");
    user_->on_barrier_done(done->sequence, Status(done->code, done->text));
  }
  return Status::ok();
}

void SimNode::on_closed(Endpoint&, const Status& why) {
  channel_ = nullptr;
  if (leaving_) return end_scheduler();
  MembershipActions actions;
  membership_->on_scheduler_closed(why, actions);
  apply(actions);
}

void SimNode::send(const protocol::Control& message) {
  if (channel_ != nullptr) send_control(world_, *channel_, message);
}

void SimNode::suspect(uint32_t node, const Status& why) {
  if (world_.sabotage == Sabotage::kKeepsSuspicions) return;
  world_.note(process_, 4, [&] { return "suspects node " + std::to_string(node) + ": " + why.message(); });
  const bool goes_on = membership_->failure().is_ok() && !finished_;
  if (goes_on) suspects_ += membership_->roster().nodes[node].describe() + "; ";
  MembershipActions actions;
  membership_->on_suspect(node, why, world_.clock.now(), actions);
  apply(actions);
}

void SimNode::apply(const MembershipActions& actions) {
  for (const protocol::MembershipAction& action : actions) {
    if (const auto* message = std::get_if<protocol::SendControl>(&action)) send(message->message);
    if (std::holds_alternative<protocol::JobStarted>(action)) on_started();
    if (const auto* failed = std::get_if<protocol::JobFailed>(&action)) on_failed(failed->status);
    if (const auto* left = std::get_if<protocol::NodeLeft>(&action)) on_node_left(left->node);
    if (const auto* finished = std::get_if<protocol::JobFinished>(&action)) on_finished(finished->text);
    if (std::holds_alternative<protocol::TryAgain>(action)) connect_again();
  }
  if (!leaving_) schedule_tick();
}

void SimNode::schedule_tick() {
  const TimeUs next_us = membership_->next_tick_us();
  if (next_us >= tick_us_ || world_.sabotage == Sabotage::kWithoutTicks) return;
  tick_us_ = next_us;
  process_.at(next_us, [this, next_us] {
    if (leaving_ || tick_us_ != next_us) return;  // an earlier one has replaced this one
    tick_us_ = kNever;
    MembershipActions actions;
    if (membership_->next_tick_us() <= world_.clock.now()) membership_->on_tick(world_.clock.now(), actions);
    apply(actions);
  });
}

void SimNode::on_failed(const Status& why) {
  world_.note(process_, 5, [&] { return "the job has failed: " + why.to_string(); });
  if (probe_) probe_->stop();
  for (const auto& shard : shards_) shard->fail(why);  // first: they forget lent memory
  if (parent_link_) parent_link_->links().fail(why);
  if (worker_) worker_->fail(why);
  for (const uint32_t sequence : std::exchange(barriers_, {})) user_->on_barrier_done(sequence, why);
  if (is_worker() && !worker_) user_->on_start_failed(why);
  process_.soon([this] { on_verdict(); });
  if (!worker_) process_.soon([this] { shutdown(); });
}

void SimNode::on_node_left(uint32_t node) {
  if (node < membership_->roster().num_workers) {
    for (const auto& shard : shards_) shard->rank_left(node);
  }
  if (parent_link_) parent_link_->links().peer_left(node);
  if (worker_) worker_->peer_left(node);
}

void SimNode::on_finished(const std::string& text) {
  world_.note(process_, 6, [&] { return "the job has finished: " + text; });
  finished_ = true;
  process_.soon([this] { on_verdict(); });
  if (is_worker()) return;
  for (const auto& shard : shards_) shard->fail(unavailable(text));
  process_.soon([this] { shutdown(); });
}

// ---- what the program calls ---------------------------------------------------------------------------------

Status SimNode::declare(const std::string& name, DType dtype, uint64_t bytes) {
  return worker_->declare(name, dtype, bytes);
}

Status SimNode::push_pull(protocol::Handle handle, const protocol::PushPull& request, const View& input,
                          const View& output) {
  return worker_->push_pull(handle, request, input, output);
}

Status SimNode::barrier(uint32_t sequence) {
  BPS_RETURN_IF_ERROR(membership_->failure());
  barriers_.insert(sequence);
  send(protocol::Barrier{sequence});
  return Status::ok();
}

// ---- end ----------------------------------------------------------------------------------------------------

// As in node/node.
GracePeriod SimNode::grace_period() const {
  const bool is_well = membership_->failure().is_ok();
  return {world_.clock.now() + kLeaveUs, is_well ? world_.scenario.timeout_us : 0};
}

void SimNode::shutdown() {
  if (std::exchange(shutting_down_, true)) return;
  world_.note(process_, 7, [] { return "leaves"; });
  if (!worker_) return leave_service();
  if (index_ % 2 == 1) return tell_why_it_leaves();
  leave_worker();
}

// As Node's.
void SimNode::tell_why_it_leaves() {
  if (!membership_->failure().is_ok() || finished_) return leave_worker();
  send(protocol::Leaving{membership_->roster().self, "an exception"});
  awaits_verdict_ = true;
  process_.at(world_.clock.now() + kLeaveFailedUs, [this] { on_verdict(); });
}

// As Node::fail_job.
void SimNode::fail_job(const std::string& cause) {
  if (std::exchange(shutting_down_, true)) return;
  world_.note(process_, 9, [&] { return "ends by " + cause; });
  MembershipActions actions;
  membership_->leave(cause, actions);
  apply(actions);
  if (!membership_->failure().is_ok() || finished_) return leave_worker();
  awaits_verdict_ = true;
  process_.at(world_.clock.now() + kLeaveFailedUs, [this] { on_verdict(); });
}

void SimNode::on_verdict() {
  if (std::exchange(awaits_verdict_, false)) leave_worker();
}

void SimNode::leave_worker() {
  worker_->leave(grace_period(), [this] { leave_uplink(); });
}

void SimNode::leave_uplink() {
  if (!parent_link_) return leave_service();
  parent_link_->links().leave(unavailable(self().describe() + " has left the job"), grace_period(),
                              [this] { leave_service(); });
}

void SimNode::leave_service() {
  struct Pending {
    size_t shards;
  };
  const auto pending = std::make_shared<Pending>(Pending{shards_.size()});
  for (const auto& shard : shards_) {
    shard->leave(grace_period(), [this, pending] {
      if (--pending->shards == 0) leave_scheduler();
    });
  }
}

void SimNode::leave_scheduler() {
  if (world_.scenario.fault.kind == FaultKind::kNone) {
    for (const auto& shard : shards_) shard->check_drained();
  }
  leaving_ = true;
  MembershipActions actions;
  membership_->leave("", actions);
  apply(actions);
  if (channel_ == nullptr) return end_scheduler();
  channel_->close_when_sent(world_.clock.now() + kLeaveUs);
}

void SimNode::end_scheduler() {
  if (!scheduler_) return exit();
  const std::string name = job_started() ? self().describe() : "rank 0";
  scheduler_->shutdown(name + ", which ran the scheduler, has left the job", world_.clock.now() + kLeaveUs,
                       [this] { exit(); });
}

void SimNode::exit() {
  world_.note(process_, 8, [] { return "exits"; });
  process_.soon([this] {
    process_.end();
    world_.network.on_process_gone(process_);
  });
}

std::string SimNode::known_name() const {
  if (job_started()) return (is_worker() ? "rank " : "server ") + std::to_string(self().rank);
  // Numbers are missed only once the scheduler has seen that ranks come with theirs.
  const bool numbered = is_worker() && world_.scenario.ranks_are_given && world_.scenario.num_workers > 1;
  if (numbered) return "rank " + std::to_string(index_);
  return "";
}

}  // namespace byteps::sim
