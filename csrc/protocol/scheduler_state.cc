#include "protocol/scheduler_state.h"

#include <algorithm>
#include <utility>

#include "protocol/text.h"

namespace byteps::protocol {
namespace {

// A step of the survey takes a fraction of this.
constexpr TimeUs kSurveyTimeoutUs = 4'000'000;

// The scheduler reads the reports of this many nodes per interval, which have a row for each node.
constexpr TimeUs kReportsPerInterval = 64;

// Placement 0 is the first one and never comes again: see TensorDirectory::locations_for.
uint8_t next_placement(uint8_t placement) {
  return placement == UINT8_MAX ? uint8_t{1} : static_cast<uint8_t>(placement + 1);
}

TimeUs report_interval_us(TimeUs configured_us, size_t num_nodes) {
  return configured_us * std::max<TimeUs>(1, static_cast<TimeUs>(num_nodes) / kReportsPerInterval);
}

}  // namespace

SchedulerState::SchedulerState(SchedulerOptions options, TimeUs now)
    : options_(options),
      start_deadline_us_(now + options.start_timeout_us),
      notices_(now),
      numbering_(options.num_workers, options.num_servers) {}

void SchedulerState::on_message(PeerId peer, const Control& message, TimeUs now, SchedulerActions& actions) {
  auto found = member_of_peer_.find(peer);
  if (found == member_of_peer_.end()) {
    if (const auto* join = std::get_if<Join>(&message)) return on_join(peer, *join, now, actions);
    actions.emplace_back(ClosePeer{peer});
    return;
  }
  const uint32_t member = found->second;
  members_[member].last_heard_us = now;
  if (std::holds_alternative<Heartbeat>(message)) {
    actions.emplace_back(SendTo{peer, Heartbeat{}});
  } else if (phase_ <= Phase::kRunning) {
    on_member_message(member, message, now, actions);
  }
}

void SchedulerState::on_join(PeerId peer, const Join& join, TimeUs now, SchedulerActions& actions) {
  if (phase_ == Phase::kFailed) return refuse(peer, failure_, actions);
  if (phase_ == Phase::kFinished || has_left(join.self)) {
    // It joins the next job, whose scheduler will have this one's address.
    actions.emplace_back(SendTo{peer, Finished{"this job is over for " + join.self.describe()}});
    actions.emplace_back(ClosePeer{peer});
    return;
  }
  if (phase_ != Phase::kJoining)
    return refuse(peer, failed_precondition("the job has started already"), actions);
  if (Status misfit = numbering_.add(join); !misfit.is_ok()) {
    refuse(peer, misfit, actions);
    return fail(misfit, actions);  // it knows the secret, so the others wait for this node
  }
  member_of_peer_[peer] = static_cast<uint32_t>(members_.size());
  members_.push_back({.peer = peer, .node = join.self, .last_heard_us = now});
  if (refusal_deadline_us_ != kNever) refusal_deadline_us_ = now + options_.refusal_timeout_us;
  // Otherwise it would take a later end of the connection for that of an earlier job.
  actions.emplace_back(SendTo{peer, Heartbeat{}});
  if (numbering_.complete()) measure_or_start(now, actions);
}

// A process that resumes comes again with its rank, or, if this scheduler has numbered it, without.
bool SchedulerState::has_left(const NodeInfo& node) const {
  return std::any_of(members_.begin(), members_.end(), [&node](const Member& member) {
    if (!member.left) return false;
    const bool is_same_rank = node.rank >= 0 && member.node.rank == node.rank;
    const bool is_same_process = member.node.host == node.host && member.node.pid == node.pid;
    return member.node.role == node.role && (is_same_rank || is_same_process);
  });
}

void SchedulerState::refuse(PeerId peer, const Status& why, SchedulerActions& actions) {
  actions.emplace_back(SendTo{peer, Lost{why.code(), why.message()}});
  actions.emplace_back(ClosePeer{peer});
}

void SchedulerState::measure_or_start(TimeUs now, SchedulerActions& actions) {
  roster_ = number_members(now);
  survey_.emplace(roster_->nodes, roster_->num_workers);
  if (!options_.probe_nics || !survey_->is_needed()) return start(now, actions);
  phase_ = Phase::kMeasuring;
  NicSurvey::Orders orders;
  const TimeUs grace_us = std::min(kSurveyTimeoutUs, options_.timeout_us / 2);
  survey_->start(roster_->epoch, grace_us, start_deadline_us_, now, orders);
  go_on_measuring(std::move(orders), now, actions);
}

void SchedulerState::on_probe_answer(uint32_t member, const Control& message, TimeUs now,
                                     SchedulerActions& actions) {
  if (phase_ != Phase::kMeasuring) return;  // it was late: the survey is over
  NicSurvey::Orders orders;
  if (const auto* ready = std::get_if<ProbeReady>(&message)) survey_->on_ready(member, *ready, now, orders);
  if (const auto* done = std::get_if<ProbeDone>(&message)) survey_->on_done(member, *done, now, orders);
  go_on_measuring(std::move(orders), now, actions);
}

void SchedulerState::go_on_measuring(NicSurvey::Orders orders, TimeUs now, SchedulerActions& actions) {
  for (NicSurvey::Order& order : orders)
    actions.emplace_back(SendTo{members_[order.node].peer, std::move(order.message)});
  if (!survey_->over()) return;
  survey_->apply(roster_->nodes, options_.fit_shards);
  start(now, actions);
}

void SchedulerState::start(TimeUs now, SchedulerActions& actions) {
  Roster roster = std::move(*std::exchange(roster_, std::nullopt));
  const Tree tree(roster.nodes, roster.num_workers);
  Result<std::vector<double>> shares = reducer_host_shares(tree.reducer_hosts(), options_.placement);
  if (!shares) return fail(shares.status(), actions);
  for (const double share : *shares) roster.shares_ppb.push_back(static_cast<uint32_t>(share * 1e9));
  link_speeds_.emplace(roster.nodes, roster.num_workers, options_.placement,
                       report_interval_us(options_.report_us, roster.nodes.size()), now);
  if (link_speeds_->learns()) roster.report_us = static_cast<uint64_t>(link_speeds_->window_us());
  if (encode(roster).payload.size() > kMaxRosterBytes) {
    return fail(invalid_argument("the job's nodes do not fit into a message of " +
                                 std::to_string(kMaxRosterBytes) + " bytes"),
                actions);
  }
  std::vector<std::string> describe_rank;
  for (uint32_t rank = 0; rank < roster.num_workers; ++rank)
    describe_rank.push_back(roster.nodes[rank].describe());
  tensors_.emplace(describe_rank, RootAssigner(tree, std::move(shares).value()),
                   PartitionRule(tree, options_.partition_bytes));
  barriers_.emplace(std::move(describe_rank), options_.op_timeout_us);
  phase_ = Phase::kRunning;
  epoch_ = roster.epoch;
  SendRoster send{.peers = {}, .roster = std::move(roster)};
  for (const Member& member : members_) send.peers.push_back(member.peer);
  actions.emplace_back(std::move(send));
}

// Orders the members by node number.
Roster SchedulerState::number_members(TimeUs now) {
  Roster roster;
  roster.epoch = options_.first_epoch;
  roster.num_workers = numbering_.num_workers();
  roster.timeout_us = static_cast<uint64_t>(options_.timeout_us);
  roster.partition_bytes = options_.partition_bytes;
  std::vector<Member> ordered;
  for (const auto& [node, joined_index] : numbering_.number()) {
    Member& member = ordered.emplace_back(members_[joined_index]);
    member.node = node;
    member.last_heard_us = now;  // it need not send anything while it waits for the start
    member_of_peer_[member.peer] = static_cast<uint32_t>(roster.nodes.size());
    roster.nodes.push_back(node);
  }
  members_ = std::move(ordered);
  silence_check_us_ = now + options_.timeout_us;
  return roster;
}

void SchedulerState::on_member_message(uint32_t member, const Control& message, TimeUs now,
                                       SchedulerActions& actions) {
  if (members_[member].left) return;
  if (const auto* leave = std::get_if<Leave>(&message)) return on_leave(member, leave->cause, actions);
  if (std::holds_alternative<Join>(message)) return expel(member, "joined a second time", actions);
  if (phase_ != Phase::kJoining && is_one_of<ProbeReady, ProbeDone>(message))
    return on_probe_answer(member, message, now, actions);
  if (phase_ != Phase::kRunning) return expel(member, "did not wait for the start of the job", actions);
  if (const auto* suspect = std::get_if<Suspect>(&message)) return on_suspect(member, *suspect, now, actions);
  if (const auto* stalled = std::get_if<Stalled>(&message)) return on_stalled(member, *stalled, actions);
  if (const auto* leaving = std::get_if<Leaving>(&message)) return on_leaving(member, *leaving, actions);
  if (const auto* traffic = std::get_if<Traffic>(&message)) return on_traffic(member, *traffic, now, actions);
  if (members_[member].node.role == Role::kWorker) {
    if (const auto* declare = std::get_if<Declare>(&message)) return on_declare(member, *declare, actions);
    if (const auto* waits = std::get_if<Waits>(&message)) return on_waits(member, *waits, actions);
    if (const auto* failed = std::get_if<RoundFailed>(&message))
      return on_round_failed(member, *failed, actions);
    if (const auto* forget = std::get_if<Forget>(&message)) return on_forget(member, *forget, actions);
    if (const auto* barrier = std::get_if<Barrier>(&message))
      return on_barrier(member, *barrier, now, actions);
  }
  expel(member, "sent a message that nodes of its role must not send", actions);
}

void SchedulerState::on_declare(uint32_t rank, const Declare& declare, SchedulerActions& actions) {
  TensorDirectory::Answer answer = tensors_->declare(rank, declare);
  if (answer.to_all) return send_to_all(answer.message, actions);
  actions.emplace_back(SendTo{members_[rank].peer, std::move(answer.message)});
}

void SchedulerState::on_round_failed(uint32_t rank, const RoundFailed& failed, SchedulerActions& actions) {
  const std::optional<Refused> refused = tensors_->fail_round(rank, failed);
  if (refused) send_to_all(*refused, actions);
}

void SchedulerState::on_forget(uint32_t rank, const Forget& forget, SchedulerActions& actions) {
  std::vector<ForgottenKeys> keys = tensors_->forget(rank, forget);
  if (!keys.empty()) send_to_all(Forgotten{std::move(keys)}, actions);
}

void SchedulerState::on_traffic(uint32_t member, const Traffic& traffic, TimeUs now,
                                SchedulerActions& actions) {
  if (!link_speeds_->learns()) return expel(member, "reported traffic without being asked", actions);
  const Status status = link_speeds_->on_report(member, traffic, now);
  if (!status.is_ok()) expel(member, status.message(), actions);
}

void SchedulerState::apply(LinkSpeeds::Change change, SchedulerActions& actions) {
  if (change.moves) {
    placement_ = next_placement(placement_);
    tensors_->change_shares(RootAssigner(link_speeds_->tree(), link_speeds_->shares()));
  }
  change.speeds.placement = placement_;
  send_to_all(change.speeds, actions);
}

void SchedulerState::on_leaving(uint32_t member, const Leaving& leaving, SchedulerActions& actions) {
  if (leaving.node >= members_.size()) return expel(member, "named a node that does not exist", actions);
  for (uint32_t other = 0; leaving.node == member && other < members_.size(); ++other) {
    const bool is_told = !members_[other].left && members_[member].unaware.insert(other).second;
    if (is_told && other != member) actions.emplace_back(SendTo{members_[other].peer, leaving});
  }
  on_aware(leaving.node, member, actions);
}

void SchedulerState::on_aware(uint32_t leaver, uint32_t member, SchedulerActions& actions) {
  std::set<uint32_t>& unaware = members_[leaver].unaware;
  if (unaware.erase(member) > 0 && unaware.empty())
    actions.emplace_back(SendTo{members_[leaver].peer, Leaving{leaver, {}}});
}

void SchedulerState::on_stalled(uint32_t member, const Stalled& stalled, SchedulerActions& actions) {
  const Stalled named{stalled.tensor, tensors_->name_of(stalled.tensor), stalled.text};
  actions.emplace_back(SendTo{members_[member].peer, named});
}

void SchedulerState::on_barrier(uint32_t rank, const Barrier& barrier, TimeUs now,
                                SchedulerActions& actions) {
  Barriers::Answers answers;
  Status status = barriers_->on_arrival(rank, barrier.sequence, now, answers);
  if (!status.is_ok()) return expel(rank, status.message(), actions);
  answer_barriers(answers, actions);
}

void SchedulerState::on_waits(uint32_t rank, const Waits& waits, SchedulerActions& actions) {
  members_[rank].waits_for = waits.what;
  if (!waits.asks || waits.what.empty()) return;
  actions.emplace_back(SendTo{members_[rank].peer, Waiting{waits.what + ": " + what_others_wait_for(rank)}});
}

std::string SchedulerState::what_others_wait_for(uint32_t rank) const {
  std::vector<std::string> others;
  for (uint32_t other = 0; other < numbering_.num_workers(); ++other) {
    const Member& member = members_[other];
    if (member.left || member.waits_for == members_[rank].waits_for) continue;
    const std::string what = member.waits_for.empty() ? "nothing" : member.waits_for;
    others.push_back(member.node.describe() + " waits for " + what);
  }
  return others.empty() ? "all ranks wait for it" : enumerate(others);
}

void SchedulerState::say_who_is_missing(TimeUs now, SchedulerActions& actions) {
  if (!notices_.due(now)) return;
  const std::string text =
      "the job has not started after " + seconds(notices_.waited_us(now)) + ": " + who_is_missing();
  send_to_all(Waiting{text}, actions);
  actions.emplace_back(LogWaiting{text});
}

std::string SchedulerState::who_is_missing() const {
  std::vector<std::string> joined;
  for (const Member& member : members_) joined.push_back(member.node.describe());
  return numbering_.missing() + " missing; joined: " + (joined.empty() ? "nobody" : enumerate(joined));
}

void SchedulerState::on_suspect(uint32_t member, const Suspect& suspect, TimeUs now,
                                SchedulerActions& actions) {
  if (suspect.node >= members_.size()) return expel(member, "suspects a node that does not exist", actions);
  if (suspect.node == member) {
    return fail(unavailable(members_[member].node.describe() + ": " + suspect.text), actions);
  }
  const bool known = find_suspicion(member, suspect.node) != suspicions_.end();
  if (known || members_[suspect.node].left) return;
  suspicions_.push_back({member, suspect.node, suspect.text, now});
}

void SchedulerState::on_leave(uint32_t member, const std::string& cause, SchedulerActions& actions) {
  members_[member].left = true;
  const NodeInfo& node = members_[member].node;
  if (!cause.empty()) return fail(unavailable(node.describe() + " ended by " + cause), actions);
  const auto fail_with = [&](const char* when) { fail(unavailable(node.describe() + when), actions); };
  if (phase_ == Phase::kJoining) return fail_with(" left before all had joined");
  if (phase_ == Phase::kMeasuring) return fail_with(" left before the job had started");
  if (node.role == Role::kServer) return fail_with(" left while workers still use it");
  ++epoch_;
  std::erase_if(suspicions_,
                [member](const Suspicion& s) { return s.reporter == member || s.node == member; });
  send_to_all(Left{epoch_, member}, actions);
  for (uint32_t other = 0; other < members_.size(); ++other) on_aware(other, member, actions);
  Barriers::Answers answers;
  barriers_->on_left(member, answers);
  answer_barriers(answers, actions);
  const auto is_done = [](const Member& each) { return each.left || each.node.role == Role::kServer; };
  if (std::ranges::all_of(members_, is_done)) finish("all workers have left", actions);
}

void SchedulerState::expel(uint32_t member, const std::string& why, SchedulerActions& actions) {
  fail(data_loss(members_[member].node.describe() + " broke the protocol: " + why), actions);
  actions.emplace_back(ClosePeer{members_[member].peer});
  member_of_peer_.erase(members_[member].peer);
  members_[member].connected = false;
}

void SchedulerState::on_closed(PeerId peer, const Status& why, SchedulerActions& actions) {
  auto found = member_of_peer_.find(peer);
  if (found == member_of_peer_.end()) return;
  Member& member = members_[found->second];
  member_of_peer_.erase(found);
  member.connected = false;
  if (member.left) return;
  if (phase_ == Phase::kJoining) {
    fail(unavailable(member.node.describe() + " ended before all had joined: " + why.message()), actions);
  } else if (phase_ == Phase::kMeasuring || phase_ == Phase::kRunning) {
    fail(unavailable(member.node.describe() + " ended without leaving: " + why.message()), actions);
  }
}

void SchedulerState::on_refused(const std::string& caller, const Status& why, TimeUs now) {
  if (phase_ != Phase::kJoining) return;
  refused_ = caller + " was refused: " + why.message();
  if (options_.refusal_timeout_us > 0 && refusal_deadline_us_ == kNever) {
    refusal_deadline_us_ = now + options_.refusal_timeout_us;
  }
}

TimeUs SchedulerState::join_deadline_us() const { return std::min(start_deadline_us_, refusal_deadline_us_); }

void SchedulerState::fail_to_start(TimeUs now, SchedulerActions& actions) {
  const std::string missing = who_is_missing() + (refused_.empty() ? "" : "; " + refused_);
  if (now < start_deadline_us_) return fail(permission_denied("the job cannot start: " + missing), actions);
  fail(deadline_exceeded("the job has not started within " + seconds(options_.start_timeout_us) + ": " +
                         missing),
       actions);
}

void SchedulerState::on_tick(TimeUs now, SchedulerActions& actions) {
  if (phase_ == Phase::kJoining && now >= join_deadline_us()) fail_to_start(now, actions);
  if (phase_ == Phase::kJoining) say_who_is_missing(now, actions);
  if (phase_ == Phase::kMeasuring) {
    survey_->on_tick(now);
    go_on_measuring({}, now, actions);
  }
  if (phase_ == Phase::kRunning) check_silence(now, actions);
  if (phase_ == Phase::kRunning) check_suspicions(now, actions);
  if (phase_ != Phase::kRunning) return;
  if (auto change = link_speeds_->on_tick(now)) apply(std::move(*change), actions);
  Barriers::Answers answers;
  barriers_->on_tick(now, answers);
  answer_barriers(answers, actions);
}

void SchedulerState::check_silence(TimeUs now, SchedulerActions& actions) {
  if (now < silence_check_us_) return;
  silence_check_us_ = kNever;
  for (const Member& member : members_) {
    if (member.left) continue;
    silence_check_us_ = std::min(silence_check_us_, member.last_heard_us + options_.timeout_us);
    if (now - member.last_heard_us < options_.timeout_us) continue;
    return fail(
        unavailable(member.node.describe() + " has been silent for " + seconds(now - member.last_heard_us)),
        actions);
  }
}

std::vector<SchedulerState::Suspicion>::const_iterator SchedulerState::find_suspicion(uint32_t reporter,
                                                                                      uint32_t node) const {
  return std::ranges::find_if(
      suspicions_, [=](const Suspicion& each) { return each.reporter == reporter && each.node == node; });
}

void SchedulerState::check_suspicions(TimeUs now, SchedulerActions& actions) {
  const auto due =
      std::ranges::find_if(suspicions_, [&](const Suspicion& each) { return now >= verdict_us(each); });
  if (due == suspicions_.end()) return;
  std::string what = members_[due->reporter].node.describe() + " lost its connection to " +
                     members_[due->node].node.describe() + ": " + due->text;
  // The other end's report often has the cause, where this end only saw the connection close.
  const auto counterpart = find_suspicion(due->node, due->reporter);
  if (counterpart != suspicions_.end()) what += "; at the other end: " + counterpart->text;
  fail(unavailable(what), actions);
}

// One of the two nodes may have died; then its own connection ends soon, or its silence is
// detected.
TimeUs SchedulerState::verdict_us(const Suspicion& suspicion) const {
  const auto heard_since = [&](uint32_t member) {
    return members_[member].last_heard_us > suspicion.reported_us;
  };
  const bool both_are_well = heard_since(suspicion.reporter) && heard_since(suspicion.node);
  return suspicion.reported_us +
         (both_are_well ? options_.timeout_us / kHeartbeatsPerTimeout : options_.timeout_us);
}

TimeUs SchedulerState::next_tick_us() const {
  if (phase_ == Phase::kJoining) return std::min(join_deadline_us(), notices_.next_us());
  if (phase_ == Phase::kMeasuring) return survey_->next_tick_us();
  if (phase_ != Phase::kRunning) return kNever;
  TimeUs next = std::min({barriers_->next_tick_us(), silence_check_us_, link_speeds_->next_tick_us()});
  for (const Suspicion& suspicion : suspicions_) next = std::min(next, verdict_us(suspicion));
  return next;
}

void SchedulerState::on_shutdown(const std::string& text, SchedulerActions& actions) {
  if (phase_ < Phase::kRunning) fail(unavailable("the job has not started: " + text), actions);
  if (phase_ == Phase::kRunning) check_suspicions(kNever, actions);
  if (phase_ == Phase::kRunning) finish(text, actions);
}

void SchedulerState::answer_barriers(const Barriers::Answers& answers, SchedulerActions& actions) {
  for (const auto& [rank, sequence, status] : answers) {
    if (!members_[rank].connected) continue;
    actions.emplace_back(SendTo{members_[rank].peer, BarrierDone{sequence, status.code(), status.message()}});
  }
}

void SchedulerState::send_to_all(const Control& message, SchedulerActions& actions) {
  for (const Member& member : members_) {
    if (member.connected) actions.emplace_back(SendTo{member.peer, message});
  }
}

void SchedulerState::fail(Status why, SchedulerActions& actions) {
  phase_ = Phase::kFailed;
  failure_ = std::move(why);
  send_to_all(Lost{failure_.code(), failure_.message()}, actions);
}

void SchedulerState::finish(const std::string& text, SchedulerActions& actions) {
  phase_ = Phase::kFinished;
  send_to_all(Finished{text}, actions);
}

}  // namespace byteps::protocol
