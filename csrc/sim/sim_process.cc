#include "sim/sim_process.h"

#include <deque>
#include <utility>

#include "transport/resume/resuming_transport.h"

namespace byteps::sim {
namespace {

// Callbacks run on the loop of the process's program.
class LoopCompletions final : public worker::Completions {
 public:
  LoopCompletions(VirtualLoop& loop, const bool& was_killed) : loop_(loop), was_killed_(was_killed) {}
  ~LoopCompletions() override { LoopCompletions::close(); }

  void post(worker::OnDone on_done, Status status) override {
    if (closed_) return on_done(status);
    posted_.emplace_back(std::move(on_done), std::move(status));
    loop_.post([this, alive = std::weak_ptr(alive_)] {
      if (!alive.expired()) run_one();
    });
  }
  void close() override {
    closed_ = true;
    while (!posted_.empty() && !was_killed_) run_one();
    posted_.clear();
  }

 private:
  void run_one() {
    if (posted_.empty()) return;
    auto [on_done, status] = std::move(posted_.front());
    posted_.pop_front();
    on_done(status);
  }

  VirtualLoop& loop_;
  const bool& was_killed_;
  bool closed_ = false;
  std::deque<std::pair<worker::OnDone, Status>> posted_;
  const std::shared_ptr<const int> alive_ = std::make_shared<const int>(0);
};

}  // namespace

class SimProcess::Environment final : public node::Environment {
 public:
  explicit Environment(SimProcess& process) : process_(process) {}

  Result<std::unique_ptr<transport::EventLoop>> make_loop(const std::string& name,
                                                          UniqueFunction<void(const Status&)>) override {
    auto loop = process_.world_.time.make_loop(process_.name_ + " " + name);
    loop->preempt(process_.facts_.preemption_us);
    process_.loops_.push_back(loop.get());
    loop->pause(process_.is_paused_);
    loop->on_destroyed([&loops = process_.loops_, its = loop.get()] { std::erase(loops, its); });
    return std::unique_ptr<transport::EventLoop>(std::move(loop));
  }
  node::Transports open_transports(const NodeConfig& config, const std::string&,
                                   std::shared_ptr<transport::SharedPool>) override {
    const HostFacts& facts = process_.facts_;
    const SimTransportOptions options{.ip = facts.ip,
                                      .credentials = {config.secret, config.job_id, config.loopback_only}};
    SimTransportOptions lending = options;
    lending.arena_bytes = facts.arena_bytes;
    SimNetwork& network = process_.world_.network;
    node::Transports transports;
    if (config.shm && config.role == "worker") {
      transports.push_back({.name = "shm",
                            .title = "shared memory",
                            .reach = node::Reach::kWorkersOfOneMachine,
                            .listen_ip = facts.ip,
                            .transport = make_sim_transport(network, lending)});
    }
    transports.push_back({.name = "tcp",
                          .title = "TCP",
                          .listen_ip = facts.ip,
                          .transport = make_resuming(options, node::resume_limit_us(config))});
    return transports;
  }
  std::unique_ptr<transport::Transport> make_tcp(const NodeConfig& config) override {
    return make_sim_transport(
        process_.world_.network,
        {.ip = process_.facts_.ip, .credentials = {config.secret, config.job_id, config.loopback_only}});
  }
  std::unique_ptr<transport::Transport> make_control_tcp(const NodeConfig& config) override {
    return make_resuming(
        {.ip = process_.facts_.ip, .credentials = {config.secret, config.job_id, config.loopback_only}},
        node::resume_limit_us(config));
  }
  std::unique_ptr<worker::Completions> make_completions() override {
    return std::make_unique<LoopCompletions>(*process_.program_, process_.was_killed_);
  }
  std::string host_name() override { return process_.facts_.host; }
  std::string machine_id() override { return process_.facts_.machine; }
  int usable_cores() override { return process_.facts_.usable_cores; }
  TimeUs long_path_us() override { return process_.facts_.long_path_us; }
  Result<std::string> own_address(const NodeConfig&, const std::vector<transport::Address>&) override {
    return process_.facts_.ip;
  }
  Result<std::string> scheduler_bind_address(const NodeConfig&,
                                             const std::vector<transport::Address>&) override {
    return process_.facts_.ip;
  }
  protocol::NameLimits name_limits() override { return process_.facts_.names; }
  double nic_mbps(const NodeConfig& config, const std::string&) override {
    return config.nic_mbps > 0 ? config.nic_mbps : process_.facts_.nic_mbps;
  }
  uint64_t process_id() override { return process_.facts_.process_id; }
  uint32_t random_number() override { return static_cast<uint32_t>(process_.world_.random.next()); }
  void on_named(const std::string&) override {}

 private:
  std::unique_ptr<transport::Transport> make_resuming(SimTransportOptions options, TimeUs limit_us) {
    options.is_resumed = true;
    return transport::make_resuming_transport(make_sim_transport(process_.world_.network, std::move(options)),
                                              {.nonce = process_.facts_.process_id, .limit_us = limit_us});
  }

  SimProcess& process_;
};

SimProcess::SimProcess(World& world, std::string name, HostFacts facts)
    : world_(world),
      name_(std::move(name)),
      facts_(std::move(facts)),
      program_(world.time.make_loop(name_ + " program")) {
  program_->preempt(facts_.preemption_us);
}

// Nothing may run any more, because it would use the program, which may be gone.
SimProcess::~SimProcess() { kill(); }

void SimProcess::start(const NodeConfig& config, const std::string& scheduler_ip,
                       UniqueFunction<void(const Status&)> on_started) {
  node_ = std::make_unique<node::AsyncNode>(config, std::make_unique<Environment>(*this));
  is_gone_ = is_leaving_ = has_left_ = job_started_ = false;
  const auto tell =
      [this, on_started = std::make_shared<UniqueFunction<void(const Status&)>>(std::move(on_started))](
          const Status& status) { program_->post([on_started, status] { (*on_started)(status); }); };
  node_->started().when_reached([this, tell] {
    const Status failure = node_->failure();
    job_started_ = failure.is_ok();
    if (job_started_) rank_ = node_->rank();
    tell(failure);
  });
  const TimeUs deadline_us = world_.time.now_us() + seconds_to_us(config.start_timeout_s);
  const Status status = node_->start({{scheduler_ip, 0}}, deadline_us);
  if (!status.is_ok() || config.role == "scheduler") tell(status);
}

void SimProcess::start_member(const NodeConfig& config, const transport::Address& coordinator,
                              UniqueFunction<void(const Status&)> on_started) {
  member_ = std::make_unique<elastic::AsyncElasticNode>(
      config, [this] { return std::make_unique<Environment>(*this); });
  is_gone_ = is_leaving_ = has_left_ = job_started_ = false;
  const auto tell = [this, on_started =
                               std::make_shared<UniqueFunction<void(const Status&)>>(std::move(on_started))] {
    const Status failure = member_->failure();
    job_started_ = failure.is_ok();
    program_->post([on_started, failure] { (*on_started)(failure); });
  };
  member_->started().when_reached(tell);
  const TimeUs deadline_us = world_.time.now_us() + seconds_to_us(config.start_timeout_s);
  const Status status = member_->start({coordinator}, deadline_us);
  if (!status.is_ok()) world_.report(name_, "cannot start: " + status.to_string());
}

void SimProcess::leave(const std::string& cause, const std::string& after) {
  is_leaving_ = true;
  if (member_) return leave_as_member(cause, false);
  node_->left().when_reached([this] {
    has_left_ = true;
    ++world_.num_changes;
  });
  node_->leave(cause, after);
}

void SimProcess::leave_others() {
  is_leaving_ = true;
  leave_as_member("", true);
}

void SimProcess::leave_as_member(const std::string& cause, bool others_stay) {
  member_->left().when_reached([this] {
    has_left_ = true;
    ++world_.num_changes;
  });
  member_->leave(cause, others_stay);
}

void SimProcess::reap() {
  if (has_left_ && member_) {
    failure_ = member_->failure();
    member_.reset();
    is_gone_ = true;
    world_.note(name_, 1, [] { return "has ended"; });
  }
  if (!has_left_ || !node_) return;
  node_->stop();
  if (on_stopped_) on_stopped_();
  failure_ = node_->failure();
  summed_tensors_ = node_->summed_tensors();
  known_tensors_ = node_->known_tensors();
  node_.reset();
  is_gone_ = true;
  world_.note(name_, 1, [] { return "has ended"; });
}

void SimProcess::pause(bool paused) {
  ++world_.num_changes;
  is_paused_ = paused;
  program_->pause(paused);
  for (VirtualLoop* const loop : loops_) loop->pause(paused);
}

void SimProcess::kill() {
  ++world_.num_changes;
  was_killed_ = is_gone_ = true;
  program_->kill();
  for (VirtualLoop* const loop : loops_) loop->kill();
  node_.reset();
  member_.reset();
  loops_.clear();
}

}  // namespace byteps::sim
