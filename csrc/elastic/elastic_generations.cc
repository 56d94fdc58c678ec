// AsyncElasticNode: the generations of a member, from one to the next.
#include <algorithm>
#include <set>
#include <utility>

#include "base/log.h"
#include "elastic/async_elastic_node.h"
#include "elastic/generation_environment.h"
#include "elastic/names.h"

namespace byteps::elastic {

using protocol::Form;

namespace {

// All members of the first generation begin with what they have.
constexpr uint32_t kFirstGeneration = 1;

bool is_for(const protocol::Reconciliation::Transfer& transfer, uint32_t rank) {
  return std::ranges::find(transfer.to, rank) != transfer.to.end();
}

}  // namespace

Status AsyncElasticNode::on_form(const Form& form) {
  if (std::ranges::find(form.members, member_) == form.members.end())
    return data_loss("Form: this member is not in generation " + std::to_string(form.generation));
  const uint32_t own_epoch = epoch();
  if (form.epoch < own_epoch || has_resigned_) return Status::ok();
  if (!form.is_recovery()) {
    drop(next_);
    planned_[form.generation] = form;
    next_ = make_generation(form);
    return Status::ok();
  }
  if (form.members.front() == member_)  // one of them says so
    BPS_LOG(kWarning) << form.why << "; training goes on with " << form.members.size() << " workers";
  if (form.epoch > own_epoch) entering_ = form.epoch;
  drop(next_);
  drop(recovering_);
  recovering_ = make_generation(form);
  freeze(unavailable(form.why));
  return Status::ok();
}

AsyncElasticNode::GenerationPtr AsyncElasticNode::make_generation(const Form& form) {
  auto generation = std::make_shared<Generation>();
  generation->form = form;
  const uint32_t rank = rank_of(member_, form.members);
  NodeConfig config = config_;
  config.rank = static_cast<int>(rank);
  config.num_workers = static_cast<int>(form.members.size());
  config.num_servers = 0;
  config.local_rank = config.local_size = -1;
  config.host_scheduler = rank == 0;
  config.scheduler_by_rank_0 = true;
  config.scheduler_fd = -1;
  config.node_host = ip_;
  config.is_generation = true;
  config.measure_nics = form.generation == kFirstGeneration;  // later there is other traffic
  if (form.is_recovery()) config.start_timeout_s = config_.timeout_s;
  transport::Address scheduler{ip_, 0};
  if (rank != 0) {
    const auto parsed = transport::parse_address(form.scheduler);
    if (parsed) scheduler = *parsed;
  }
  config.scheduler_host = scheduler.ip;
  config.scheduler_ports = {scheduler.port};
  generation->node =
      std::make_unique<node::AsyncNode>(config, std::make_unique<GenerationEnvironment>(make_environment_()));
  node::AsyncNode& node = *generation->node;
  const auto report = [this, weak = std::weak_ptr(generation)] {
    loop_->post([this, weak] {
      if (const GenerationPtr its = weak.lock()) on_node_news(its);
    });
  };
  node.started().when_reached(report);
  node.finished().when_reached(report);
  const TimeUs deadline_us = loop_->now_us() + seconds_to_us(config.start_timeout_s);
  const Status status = node.start({{scheduler.ip, 0}}, deadline_us);
  if (!status.is_ok()) {
    loop_->post([this, generation, status] { on_node_failed(generation, status); });
  } else if (rank == 0) {
    link_->send(protocol::Hosting{form.generation, node.scheduler_address()->to_string()});
  }
  return generation;
}

void AsyncElasticNode::on_node_news(const GenerationPtr& generation) {
  const Status failure = generation->node->failure();
  if (!failure.is_ok()) return on_node_failed(generation, failure);
  if (generation->has_started || (generation != next_ && generation != recovering_)) return;
  generation->has_started = true;
  link_->send(protocol::Formed{generation->number()});
  if (generation == next_) go_on_waiting_for_workers();
  go_on_if_ready();
}

void AsyncElasticNode::on_node_failed(const GenerationPtr& generation, const Status& why) {
  if (generation == recovering_ && !coordinator_failure().is_ok())
    return fail(without_coordinator(why.message()));
  if (generation == next_ || generation == recovering_) {
    link_->send(protocol::Broken{generation->number(), why.message()});
    if (generation == next_) drop(next_);
    return go_on_if_ready();
  }
  break_off(generation, why.message());
}

void AsyncElasticNode::break_off(const GenerationPtr& generation, const std::string& why) {
  {
    MutexLock lock(mutex_);
    if (generation != present_ || is_frozen_) return;
  }
  if (!coordinator_failure().is_ok()) return fail(without_coordinator(why));
  freeze(unavailable(why));
  link_->send(protocol::Broken{generation->number(), why});
}

Status AsyncElasticNode::without_coordinator(const std::string& why) const {
  const Status lost = coordinator_failure();
  return {lost.code(), why + "; and " + lost.message()};
}

void AsyncElasticNode::freeze(const Status& why) {
  GenerationPtr generation;
  {
    MutexLock lock(mutex_);
    is_frozen_ = true;
    generation = present_;
    if (generation) is_drained_ = false;
    if (generation && generation->attempts == 0) loop_->post([this, generation] { on_drained(generation); });
  }
  if (generation) return generation->node->abandon(why);
  go_on_if_ready();
}

void AsyncElasticNode::on_drained(const GenerationPtr& generation) {
  {
    MutexLock lock(mutex_);
    if (generation != present_) return;
    present_.reset();
  }
  is_drained_ = true;
  retire(generation);
  go_on_if_ready();
}

void AsyncElasticNode::go_on_if_ready() {
  Status ended;
  uint32_t epoch = 0;
  {
    MutexLock lock(mutex_);
    if (!is_frozen_ || !is_drained_) return;
    ended = ended_;
    epoch = epoch_;
  }
  if (!ended.is_ok()) {
    fail_all_operations();
    return finish_commit(ended);
  }
  if (entering_ > epoch) {
    // The others' nodes have started, so this one's will, as soon as it hears of it.
    if (next_ && next_->number() == entering_ && !next_->has_started) return;
    return enter(entering_);
  }
  if (!recovering_ || !recovering_->has_started || is_exchanging_) return;
  is_exchanging_ = true;
  const GenerationPtr generation = recovering_;
  protocol::LedgerTable table;
  {
    MutexLock lock(mutex_);
    table = ledger_.table();
    was_refused_ = false;
  }
  exchange_tables(*generation->node, *loop_, {std::move(table), has_state_},
                  [this, weak = std::weak_ptr(generation)](auto all) {
                    if (const GenerationPtr its = weak.lock()) on_knowledge(its, std::move(all));
                  });
}

void AsyncElasticNode::on_knowledge(const GenerationPtr& generation, Result<std::vector<Knowledge>> all) {
  if (generation != recovering_) return;
  if (!all) return on_node_failed(generation, all.status());
  if (std::ranges::none_of(*all, &Knowledge::has_state))
    return fail(unavailable("no worker is left that has the state of the training: " + generation->form.why));
  std::vector<protocol::LedgerTable> tables;
  for (Knowledge& each : *all) tables.push_back(std::move(each.table));
  const protocol::Reconciliation reconciliation = protocol::reconcile(tables);
  auto transfers = places_of(reconciliation.transfers, static_cast<uint32_t>(generation->node->rank()));
  if (!transfers) return on_node_failed(generation, transfers.status());
  send_results(*generation->node, *loop_, *transfers,
               [this, weak = std::weak_ptr(generation), reconciliation](const Status& status) {
                 const GenerationPtr its = weak.lock();
                 if (!its || its != recovering_) return;
                 if (!status.is_ok()) return on_node_failed(its, status);
                 finish_recovery(its, reconciliation);
               });
}

Result<std::vector<ResultTransfer>> AsyncElasticNode::places_of(
    const std::vector<protocol::Reconciliation::Transfer>& transfers, uint32_t rank) const {
  using protocol::Ledger;
  std::vector<ResultTransfer> places;
  MutexLock lock(mutex_);
  for (const auto& transfer : transfers) {
    const auto& [offset, bytes] = transfer.part;
    const auto own = ops_.find(transfer.name);
    Ledger::Values values;
    if (transfer.holder == rank) values = ledger_.held(transfer.name, transfer.round);
    if (!values && (transfer.holder == rank || is_for(transfer, rank))) {
      if (own == ops_.end() || transfer.part.end() > own->second.request.bytes)
        return data_loss("result of '" + transfer.name + "': this member has no memory for " +
                         std::to_string(bytes) + " bytes at " + std::to_string(offset));
      values = own->second.result;
    }
    values = values ? Ledger::Values(values, values.get() + offset)
                    : Ledger::Values(new std::byte[std::max<uint64_t>(bytes, 1)]);
    places.push_back({transfer, std::move(values)});
  }
  return places;
}

void AsyncElasticNode::finish_recovery(const GenerationPtr& generation,
                                       const protocol::Reconciliation& reconciliation) {
  std::vector<std::pair<Landing, protocol::ByteRange>> copies;
  std::vector<std::pair<Op, Status>> ended;
  bool was_refused = false;
  {
    MutexLock lock(mutex_);
    was_refused = was_refused_;
    if (!was_refused) {
      std::set<std::string> received;
      for (const auto& transfer : reconciliation.transfers) {
        if (!is_for(transfer, static_cast<uint32_t>(generation->node->rank()))) continue;
        ledger_.add_part(transfer.name, transfer.part);
        copies.emplace_back(landing_of(ops_.at(transfer.name)), transfer.part);
        received.insert(transfer.name);
      }
      for (const std::string& name : received) {
        const Op& op = ops_.at(name);
        if (!gaps(ledger_.parts(name), op.request.bytes).empty()) continue;
        ledger_.finish(name, op.result, op.request.bytes);
        ended.emplace_back(std::move(ops_.extract(name).mapped()), Status::ok());
      }
      for (const auto& [name, why] : ledger_.apply(reconciliation.failures))
        ended.emplace_back(std::move(ops_.extract(name).mapped()), why);
      number_rests();
      // What this member wanted to enter was cancelled.
      if (ops_.contains(kFlagsName)) (*flags_)[0] = (*flags_)[1] = 0;
      present_ = generation;
      is_frozen_ = false;
    }
  }
  // The others do not know of it: the next recovery tells them.
  if (was_refused) return on_node_failed(generation, aborted("a call was refused during the recovery"));
  recovering_.reset();
  is_exchanging_ = false;
  for (const auto& [landing, part] : copies) landing.copy(part);
  for (const auto& [op, status] : ended) finish(op, status);
  // It may have failed before it was the present one.
  const Status failure = generation->node->failure();
  if (!failure.is_ok()) return break_off(generation, failure.message());
  if (may_leave_) return leave_node();
  resubmit_all();
}

// The same on all members, as they are at the same rounds of these names.
void AsyncElasticNode::number_rests() {
  uint32_t number = 0;
  for (auto& [name, op] : ops_) {
    if (ledger_.parts(name).empty()) continue;
    op.first_rest = number;
    number += static_cast<uint32_t>(gaps(ledger_.parts(name), op.request.bytes).size());
  }
}

void AsyncElasticNode::on_entered(uint32_t entered) {
  if (entered <= epoch() || has_resigned_) return;
  entering_ = entered;
  freeze(aborted("the other workers have entered another epoch"));
}

void AsyncElasticNode::enter(uint32_t epoch) {
  const auto planned = planned_.find(epoch);
  if (planned == planned_.end())
    return fail(data_loss("the job has entered generation " + std::to_string(epoch) +
                          ", of which this member has not heard"));
  const std::vector<uint32_t> members = planned->second.members;
  planned_.erase(planned_.begin(), std::next(planned));
  GenerationPtr entered;
  if (next_ && next_->number() == epoch && next_->has_started) entered = std::exchange(next_, nullptr);
  // A later one may have been formed meanwhile.
  if (next_ && next_->number() <= epoch) drop(next_);
  if (recovering_ && recovering_->form.epoch < epoch) drop(recovering_);
  GenerationPtr old;
  Change change{.is_entered = true, .has_newcomers = false};
  std::map<std::string, Op> ops;
  {
    MutexLock lock(mutex_);
    for (const uint32_t member : members)
      if (std::ranges::find(epoch_members_, member) == epoch_members_.end()) change.has_newcomers = true;
    old = std::exchange(present_, entered);
    ops.swap(ops_);
    for (const auto& [name, op] : ops)
      if (ledger_.is_in_flight(name)) ledger_.fail(name, aborted("another epoch has begun"));
    ledger_.clear();
    epoch_ = epoch;
    epoch_members_ = members;
    // Without a node it is known of no rank which others share its machine.
    local_ranks_.assign(members.size(), {0, 1});
    if (entered) local_ranks_ = entered->node->local_ranks();
    is_frozen_ = !entered;
  }
  is_drained_ = true;
  if (epoch == kFirstGeneration) has_state_ = true;
  if (old) retire(std::move(old));
  link_->send(protocol::Entered{epoch});
  if (!entered && !coordinator_failure().is_ok()) return fail(without_coordinator("a worker was lost"));
  if (!entered) link_->send(protocol::Broken{epoch, "this member had given the generation up"});
  const uint32_t rank = rank_of(member_, members);
  environment_->on_named("r" + std::to_string(rank));
  BPS_LOG(kInfo) << "epoch " << epoch << ": rank " << rank << " of " << members.size();
  wait_ = Wait::kNothing;
  flags_.reset();
  for (const auto& [name, op] : ops) finish(op, aborted("'" + name + "' was in flight at a commit"));
  started_.reach();
  finish_commit(change);
  go_on_if_ready();  // a recovery of this epoch may have started already
}

void AsyncElasticNode::retire(GenerationPtr generation) {
  retired_.push_back(generation);
  node::AsyncNode& node = *generation->node;
  node.left().when_reached([this, weak = std::weak_ptr(generation)] {
    loop_->post([this, weak] {
      const GenerationPtr generation = weak.lock();
      if (!generation) return;
      generation->node->stop();
      {
        MutexLock lock(mutex_);
        byteps::add_metrics(past_, generation->node->metrics());
      }
      retired_.remove(generation);
      if (generation == leaving_) finish_leaving();
    });
  });
  node.leave(has_resigned_ ? cause_ : "", "");
}

void AsyncElasticNode::drop(GenerationPtr& generation) {
  if (!generation) return;
  if (generation == recovering_) is_exchanging_ = false;
  generation->node->abandon(aborted("the generation is given up"));
  retire(std::exchange(generation, nullptr));
}

}  // namespace byteps::elastic
