#include "sim/scale_job.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"
#include "protocol/aggregation.h"
#include "protocol/push_pull_table.h"
#include "protocol/tensor_directory.h"
#include "protocol/tree.h"
#include "sim/scale_network.h"

namespace byteps::sim {
namespace {

using protocol::Aggregator;
using protocol::DataHead;
using protocol::ReducerHost;

constexpr DType kDType = DType::kFloat32;

uint32_t count_machines(const std::vector<ReducerHost>& reducer_hosts) {
  return static_cast<uint32_t>(std::ranges::count(reducer_hosts, false, &ReducerHost::is_server));
}

// Makes one node per machine, so both have the same number.
std::vector<protocol::NodeInfo> nodes_of(const std::vector<ReducerHost>& reducer_hosts) {
  std::vector<protocol::NodeInfo> nodes;
  for (const ReducerHost& reducer_host : reducer_hosts) {
    protocol::NodeInfo& node = nodes.emplace_back();
    node.role = reducer_host.is_server ? protocol::Role::kServer : protocol::Role::kWorker;
    node.machine = std::to_string(nodes.size());
  }
  return nodes;
}

std::vector<double> speeds_of(const std::vector<ReducerHost>& reducer_hosts) {
  std::vector<double> bytes_per_s;
  for (const ReducerHost& reducer_host : reducer_hosts)
    bytes_per_s.push_back(reducer_host.nic_mbps * 1e6 / 8);
  return bytes_per_s;
}

// Every layer with a gradient is a tensor. Tensors are numbered from 1 in the order of the backward
// pass, as the scheduler numbers them at their first use.
class ScaleJob : private ScaleEvents {
 public:
  ScaleJob(const ScaleOptions& options, std::vector<double> shares);
  Result<ScaleResult> run(const std::function<bool()>& keep_going);

 private:
  struct Tensor {
    size_t layer;
    uint64_t bytes;
    int32_t priority;
  };

  void on_timer(uint32_t number) override;
  void on_message(const ScaleMessage& message) override;
  void on_contribution(const ScaleMessage& message);
  void apply(uint32_t machine, const protocol::TableActions& actions);
  void apply(uint32_t /*machine*/, const protocol::ChangePlan& /*change*/) {}  // no plan is requested
  void apply(uint32_t machine, const protocol::SendDeclare& send);
  void apply(uint32_t machine, const protocol::SendForget& send) { directory_.forget(machine, send.forget); }
  void apply(uint32_t machine, const protocol::SendRoundFailed& /*send*/) {
    BPS_CHECK(false) << "a round of machine " << machine << " has failed";
  }
  void apply(uint32_t machine, const protocol::FailPartition& /*fail*/) {
    BPS_CHECK(false) << "a push_pull of machine " << machine << " was refused";
  }
  void apply(uint32_t machine, const protocol::StartPartition& start);
  void apply(uint32_t machine, const protocol::FinishHandle& finish);
  DataHead head_of(const ScaleMessage& message) const;
  ScaleResult result() const;

  const ScaleOptions& options_;
  uint32_t num_machines_;
  protocol::Tree tree_;
  protocol::PartitionRule rule_;
  std::vector<Tensor> tensors_;
  protocol::TensorDirectory directory_;
  std::vector<protocol::PushPullTable> workers_;
  std::vector<std::unique_ptr<Aggregator>> services_;  // by reducer_host
  std::vector<std::vector<double>> summed_s_;          // by machine and layer
  ScaleNetwork network_;
  double predicted_s_;
  uint64_t messages_ = 0;
  Status failed_;
};

ScaleJob::ScaleJob(const ScaleOptions& options, std::vector<double> shares)
    : options_(options),
      num_machines_(count_machines(options.reducer_hosts)),
      tree_(nodes_of(options.reducer_hosts), num_machines_),
      rule_({}, options.partition_bytes),
      directory_(tree_.machines().describe, protocol::RootAssigner(tree_, shares), rule_),
      network_({.bytes_per_s = speeds_of(options.reducer_hosts),
                .latency_s = options.latency_s,
                .credit_bytes = options.credit_bytes},
               *this),
      predicted_s_(
          protocol::predicted_seconds(options.reducer_hosts, shares, gradient_bytes(options.model))) {
  const std::vector<Layer>& layers = options.model.layers;
  const std::vector<double> times = gradient_times(options.model);
  for (size_t i = layers.size(); i-- > 0;) {
    if (layers[i].gradient_bytes == 0) continue;
    tensors_.push_back({i, layers[i].gradient_bytes, -static_cast<int32_t>(i)});
    network_.at(times[i], static_cast<uint32_t>(tensors_.size()));
  }
  for (uint32_t i = 0; i < num_machines_; ++i) workers_.emplace_back(i, tree_, rule_);
  for (size_t i = 0; i < options.reducer_hosts.size(); ++i) {
    services_.push_back(std::make_unique<Aggregator>(tree_.machines(), protocol::WaitLimits{kNever, kNever}));
  }
  summed_s_.resize(num_machines_, std::vector<double>(layers.size()));
}

Result<ScaleResult> ScaleJob::run(const std::function<bool()>& keep_going) {
  const auto goes_on = [&] { return failed_.is_ok() && keep_going(); };
  if (!network_.run(goes_on) && failed_.is_ok()) return aborted("simulation: interrupted");
  BPS_RETURN_IF_ERROR(failed_);
  for (const protocol::PushPullTable& worker : workers_)
    BPS_CHECK(worker.in_flight() == 0) << "a simulated push_pull hangs";
  return result();
}

void ScaleJob::on_timer(uint32_t number) {
  const Tensor& tensor = tensors_[number - 1];
  const protocol::PushPull request{.name = "layer " + std::to_string(tensor.layer),
                                   .dtype = kDType,
                                   .bytes = tensor.bytes,
                                   .priority = tensor.priority};
  for (uint32_t machine = 0; machine < num_machines_; ++machine) {
    protocol::TableActions actions;
    const Status status = workers_[machine].start(number, request, actions);
    if (!status.is_ok()) failed_ = status;
    apply(machine, actions);
  }
}

void ScaleJob::apply(uint32_t machine, const protocol::TableActions& actions) {
  for (const protocol::TableAction& action : actions)
    std::visit([&](const auto& each) { apply(machine, each); }, action);
}

// Takes no time: a job declares each tensor once and trains for days.
void ScaleJob::apply(uint32_t machine, const protocol::SendDeclare& send) {
  const protocol::TensorDirectory::Answer answer = directory_.declare(machine, send.declare);
  protocol::TableActions actions;
  if (const auto* placed = std::get_if<protocol::Placed>(&answer.message)) {
    const Status status = workers_[machine].on_placed(*placed, actions);
    BPS_CHECK(status.is_ok()) << status.to_string();
  } else {
    const auto& refused = std::get<protocol::Refused>(answer.message);
    workers_[machine].on_refused(refused, actions);
    failed_ = Status(refused.code, refused.name + ": " + refused.text);
  }
  apply(machine, actions);
}

void ScaleJob::apply(uint32_t machine, const protocol::StartPartition& start) {
  network_.send(start.head.priority, {.tensor = static_cast<uint32_t>(number_of(start.head.key)),
                                      .partition = start.head.key.partition,
                                      .bytes = static_cast<uint32_t>(start.head.bytes),
                                      .from = static_cast<uint16_t>(machine),
                                      .to = static_cast<uint16_t>(start.parent.node)});
}

void ScaleJob::apply(uint32_t machine, const protocol::FinishHandle& finish) {
  summed_s_[machine][tensors_[finish.handle - 1].layer] = network_.now_s();
}

void ScaleJob::on_message(const ScaleMessage& message) {
  ++messages_;
  if (!message.is_result) return on_contribution(message);
  protocol::TableActions actions;
  workers_[message.to].complete(message.tensor, protocol::Plan{}, actions);
  apply(message.to, actions);
}

void ScaleJob::on_contribution(const ScaleMessage& message) {
  const DataHead head = head_of(message);
  Aggregator& service = *services_[message.to];
  const auto verdict = service.admit(head, message.from, message.bytes);
  BPS_CHECK(verdict && *verdict == Aggregator::Verdict::kAccept) << verdict.status().to_string();
  protocol::AggregationActions actions;
  service.on_contribution(head, message.from, 0, actions);
  if (actions.empty()) return;
  const DataHead& complete = std::get<protocol::Complete>(actions.front()).head;
  ScaleMessage result = message;
  result.from = message.to;
  result.is_result = true;
  for (uint32_t machine = 0; machine < num_machines_; ++machine) {
    result.to = static_cast<uint16_t>(machine);
    network_.send(complete.priority, result);
  }
}

// The head that push_pull_table makes; messages do not carry it, so that they stay small.
DataHead ScaleJob::head_of(const ScaleMessage& message) const {
  DataHead head;
  head.type = protocol::DataType::kPushPull;
  head.dtype = kDType;
  head.key = {protocol::key_tensor(message.tensor, 0), message.partition};
  head.round = 1;
  head.rank = message.from;
  head.priority = tensors_[message.tensor - 1].priority;
  head.bytes = message.bytes;
  return head;
}

ScaleResult ScaleJob::result() const {
  ScaleResult result{.predicted_s = predicted_s_, .messages = messages_};
  const std::vector<double> times = gradient_times(options_.model);
  const double first_s = tensors_.empty() ? 0 : times[tensors_.front().layer];
  for (const std::vector<double>& summed_s : summed_s_) {
    result.step_s = std::max(result.step_s, step_seconds(options_.model, summed_s));
    for (const Tensor& tensor : tensors_)
      result.summed_s = std::max(result.summed_s, summed_s[tensor.layer] - first_s);
  }
  return result;
}

Status check(const ScaleOptions& options) {
  if (options.reducer_hosts.size() > protocol::kMaxNodes) {
    return invalid_argument("simulation: expected at most " + std::to_string(protocol::kMaxNodes) +
                            " reducer_hosts, got " + std::to_string(options.reducer_hosts.size()));
  }
  for (size_t i = 0; i < options.reducer_hosts.size(); ++i) {
    if (options.reducer_hosts[i].nic_mbps > 0) continue;
    return invalid_argument("simulation: reducer_host " + std::to_string(i) +
                            ": expected the speed of its card, got " +
                            std::to_string(options.reducer_hosts[i].nic_mbps) + " Mbit/s");
  }
  return Status::ok();
}

}  // namespace

Result<ScaleResult> simulate(const ScaleOptions& options, const std::function<bool()>& keep_going) {
  BPS_RETURN_IF_ERROR(check(options));
  auto shares = protocol::reducer_host_shares(options.reducer_hosts, options.placement);
  if (!shares) return shares.status();
  return ScaleJob(options, std::move(shares).value()).run(keep_going);
}

}  // namespace byteps::sim
