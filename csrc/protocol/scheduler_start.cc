// SchedulerState: joining, measuring, and the start of the job.
#include <algorithm>
#include <utility>

#include "protocol/scheduler_state.h"
#include "protocol/text.h"

namespace byteps::protocol {
namespace {

// A step of the survey takes a fraction of this.
constexpr TimeUs kSurveyTimeoutUs = 4'000'000;

// The scheduler reads the reports of this many nodes per interval, which have a row for each node.
constexpr TimeUs kReportsPerInterval = 64;
// Congestion control takes some ten round trips to find the rate of a path, and loses it again with
// packets. What a connection carries in fewer says little about its card.
constexpr TimeUs kRoundTripsPerInterval = 50;

TimeUs report_interval_us(TimeUs configured_us, size_t num_nodes, TimeUs round_trip_us) {
  const TimeUs interval_us =
      configured_us * std::max<TimeUs>(1, static_cast<TimeUs>(num_nodes) / kReportsPerInterval);
  return configured_us == 0 ? 0 : std::max(interval_us, kRoundTripsPerInterval * round_trip_us);
}

}  // namespace

void SchedulerState::on_join(PeerId peer, const Join& join, TimeUs now, SchedulerActions& actions) {
  if (phase_ == Phase::kFailed) return refuse(peer, failure_, actions);
  if (phase_ == Phase::kMoved) {
    actions.emplace_back(SendTo{peer, Standby{successor_->address}});
    actions.emplace_back(ClosePeer{peer});
    return;
  }
  if (phase_ == Phase::kRunning && options_.failover && join.self.role == Role::kServer)
    return add_server(peer, join, now, actions);
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

// Where a worker has joined, a new job begins at this address.
void SchedulerState::move_to(PeerId peer, const std::string& address, TimeUs now, SchedulerActions& actions) {
  const bool is_new_job =
      std::ranges::any_of(members_, [](const Member& member) { return member.node.role == Role::kWorker; });
  if (is_new_job || address.empty()) return actions.emplace_back(ClosePeer{peer}), void();
  phase_ = Phase::kMoved;
  successor_ = {peer, address, now};
  for (const Member& member : std::exchange(members_, {})) {
    actions.emplace_back(SendTo{member.peer, Standby{address}});
    actions.emplace_back(ClosePeer{member.peer});
  }
  member_of_peer_.clear();
}

void SchedulerState::on_message_of_successor(const Control& message, TimeUs now, SchedulerActions& actions) {
  successor_->last_heard_us = now;
  if (const auto* finished = std::get_if<Finished>(&message)) return finish(finished->text, actions);
  actions.emplace_back(SendTo{successor_->peer, Heartbeat{}});
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
  survey_.emplace(roster_->nodes, roster_->num_workers, options_.long_path_us);
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
  if (survey_->over()) start(now, actions);
}

void SchedulerState::start(TimeUs now, SchedulerActions& actions) {
  Roster roster = std::move(*roster_);
  survey_->apply(roster.nodes, options_.fit_shards);
  Tree tree(roster.nodes, roster.num_workers);
  roster.takes_turns = tree.can_take_turns() && survey_->suits_turns();
  if (roster.takes_turns) tree.let_take_turns();
  Result<std::vector<double>> shares = reducer_host_shares(tree.reducer_hosts(), options_.placement);
  if (!shares) return fail(shares.status(), actions);
  roster.shares_ppb = in_parts_per_billion(*shares);
  link_speeds_.emplace(roster.nodes, roster.num_workers, options_.placement,
                       report_interval_us(options_.report_us, roster.nodes.size(), survey_->round_trip_us()),
                       survey_->noise(), now, roster.takes_turns);
  roster.has_standby = options_.has_standby;
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
  for (size_t node = 0; node < members_.size(); ++node) members_[node].node = roster.nodes[node];
  roster_ = roster;
  roster_->nodes = {};
  roster_->shares_ppb = {};
  SendRoster send{.peers = {}, .roster = std::move(roster)};
  for (const Member& member : members_) send.peers.push_back(member.peer);
  actions.emplace_back(std::move(send));
}

// It needs no state of the services: it becomes a root when all ranks have taken up a placement with
// it, at the end of a round.
void SchedulerState::add_server(PeerId peer, const Join& join, TimeUs now, SchedulerActions& actions) {
  Status misfit = numbering_.check_version(join);
  if (join.num_workers != 0 && join.num_workers != roster_->num_workers) {
    misfit = invalid_argument(join.self.describe() + ": expects " + std::to_string(join.num_workers) +
                              " workers, but the job has " + std::to_string(roster_->num_workers));
  }
  if (members_.size() >= kMaxNodes)
    misfit =
        failed_precondition("the job has had " + std::to_string(kMaxNodes) + " nodes, and takes no more");
  if (!misfit.is_ok()) return refuse(peer, misfit, actions);
  NodeInfo server = join.self;
  server.rank = static_cast<int32_t>(members_.size() - roster_->num_workers);
  // More would be idle, or make connections that nobody needs (NicSurvey::apply).
  size_t most_shards = 1;
  for (const Member& member : members_) most_shards = std::max(most_shards, member.node.num_shards());
  for (Endpoint& endpoint : server.endpoints)
    endpoint.addresses.resize(std::min(endpoint.addresses.size(), most_shards));
  send_to_all(Added{server}, actions);
  const auto number = static_cast<uint32_t>(members_.size());
  member_of_peer_[peer] = number;
  members_.push_back({.peer = peer, .node = server, .last_heard_us = now});
  silence_check_us_ = std::min(silence_check_us_, now + options_.timeout_us);
  ++roster_->num_added;
  const LinkSpeeds::Change change = link_speeds_->add(server, now);
  tell_of_job(number, change, actions);
  apply(change, actions);
}

void SchedulerState::tell_of_job(uint32_t member, const LinkSpeeds::Change& change,
                                 SchedulerActions& actions) {
  const PeerId peer = members_[member].peer;
  Roster roster = *roster_;
  roster.self = member;
  roster.shares_ppb = change.speeds.shares_ppb;
  for (uint32_t number = 0; number < members_.size(); ++number) {
    roster.nodes.push_back(members_[number].node);
    roster.nodes.back().nic_mbps = change.speeds.nic_mbps[number];
    if (members_[number].left && members_[number].node.role == Role::kServer) roster.lost.push_back(number);
  }
  actions.emplace_back(SendTo{peer, Heartbeat{}});
  actions.emplace_back(SendTo{peer, std::move(roster)});
  if (standby_) actions.emplace_back(SendTo{peer, Standby{*standby_}});
  for (const Refused& failed : failed_rounds_) actions.emplace_back(SendTo{peer, failed});
  for (uint32_t worker = 0; worker < roster_->num_workers; ++worker) {
    if (members_[worker].left) actions.emplace_back(SendTo{peer, Left{epoch_, worker}});
    if (!members_[worker].left && members_[worker].lingers)
      actions.emplace_back(SendTo{peer, Lingers{worker}});
  }
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
  roster.failover = options_.failover;
  silence_check_us_ = now + options_.timeout_us;
  return roster;
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

TimeUs SchedulerState::join_deadline_us() const { return std::min(start_deadline_us_, refusal_deadline_us_); }

void SchedulerState::fail_to_start(TimeUs now, SchedulerActions& actions) {
  const std::string missing = who_is_missing() + (refused_.empty() ? "" : "; " + refused_);
  if (now < start_deadline_us_) return fail(permission_denied("the job cannot start: " + missing), actions);
  fail(deadline_exceeded("the job has not started within " + seconds(options_.start_timeout_us) + ": " +
                         missing),
       actions);
}

void SchedulerState::on_refused(const std::string& caller, const Status& why, TimeUs now) {
  if (phase_ != Phase::kJoining) return;
  refused_ = caller + " was refused: " + why.message();
  if (options_.refusal_timeout_us > 0 && refusal_deadline_us_ == kNever) {
    refusal_deadline_us_ = now + options_.refusal_timeout_us;
  }
}

}  // namespace byteps::protocol
