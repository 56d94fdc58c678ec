// The part of a simulated process that builds its roles from the roster.
#include <utility>

#include "protocol/tree.h"
#include "sim/sim_node.h"

namespace byteps::sim {

using protocol::Level;

void SimNode::on_started() {
  const protocol::Roster& roster = membership_->roster();
  const protocol::Tree tree(roster.nodes, roster.num_workers);
  if (probe_) probe_->stop();
  if (is_worker()) build_worker(tree);
  start_service(tree);
  world_.note(process_, 3, [&] { return "has started as " + self().describe(); });
  if (is_worker()) user_->begin(*this);
}

// As in node/start.
TimeUs SimNode::data_silence_us() const {
  const auto timeout_us = static_cast<TimeUs>(membership_->roster().timeout_us);
  return timeout_us - timeout_us / protocol::kHeartbeatsPerTimeout;
}

void SimNode::start_service(const protocol::Tree& tree) {
  const protocol::Roster& roster = membership_->roster();
  Position position{.epoch = roster.epoch,
                    .describe_rank = {},
                    .machines = tree.machines(),
                    .ranks = {},
                    .parent_link = parent_link_.get(),
                    .num_final_roots = tree.num_final_roots(),
                    .silence_us = data_silence_us()};
  for (uint32_t i = 0; i < roster.num_workers; ++i)
    position.describe_rank.push_back(roster.nodes[i].describe());
  if (parent_link_) position.ranks = tree.children_on(tree.machine_of(rank()));
  for (const auto& shard : shards_) shard->start(position);
}

void SimNode::build_worker(const protocol::Tree& tree) {
  const protocol::PartitionRule rule(tree.reducer_hosts(), membership_->roster().partition_bytes);
  worker_ = std::make_unique<SimWorker>(world_, process_, rank(), tree, rule, *this);
  const bool has_machine_level = tree.ranks_of(tree.machine_of(rank())).size() > 1;
  build_links(tree, has_machine_level ? Level::kMachine : Level::kCluster, worker_->links(), *worker_);
  build_links(tree, Level::kRanks, worker_->parameter_store_links(), *worker_);
  if (!has_machine_level) return;
  parent_link_ = std::make_unique<SimUplink>(
      world_, process_, rank(), [this](uint32_t service, const Status& why) { on_link_lost(service, why); });
  build_links(tree, Level::kCluster, parent_link_->links(), *parent_link_);
}

void SimNode::build_links(const protocol::Tree& tree, Level level, SimLanes& links, LinkEvents& events) {
  const protocol::Roster& roster = membership_->roster();
  for (uint32_t service = 0; service < tree.num_nodes(); ++service) {
    std::vector<std::unique_ptr<SimLink>> of_service;
    const bool connects = tree.connects(roster.self, service, level);
    for (size_t shard = 0; connects && shard < roster.nodes[service].addresses.size(); ++shard) {
      of_service.push_back(make_link(service, shard, level, events));
    }
    links.add_service(std::move(of_service));
  }
}

std::unique_ptr<SimLink> SimNode::make_link(uint32_t service, size_t shard, Level level, LinkEvents& events) {
  const protocol::Roster& roster = membership_->roster();
  LinkOptions options{.rank = rank(),
                      .epoch = roster.epoch,
                      .level = level,
                      .service = service,
                      .service_text = roster.nodes[service].describe(),
                      .silence_us = data_silence_us()};
  return std::make_unique<SimLink>(world_, process_, std::move(options), make_connector(service, shard),
                                   outbox_, events);
}

SimLink::Connector SimNode::make_connector(uint32_t service, size_t shard) {
  const protocol::Roster& roster = membership_->roster();
  if (service == roster.self) {
    return [this, shard](ConnectCallback done) {
      const auto [link_end, shard_end] = world_.network.make_local_pair(process_);
      shards_[shard]->adopt(*shard_end);
      done(link_end);
    };
  }
  const bool together = roster.nodes[service].machine == self().machine;
  const Carriage carriage = together && world_.scenario.shares_memory ? Carriage::kShare : Carriage::kCopy;
  return [this, carriage, address = roster.nodes[service].addresses[shard]](ConnectCallback done) {
    world_.network.connect(process_, address, world_.clock.now() + world_.scenario.timeout_us,
                           std::move(done), carriage);
  };
}

}  // namespace byteps::sim
