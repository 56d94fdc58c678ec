#include "sim/scale_job.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"
#include "protocol/pacing.h"
#include "protocol/push_pull_table.h"
#include "protocol/tensor_directory.h"
#include "protocol/tree.h"
#include "sim/scale_bound.h"
#include "sim/scale_events.h"
#include "sim/scale_wire.h"

namespace byteps::sim {
namespace {

using protocol::Outbox;

constexpr DType kDType = DType::kUInt8;  // of the requests: any number of bytes will do

constexpr uint64_t kMostPartitions = 500'000;
constexpr uint64_t kMostPlacements = 300'000'000;  // partitions times reducer hosts

// A partition size that is larger than a job's, if the job's partitions would be too many; else 0.
uint64_t larger_partition_bytes(const ScaleOptions& options, const protocol::Tree& tree) {
  const protocol::PartitionRule rule(tree, options.partition_bytes);
  uint64_t count = 0;
  for (const Gradient& gradient : options.model.gradients) count += rule.partition(gradient.bytes).count();
  const uint64_t most = std::min(kMostPartitions, kMostPlacements / tree.num_reducer_hosts());
  return count <= most ? 0 : gradient_bytes(options.model) / most + 1;
}

double slowest_machine_mbps(const protocol::Tree& tree) {
  const std::vector<protocol::ReducerHost> hosts = tree.reducer_hosts();
  return std::min_element(hosts.begin(), hosts.begin() + tree.num_machines(),
                          [](const auto& a, const auto& b) { return a.nic_mbps < b.nic_mbps; })
      ->nic_mbps;
}

// Every gradient is a tensor, numbered from 1 in the order in which they are ready, as the
// scheduler numbers them at their first use.
class ScaleJob {
 public:
  ScaleJob(const ScaleOptions& options, const protocol::Tree& tree, std::vector<double> shares);
  Result<ScaleResult> run(const std::function<bool()>& keep_going);

 private:
  // A connection between a thread of the machine that stands for all and a thread of a root.
  struct Connection {
    Connection(const ScaleWireOptions& up, const ScaleWireOptions& down, Outbox& sender, Outbox& root,
               ScaleEvents& events)
        : contributions(up, Outbox::Kind::kContribution, sender, events),
          answers(down, Outbox::Kind::kAnswer, root, events) {}
    ScaleWire contributions;
    ScaleWire answers;
  };
  struct Thread {
    Thread(uint64_t credit_bytes, ScaleEvents& events) : outbox(credit_bytes), core(events) {}
    Outbox outbox;
    ScaleCore core;
  };
  using Start = protocol::StartPartition;
  using NodeShard = std::pair<uint32_t, uint32_t>;

  Status place_all(const std::function<bool()>& keep_going);
  void on_ready(uint32_t number);
  void contribute(const Start& start);
  void on_contributions(const Start& start);
  void on_answer(const Start& start);
  void complete(const Start& start);
  // The rank that serves the partition on the machine that stands for all, and its shard.
  NodeShard sender_of(const Start& start) const;
  NodeShard root_of(const Start& start) const;
  Thread& thread(std::map<NodeShard, Thread>& threads, const NodeShard& which);
  Connection& connection_of(const Start& start);
  ScaleWireOptions wire_to(uint32_t root, uint32_t rank) const;
  double sum_seconds(double contributions, const Start& start) const {
    return contributions * static_cast<double>(start.head.bytes) / options_.sum_bytes_per_s;
  }
  ScaleResult result() const;

  const ScaleOptions& options_;
  const protocol::Tree& tree_;
  std::vector<double> shares_;
  protocol::Pace pace_;
  uint64_t larger_partition_bytes_;
  protocol::PartitionRule rule_;
  ScaleEvents events_;
  std::vector<uint32_t> order_;                 // gradients by number - 1
  std::vector<std::vector<Start>> partitions_;  // by number - 1
  std::vector<size_t> open_;                    // number of partitions without a sum, by number - 1
  std::vector<double> summed_s_;                // by gradient
  double slowest_mbps_;                         // of the machines' cards
  std::map<NodeShard, Thread> senders_;
  std::map<NodeShard, Thread> roots_;
  std::map<std::pair<NodeShard, NodeShard>, Connection> connections_;  // key: sender, root
};

ScaleJob::ScaleJob(const ScaleOptions& options, const protocol::Tree& tree, std::vector<double> shares)
    : options_(options),
      tree_(tree),
      shares_(std::move(shares)),
      pace_(tree, shares_),
      larger_partition_bytes_(larger_partition_bytes(options, tree)),
      rule_(tree, larger_partition_bytes_ > 0 ? larger_partition_bytes_ : options.partition_bytes),
      order_(options.model.gradients.size()),
      summed_s_(order_.size()),
      slowest_mbps_(slowest_machine_mbps(tree)) {
  const std::vector<Gradient>& gradients = options.model.gradients;
  std::iota(order_.begin(), order_.end(), 0);
  std::stable_sort(order_.begin(), order_.end(), [&](uint32_t a, uint32_t b) {
    if (gradients[a].ready_s != gradients[b].ready_s) return gradients[a].ready_s < gradients[b].ready_s;
    return gradients[a].needed_s != gradients[b].needed_s ? gradients[a].needed_s > gradients[b].needed_s
                                                          : a > b;
  });
}

Result<ScaleResult> ScaleJob::run(const std::function<bool()>& keep_going) {
  BPS_RETURN_IF_ERROR(place_all(keep_going));
  for (uint32_t number = 1; number <= order_.size(); ++number) {
    events_.at(options_.model.gradients[order_[number - 1]].ready_s, [this, number] { on_ready(number); });
  }
  if (!events_.run(keep_going)) return aborted("simulation: interrupted");
  for (const size_t open : open_) BPS_CHECK(open == 0) << "a simulated push_pull hangs";
  return result();
}

// Takes no simulated time: a job declares each tensor once and trains for days. Rank 0 stands for
// all ranks, because the locations and partitions of a tensor are equal on all of them.
Status ScaleJob::place_all(const std::function<bool()>& keep_going) {
  protocol::PushPullTable worker(0, tree_, rule_);
  protocol::TensorDirectory directory({tree_.describe(0)}, protocol::RootAssigner(tree_, shares_), rule_);
  // The most urgent gradient is the one that is needed first.
  std::vector<uint32_t> by_need(order_.rbegin(), order_.rend());
  std::ranges::stable_sort(by_need, {}, [&](uint32_t i) { return options_.model.gradients[i].needed_s; });
  std::vector<int32_t> priority(by_need.size());
  for (size_t i = 0; i < by_need.size(); ++i) priority[by_need[i]] = -static_cast<int32_t>(i);
  for (uint32_t number = 1; number <= order_.size(); ++number) {
    if (!keep_going()) return aborted("simulation: interrupted");
    const uint32_t gradient = order_[number - 1];
    const protocol::PushPull request{.name = "gradient " + std::to_string(gradient),
                                     .dtype = kDType,
                                     .bytes = options_.model.gradients[gradient].bytes,
                                     .priority = options_.waits_for_all ? 0 : priority[gradient]};
    protocol::TableActions actions;
    BPS_RETURN_IF_ERROR(worker.start(number, request, actions));
    const auto& declare = std::get<protocol::SendDeclare>(actions.front()).declare;
    const auto answer = directory.declare(0, declare).message;
    actions.clear();
    if (const auto* refused = std::get_if<protocol::Refused>(&answer))
      return Status(refused->code, refused->name + ": " + refused->text);
    BPS_RETURN_IF_ERROR(worker.on_placed(std::get<protocol::Placed>(answer), actions));
    std::vector<Start>& partitions = partitions_.emplace_back();
    for (const protocol::TableAction& action : actions) partitions.push_back(std::get<Start>(action));
    open_.push_back(partitions.size());
  }
  return Status::ok();
}

ScaleJob::NodeShard ScaleJob::sender_of(const Start& start) const {
  const uint32_t rank = start.parent.level == protocol::Level::kMachine ? start.parent.node : 0;
  return {rank, tree_.shard(rank, tree_.shard_index(start.head.serving_index))};
}

ScaleJob::NodeShard ScaleJob::root_of(const Start& start) const {
  return {start.head.root_node,
          tree_.shard(start.head.root_node, tree_.shard_index(start.head.serving_index))};
}

ScaleJob::Thread& ScaleJob::thread(std::map<NodeShard, Thread>& threads, const NodeShard& which) {
  return threads.try_emplace(which, options_.credit_bytes, events_).first->second;
}

ScaleWireOptions ScaleJob::wire_to(uint32_t root, uint32_t rank) const {
  const bool is_server = root >= tree_.num_workers();
  const uint32_t host =
      is_server ? tree_.num_machines() + root - tree_.num_workers() : tree_.machine_of(root);
  const uint32_t peers = tree_.num_machines() - (is_server ? 0 : 1);
  const double of_root_mbps = tree_.reducer_hosts()[host].nic_mbps / peers;
  const uint32_t connections = tree_.num_connections(rank, root);
  return {
      .paced_bytes_per_s = pace_.rate(rank, root, tree_),
      .free_bytes_per_s = protocol::payload_bytes_per_s(std::min(slowest_mbps_, of_root_mbps)) / connections,
      .latency_s = options_.latency_s};
}

ScaleJob::Connection& ScaleJob::connection_of(const Start& start) {
  const std::pair ends(sender_of(start), root_of(start));
  const auto found = connections_.find(ends);
  if (found != connections_.end()) return found->second;
  Outbox& sender = thread(senders_, ends.first).outbox;
  const uint32_t root = start.head.root_node;
  const bool is_server = root >= tree_.num_workers();
  const ScaleWireOptions up = wire_to(root, ends.first.first);
  ScaleWireOptions down = up;
  down.count = tree_.num_machines() - (is_server ? 0 : 1);
  if (!is_server) down.contributions = &sender;  // the root's own machine sends the same
  Outbox& answering = thread(roots_, ends.second).outbox;
  return connections_.try_emplace(ends, up, down, sender, answering, events_).first->second;
}

void ScaleJob::on_ready(uint32_t number) {
  const double ranks = options_.ranks_per_machine;
  for (const Start& start : partitions_[number - 1]) {
    if (ranks == 1) {
      contribute(start);
    } else {
      thread(senders_, sender_of(start)).core.work(sum_seconds(ranks, start), [this, &start] {
        contribute(start);
      });
    }
  }
}

void ScaleJob::contribute(const Start& start) {
  if (tree_.num_machines() == 1) return on_answer(start);
  connection_of(start).contributions.send(start.head.priority, start.head.bytes,
                                          [this, &start] { on_contributions(start); });
}

// Those of all machines.
void ScaleJob::on_contributions(const Start& start) {
  Thread& root = thread(roots_, root_of(start));
  root.core.work(sum_seconds(tree_.num_machines(), start), [this, &start] {
    connection_of(start).answers.send(start.head.priority, start.head.bytes,
                                      [this, &start] { on_answer(start); });
  });
}

void ScaleJob::on_answer(const Start& start) {
  const double ranks = options_.ranks_per_machine;
  if (ranks == 1) return complete(start);
  thread(senders_, sender_of(start)).core.work(sum_seconds(ranks, start), [this, &start] {
    complete(start);
  });
}

void ScaleJob::complete(const Start& start) {
  const auto tensor = static_cast<size_t>(start.handle - 1);
  if (--open_[tensor] == 0) summed_s_[order_[tensor]] = events_.now_s();
}

ScaleResult ScaleJob::result() const {
  const ScaleModel& model = options_.model;
  ScaleResult result{.predicted_s = bound_of(options_, tree_, shares_, gradient_bytes(model)),
                     .step_s = step_seconds(model, summed_s_, options_.waits_for_all),
                     .larger_partition_bytes = larger_partition_bytes_};
  const double first_s = order_.empty() ? 0 : model.gradients[order_.front()].ready_s;
  for (const double summed_s : summed_s_) result.summed_s = std::max(result.summed_s, summed_s - first_s);
  for (const auto& partitions : partitions_) result.partitions += partitions.size();
  return result;
}

}  // namespace

Result<ScaleResult> simulate(const ScaleOptions& options, const std::function<bool()>& keep_going) {
  BPS_RETURN_IF_ERROR(check_cluster(options));
  const protocol::Tree tree = tree_of(options);
  auto shares = protocol::reducer_host_shares(tree.reducer_hosts(), options.placement);
  if (!shares) return shares.status();
  return ScaleJob(options, tree, std::move(shares).value()).run(keep_going);
}

}  // namespace byteps::sim
