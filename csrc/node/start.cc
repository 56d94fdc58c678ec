// The start of a node: its loops, its scheduler and service, and the objects that need the roster.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/log.h"
#include "node/async_node.h"
#include "transport/inproc.h"

namespace byteps::node {
namespace {

// More loops do not increase the throughput.
constexpr int kMaxDefaultLoops = 4;

// A data connection between machines ends when one of them has been silent for this time. The
// scheduler's verdict takes one heartbeat interval more (protocol/scheduler_state); then the job's
// timeout has passed. A process that is stopped for a shorter time may fill its sockets, but is not
// lost.
TimeUs data_silence_us(const protocol::Roster& roster) {
  const auto timeout_us = static_cast<TimeUs>(roster.timeout_us);
  return timeout_us - timeout_us / protocol::kHeartbeatsPerTimeout;
}

// `speed_mbps`: speed of the network card; 0: unknown.
int loop_count(const NodeConfig& config, int usable_cores, double speed_mbps) {
  if (config.service_threads > 0) return config.service_threads;
  const int sharing = config.role == "worker" ? std::max(1, config.local_size) : 1;
  const int cores = std::clamp(usable_cores / sharing, 1, kMaxDefaultLoops);
  return speed_mbps > 0 ? std::min(cores, static_cast<int>(protocol::useful_shards(speed_mbps))) : cores;
}

// Time that a job with missing nodes goes on after it has refused a caller with another secret; 0:
// it ignores such callers. On a loopback address they are other users' jobs, or ranks of other jobs
// that look for their own scheduler, unless the user has named exactly this port.
TimeUs refusal_timeout_us(const NodeConfig& config, const std::vector<transport::Address>& hosts) {
  constexpr TimeUs kTimeoutUs = 10'000'000;
  const bool is_local = std::ranges::all_of(hosts, &transport::Address::is_loopback);
  const bool is_told = config.scheduler_fd < 0 && config.scheduler_ports.size() == 1 && !config.loopback_only;
  return !is_local || is_told ? kTimeoutUs : 0;
}

}  // namespace

Status AsyncNode::start(std::vector<transport::Address> scheduler, TimeUs start_deadline_us) {
  scheduler_hosts_ = std::move(scheduler);
  start_deadline_us_ = start_deadline_us;
  BPS_RETURN_IF_ERROR(start_loops());
  open_shared_pool();
  tcp_ = environment_->make_tcp(config_);
  control_tcp_ = environment_->make_control_tcp(config_);
  auto routes = Routes::open(config_, environment_->open_transports(config_, ip_, shared_pool_));
  if (!routes) return routes.status();
  routes_ = std::move(*routes);
  if (config_.role == "scheduler" || config_.host_scheduler) BPS_RETURN_IF_ERROR(start_scheduler());
  return config_.role == "scheduler" ? Status::ok() : start_service_and_join();
}

// Only where there is a GPU: connections that exist before the first tensor of one have to know it.
void AsyncNode::open_shared_pool() {
  const bool is_wanted = config_.shared_staging < 0 ? environment_->has_gpu() : config_.shared_staging > 0;
  if (!is_wanted || !config_.shm || config_.role != "worker") return;
  auto pool = transport::SharedPool::create(static_cast<size_t>(config_.pinned_bytes));
  if (pool)
    shared_pool_ = std::move(*pool);
  else
    BPS_LOG(kInfo) << pool.status().message();
}

Status AsyncNode::start_loops() {
  int count = 0;
  if (config_.role != "scheduler") {
    auto ip = environment_->own_address(config_, scheduler_hosts_);
    if (!ip) return ip.status();
    ip_ = *ip;
    count = loop_count(config_, environment_->usable_cores(), environment_->nic_mbps(config_, ip_));
  }
  for (int i = 0; i < count; ++i) {
    const std::string name = "bps-data-" + std::to_string(i);
    auto loop = environment_->make_loop(name, [this](const Status& why) { on_out_of_memory(why); });
    if (!loop) return loop.status();
    data_loops_.push_back(std::move(*loop));
    loop_watch_.add(*data_loops_.back(), name);
    outboxes_.push_back(std::make_unique<protocol::Outbox>(static_cast<uint64_t>(config_.credit_bytes)));
  }
  auto loop =
      environment_->make_loop("bps-control", [this](const Status& why) { on_control_out_of_memory(why); });
  if (!loop) return loop.status();
  control_loop_ = std::move(*loop);
  return Status::ok();
}

Status AsyncNode::start_scheduler() {
  auto placement = protocol::placement_policy_from(config_.placement);
  if (!placement) return placement.status();
  scheduler_ = std::make_unique<cluster::Scheduler>(
      *control_loop_, *tcp_,
      protocol::SchedulerOptions{.num_workers = static_cast<uint32_t>(config_.num_workers),
                                 .num_servers = static_cast<uint32_t>(config_.num_servers),
                                 .start_timeout_us = seconds_to_us(config_.start_timeout_s),
                                 .refusal_timeout_us = refusal_timeout_us(config_, scheduler_hosts_),
                                 .timeout_us = seconds_to_us(config_.timeout_s),
                                 .op_timeout_us = seconds_to_us(config_.op_timeout_s),
                                 .partition_bytes = static_cast<uint64_t>(config_.partition_bytes),
                                 .placement = *placement,
                                 .failover = config_.failover,
                                 .has_standby = config_.failover && config_.role == "scheduler",
                                 .probe_nics = config_.nic_probe && config_.measure_nics,
                                 .fit_shards = config_.service_threads == 0,
                                 .long_path_us = environment_->long_path_us(),
                                 .report_us = config_.nic_probe ? seconds_to_us(config_.traffic_report_s) : 0,
                                 .first_epoch = environment_->random_number()},
      config_.role == "scheduler");
  if (config_.scheduler_fd >= 0) {
    BPS_RETURN_IF_ERROR(scheduler_->listen(*control_tcp_, config_.scheduler_fd));
  } else {
    auto ip = environment_->scheduler_bind_address(config_, scheduler_hosts_);
    if (!ip) return ip.status();
    BPS_RETURN_IF_ERROR(scheduler_->listen(*control_tcp_, *ip, config_.scheduler_ports));
  }
  BPS_LOG(kInfo) << "scheduler listens on " << scheduler_->address().to_string();
  return Status::ok();
}

Status AsyncNode::start_service_and_join() {
  std::vector<summation::Service::ShardLoop> loops;
  const size_t num_shards = num_offered_shards();
  for (size_t shard = 0; shard < num_shards; ++shard) {
    const size_t i = loop_of_shard(shard);
    loops.push_back({data_loops_[i].get(), outboxes_[i].get()});
  }
  service_ = std::make_unique<summation::Service>(loops, metrics_, *this);
  auto endpoints = routes_->listen(*service_);
  if (!endpoints) return endpoints.status();
  BPS_LOG(kInfo) << "address " << ip_ << ", summation service at " << endpoints->back().addresses.front();

  cluster::ClientOptions options{.scheduler_host = config_.scheduler_host,
                                 .scheduler_addresses = scheduler_hosts_,
                                 .scheduler_ports = config_.scheduler_ports,
                                 .hosted_by_rank_0 = config_.scheduler_by_rank_0,
                                 .start_deadline_us = start_deadline_us_,
                                 .timeout_us = seconds_to_us(config_.timeout_s)};
  // The kernel or the launcher may have chosen the port.
  if (scheduler_) {
    const std::string& bound = scheduler_->address().ip;
    options.scheduler_host = bound == "0.0.0.0" ? "127.0.0.1" : bound == "::" ? "::1" : bound;
    options.scheduler_addresses = {{options.scheduler_host, 0}};
    options.scheduler_ports = {scheduler_->address().port};
  }
  client_ = std::make_unique<cluster::Client>(*control_loop_, *control_tcp_, std::move(options), *this);
  has_client_ = true;
  client_->join(make_join(std::move(*endpoints)));
  return Status::ok();
}

protocol::Join AsyncNode::make_join(std::vector<protocol::Endpoint> endpoints) const {
  const bool is_worker = config_.role == "worker";
  return {.self = {.role = is_worker ? protocol::Role::kWorker : protocol::Role::kServer,
                   .rank = is_worker ? config_.rank : -1,
                   .local_rank = config_.local_rank,
                   .local_size = config_.local_size,
                   .pid = environment_->process_id(),
                   .host = environment_->host_name(),
                   .machine = config_.machine.empty() ? environment_->machine_id() : config_.machine,
                   .nic_mbps = static_cast<uint32_t>(std::lround(environment_->nic_mbps(config_, ip_))),
                   .nic_is_told = config_.nic_mbps > 0,
                   .num_threads = static_cast<uint32_t>(data_loops_.size()),
                   .endpoints = std::move(endpoints)},
          .num_workers = static_cast<uint32_t>(config_.num_workers),
          .num_servers = static_cast<uint32_t>(config_.num_servers),
          .version = config_.version};
}

// If the speed of the card is unknown, the scheduler may measure it, and then knows how many
// connections it needs (protocol/nic_survey.h).
size_t AsyncNode::num_offered_shards() const {
  const bool is_known = environment_->nic_mbps(config_, ip_) > 0 || transport::Address{ip_, 0}.is_loopback();
  if (is_known || config_.service_threads > 0) return data_loops_.size();
  return std::max<size_t>(data_loops_.size(), protocol::kShardsOfLongPath);
}

void AsyncNode::on_probe_setup(const protocol::ProbeSetup& setup) {
  if (nic_probe_) return;
  protocol::ProbeReady ready;
  if (!transport::Address{ip_, 0}.is_loopback()) {  // a loopback address has no card
    std::vector<transport::EventLoop*> loops;
    for (const auto& loop : data_loops_) loops.push_back(loop.get());
    nic_probe_ = std::make_unique<NicProbe>(*tcp_, *control_loop_, loops, setup.epoch);
    auto addresses = nic_probe_->listen(ip_);
    if (addresses) ready.addresses = std::move(*addresses);
    if (!addresses) BPS_LOG(kWarning) << addresses.status().message();
  }
  client_->send(std::move(ready));
}

void AsyncNode::on_probe_start(const protocol::ProbeStart& start) {
  if (!nic_probe_) return;
  nic_probe_->measure(start, [this](protocol::ProbeDone done) { client_->send(done); });
}

void AsyncNode::on_started(const protocol::Roster& roster) {
  {
    MutexLock lock(mutex_);
    if (leaving_ || !failure_.is_ok()) return;  // its roles are leaving already, those that there are
  }
  roster_ = roster;
  self_ = roster.nodes[roster.self];
  name_process(self_.rank);
  if (nic_probe_) nic_probe_->stop();
  nodes_.assign(roster.nodes.begin(), roster.nodes.end());
  tree_.emplace(roster);
  set_pace(roster.shares_ppb);
  if (config_.role == "worker") build_worker();
  start_service();
  if (roster.report_us > 0) start_traffic_reporter();
  BPS_LOG(kInfo) << self_.describe() << ": job of " << roster.num_workers << " workers and " << num_servers()
                 << " servers has started";
  if (nic_probe_ && roster.self == 0) BPS_LOG(kInfo) << "network cards: " << describe_cards(roster.nodes);
  if (roster.takes_turns && roster.self == 0)
    BPS_LOG(kInfo) << "the path is long or loses packets: contributions and answers take turns";
  if (!roster.has_standby) return started_.reach();
  if (roster.self == 0) offer_standby();  // the scheduler tells all, which start then
}

void AsyncNode::offer_standby() {
  std::vector<transport::Address> scheduler;
  for (const int port : config_.scheduler_ports) {
    for (const transport::Address& host : scheduler_hosts_)
      scheduler.push_back({host.ip, static_cast<uint16_t>(port)});
  }
  auto standby =
      std::make_unique<cluster::Standby>(*control_loop_, *control_tcp_, *tcp_, std::move(scheduler));
  const Result<transport::Address> address = standby->listen(ip_);
  if (address) standby_ = std::move(standby);
  if (!address) BPS_LOG(kWarning) << address.status().with_context("no standby of the scheduler").message();
  client_->send(protocol::Standby{address ? address->to_string() : ""});
}

void AsyncNode::start_service() {
  summation::Position position{.epoch = roster_.epoch,
                               .num_workers = roster_.num_workers,
                               .describe_rank = {},
                               .machines = tree_->machines(),
                               .ranks = {},
                               .bytes_per_s = rates_to_ranks(),
                               .parent_link = parent_link_.get(),
                               .num_final_roots = tree_->num_final_roots(),
                               .limits = {.stall_warning_us = seconds_to_us(config_.stall_warning_s),
                                          .op_timeout_us = seconds_to_us(config_.op_timeout_s)},
                               .silence_us = data_silence_us(roster_),
                               .may_be_lost = roster_.failover && config_.role == "server",
                               .mark_us = static_cast<TimeUs>(roster_.timeout_us) / 2};
  for (uint32_t rank = 0; rank < roster_.num_workers; ++rank) {
    position.describe_rank.push_back(roster_.nodes[rank].describe());
    position.takes_turns.push_back(tree_->take_turns(roster_.self, rank));
  }
  if (config_.role == "worker") {
    const uint32_t machine = tree_->machine_of(static_cast<uint32_t>(self_.rank));
    if (tree_->ranks_of(machine).size() > 1) position.ranks = tree_->children_on(machine);
  }
  service_->start(position);
}

void AsyncNode::build_worker() {
  const auto rank = static_cast<uint32_t>(self_.rank);
  device_staging_ = std::make_unique<worker::DeviceStaging>(
      [this] {
        return environment_->make_loop("bps-device", [this](const Status& why) { on_out_of_memory(why); });
      },
      static_cast<uint64_t>(config_.pinned_bytes), shared_pool_ ? shared_pool_->staging() : MutableBytes(),
      metrics_);
  worker_ = std::make_unique<worker::Worker>(
      worker::WorkerOptions{.rank = rank,
                            .credit_bytes = static_cast<uint64_t>(config_.credit_bytes),
                            .autotune = config_.autotune,
                            .names = environment_->name_limits()},
      *tree_, protocol::PartitionRule(*tree_, roster_.partition_bytes), metrics_, *control_loop_,
      environment_->make_completions(), *device_staging_, *this);
  if (tree_->ranks_of(tree_->machine_of(rank)).size() > 1) {
    parent_link_ = std::make_unique<NodeParentLink>(
        rank, tree_->num_rank_indices(),
        [this](uint32_t service, const Status& why) { on_link_lost(service, why); });
  }
  for (uint32_t service = 0; service < nodes_.size(); ++service) add_links(service);
  if (!roster_.failover) return;
  paced_links()->follow(protocol::Successors(*tree_));
  worker_->parameter_store_links().follow(protocol::Successors(*tree_), /*states_losses=*/true);
}

std::vector<AsyncNode::LinksOfLevel> AsyncNode::all_links() {
  using enum protocol::Level;
  std::vector<LinksOfLevel> all = {{parent_link_ ? kMachine : kCluster, worker_->links(), *worker_},
                                   {kRanks, worker_->parameter_store_links(), *worker_}};
  if (parent_link_) all.push_back({kCluster, parent_link_->links(), *parent_link_});
  return all;
}

void AsyncNode::add_links(uint32_t service) {
  for (const LinksOfLevel& of_level : all_links()) {
    std::vector<worker::ShardLink> of_service;
    const bool connects = tree_->connects(roster_.self, service, of_level.level);
    for (size_t shard = 0; connects && shard < nodes_[service].num_shards(); ++shard)
      of_service.push_back(make_link(service, shard, of_level));
    of_level.links.add_service(std::move(of_service));
  }
}

// The ranks of this machine send to it when the scheduler has placed a partition there, which they
// hear later.
void AsyncNode::on_node_added(const protocol::NodeInfo& server) {
  if (self_.local_rank <= 0) BPS_LOG(kWarning) << server.describe() << " has joined the job";
  add(metrics_.servers_added, 1);
  nodes_.push_back(server);
  tree_->add(server);
  if (!worker_) return;
  add_links(static_cast<uint32_t>(nodes_.size() - 1));
  if (parent_link_) {
    parent_link_->links().add_successor(server);
    parent_link_->on_service_added();
  }
  worker_->add_server(server);
}

worker::ShardLink AsyncNode::make_link(uint32_t service, size_t shard, const LinksOfLevel& of_level) {
  const size_t place = loop_of_shard(shard);
  transport::EventLoop& loop = *data_loops_[place];
  const protocol::NodeInfo& node = nodes_[service];
  const bool is_of_cluster = of_level.level == protocol::Level::kCluster;
  worker::LinkOptions options{.rank = roster_.self,
                              .epoch = roster_.epoch,
                              .level = of_level.level,
                              .service = service,
                              .service_text = node.describe(),
                              .bytes_per_s = is_of_cluster ? pace_->rate(roster_.self, service, *tree_) : 0,
                              .silence_us = data_silence_us(roster_)};
  if (is_of_cluster && tree_->take_turns(roster_.self, service))
    options.takes_turns = {.node = service, .shard = static_cast<uint32_t>(shard)};
  if (roster_.failover && of_level.level != protocol::Level::kMachine) {
    options.held = &held_results_;
    options.may_be_lost = service >= roster_.num_workers;
  }
  worker::Link::Connector connector;
  if (service == roster_.self) {
    // Runs on the shard's own loop, so that memory that the shard leases and the link frees is used
    // on one thread only.
    connector = [this, &loop, shard](transport::ConnectCallback done) {
      auto [link_end, shard_end] = transport::make_inproc_pair(loop);
      service_->shard(shard).adopt(std::move(shard_end));
      done(std::move(link_end));
    };
  } else {
    connector = [this, &loop, &node, shard](transport::ConnectCallback done) {
      routes_->connect(loop, self_, node, shard, std::move(done));
    };
  }
  return {&loop, std::make_unique<worker::Link>(std::move(options), std::move(connector), *outboxes_[place],
                                                metrics_, of_level.events)};
}

}  // namespace byteps::node
