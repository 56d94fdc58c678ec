#include "protocol/coordinator_state.h"

#include <algorithm>
#include <utility>

#include "protocol/text.h"

namespace byteps::protocol {
namespace {

// A member that is gone is known to be so within this part of the timeout, or it is silent.
constexpr TimeUs kPartsToBlame = 4;
// Generations in a row that break although all their members are there.
constexpr uint32_t kMostBreaksWithoutLoss = 3;

}  // namespace

std::string Enrol::describe() const { return "host " + host + ", pid " + std::to_string(pid); }

bool CoordinatorState::Generation::has(uint32_t member) const {
  return std::ranges::find(members, member) != members.end();
}

CoordinatorState::CoordinatorState(CoordinatorOptions options, TimeUs now)
    : options_(std::move(options)),
      start_deadline_us_(later(now, options_.start_timeout_us)),
      last_tick_us_(now) {}

void CoordinatorState::on_message(PeerId peer, const Control& message, TimeUs now, Actions& actions) {
  const auto found = member_of_peer_.find(peer);
  if (ended_) {
    if (std::holds_alternative<Enrol>(message))
      refuse(peer, failure_.is_ok() ? unavailable("the job is over") : failure_, actions);
    return;
  }
  if (found != member_of_peer_.end()) {
    members_.at(found->second).last_heard_us = now;
    return on_member_message(found->second, message, now, actions);
  }
  if (const auto* enrol = std::get_if<Enrol>(&message)) return on_enrol(peer, *enrol, now, actions);
  refuse(peer, data_loss("expected an Enrol: this is the coordinator of an elastic job"), actions);
}

void CoordinatorState::on_enrol(PeerId peer, const Enrol& enrol, TimeUs now, Actions& actions) {
  if (enrol.version != options_.version) {
    return refuse(
        peer,
        failed_precondition("a worker (" + enrol.describe() + ") has byteps " + enrol.version +
                            ", the coordinator " + options_.version + ": install the same everywhere"),
        actions);
  }
  if (last_member_ >= kMaxNodes) {
    return refuse(peer, unavailable("the job has had " + std::to_string(last_member_) + " workers"), actions);
  }
  const uint32_t number = ++last_member_;
  Member& member = members_[number];
  member.peer = peer;
  member.text = "worker " + std::to_string(number) + " (" + enrol.describe() + ")";
  member.enrolled_us = member.last_heard_us = now;
  member_of_peer_[peer] = number;
  tell(number, Enrolled{number, static_cast<uint64_t>(options_.timeout_us)}, actions);
  plan(now, actions);
}

void CoordinatorState::on_member_message(uint32_t number, const Control& message, TimeUs now,
                                         Actions& actions) {
  if (std::holds_alternative<Heartbeat>(message)) return tell(number, Heartbeat{}, actions);
  if (const auto* hosting = std::get_if<Hosting>(&message)) return on_hosting(number, *hosting, now, actions);
  if (const auto* formed = std::get_if<Formed>(&message)) return on_formed(number, *formed, now, actions);
  if (const auto* entered = std::get_if<Entered>(&message)) return on_entered(number, *entered, now, actions);
  if (const auto* broken = std::get_if<Broken>(&message)) return on_broken(number, *broken, now, actions);
  if (const auto* resign = std::get_if<Resign>(&message)) return on_resign(number, *resign, now, actions);
  if (const auto* aware = std::get_if<Resigned>(&message)) {
    return on_aware(aware->member, number, now, actions);
  }
  Member& member = members_.at(number);
  const std::string why = member.text + " sent a message that members do not send";
  refuse(member.peer, data_loss(why), actions);
  lose(number, why, now, actions);
}

CoordinatorState::Generation* CoordinatorState::find(uint32_t generation) {
  if (present_ && present_->number == generation) return &*present_;
  return next_ && next_->number == generation ? &*next_ : nullptr;
}

void CoordinatorState::on_hosting(uint32_t number, const Hosting& hosting, TimeUs now, Actions& actions) {
  Generation* const generation = find(hosting.generation);
  if (generation == nullptr || generation->members[0] != number || !generation->scheduler.empty()) return;
  if (hosting.scheduler.empty()) {
    const std::string why = members_.at(number).text + " runs a scheduler, but did not say where";
    refuse(members_.at(number).peer, data_loss(why), actions);
    return lose(number, why, now, actions);
  }
  generation->scheduler = hosting.scheduler;
  for (const uint32_t member : generation->members) {
    if (member == number) continue;
    tell(member,
         Form{generation->number, generation->epoch, generation->members, generation->scheduler,
              generation->why},
         actions);
  }
}

void CoordinatorState::on_formed(uint32_t number, const Formed& formed, TimeUs now, Actions& actions) {
  Generation* const generation = find(formed.generation);
  if (generation == nullptr || !generation->has(number)) return;
  generation->formed.insert(number);
  if (!generation->is_formed()) return;
  const std::vector<uint32_t> members = generation->members;
  // Nobody else can agree to enter the first one.
  if (!present_) enter(std::exchange(next_, std::nullopt).value(), now, actions);
  // Members that resign have waited for it.
  for (const uint32_t member : members) {
    if (!ended_) on_aware(member, member, now, actions);
  }
  if (!ended_) plan(now, actions);
}

void CoordinatorState::on_entered(uint32_t number, const Entered& entered, TimeUs now, Actions& actions) {
  if (entered.generation <= epoch_) return;
  const bool is_next = next_ && next_->number == entered.generation;
  const auto cancelled = cancelled_.find(entered.generation);
  if (!is_next && cancelled == cancelled_.end()) return;
  if (!(is_next ? *next_ : cancelled->second).has(number)) return;
  Generation generation = is_next ? std::exchange(next_, std::nullopt).value() : cancelled->second;
  enter(std::move(generation), now, actions);
  if (is_next) return plan(now, actions);
  // Members that have heard that it was cancelled have no node of it any more.
  recover("a worker was lost when the generation began", now, actions);
}

void CoordinatorState::enter(Generation generation, TimeUs now, Actions& actions) {
  cancel_next(actions);
  cancelled_.clear();
  epoch_ = generation.number;
  generation.formed.insert(generation.members.begin(), generation.members.end());
  present_ = std::move(generation);
  recover_us_ = kNever;
  breaks_without_loss_ = 0;
  for (const uint32_t member : living(*present_)) tell(member, Entered{epoch_}, actions);
  tell_shortage(now, actions);
}

void CoordinatorState::on_broken(uint32_t number, const Broken& broken, TimeUs now, Actions& actions) {
  if (next_ && next_->number == broken.generation && next_->has(number)) {
    cancel_next(actions);
    plan_again_us_ = now + options_.timeout_us / kPartsToBlame;
    // Later on, the present generation goes on meanwhile.
    if (!present_) is_beyond_repair(broken.text, actions);
    return;
  }
  if (!present_ || present_->number != broken.generation || !present_->has(number)) return;
  const bool is_whole = living(*present_).size() == present_->members.size();
  if (!is_whole) return recover(broken.text, now, actions);
  if (recover_us_ != kNever) return;
  recover_us_ = now + options_.timeout_us / kPartsToBlame;
  broken_ = broken.text;
}

bool CoordinatorState::is_beyond_repair(const std::string& why, Actions& actions) {
  if (++breaks_without_loss_ <= kMostBreaksWithoutLoss) return false;
  fail(unavailable("all workers are there, but they cannot work together: " + why), actions);
  return true;
}

void CoordinatorState::on_resign(uint32_t number, const Resign& resign, TimeUs now, Actions& actions) {
  Member& member = members_.at(number);
  if (member.resigns) return;
  if (!resign.cause.empty()) {
    const std::string why = member.text + " ended by " + resign.cause;
    tell(number, Resigned{number, member.text}, actions);
    close(member, actions);
    return lose(number, why, now, actions);
  }
  member.resigns = true;
  member.others_stay = resign.others_stay;
  for (const auto& [other, its] : members_) {
    if (other == number || its.is_gone) continue;
    member.unaware.insert(other);
    tell(other, Resigned{number, member.text}, actions);
  }
  on_aware(number, number, now, actions);
}

void CoordinatorState::on_aware(uint32_t leaver, uint32_t number, TimeUs now, Actions& actions) {
  const auto found = members_.find(leaver);
  if (found == members_.end() || !found->second.resigns || found->second.is_gone) return;
  Member& member = found->second;
  member.unaware.erase(number);
  if (!member.unaware.empty()) return;
  // It may have results that others need: on_formed() continues.
  if (present_ && present_->has(leaver) && !present_->is_formed()) return;
  member.is_gone = true;
  finishes_ = finishes_ || (!member.others_stay && present_ && present_->has(leaver));
  tell(leaver, Resigned{leaver, member.text}, actions);
  close(member, actions);
  // Others that resign need not wait for it.
  on_gone(leaver, now, actions);
  if (ended_) return;
  if (finishes_ || (next_ && next_->has(leaver))) cancel_next(actions);
  const std::string why = member.text + " has left";
  end_if_nobody_is_left(why, actions);
  if (ended_) return;
  tell_shortage(now, actions);
  // A program that is done does not disturb the others: they go on without it when they need to
  // (Broken), as they may be done as well.
  if (!finishes_ && present_ && present_->has(leaver)) return recover(why, now, actions);
  plan(now, actions);
}

void CoordinatorState::on_gone(uint32_t number, TimeUs now, Actions& actions) {
  for (auto& [leaver, its] : members_) {
    if (its.resigns && !its.is_gone) on_aware(leaver, number, now, actions);
  }
}

void CoordinatorState::on_closed(PeerId peer, const Status& why, TimeUs now, Actions& actions) {
  const auto found = member_of_peer_.find(peer);
  if (found == member_of_peer_.end()) return;
  const uint32_t number = found->second;
  member_of_peer_.erase(found);
  if (ended_) return;
  const Member& member = members_.at(number);
  if (!member.is_gone)
    lose(number, member.text + " ended without leaving (" + why.message() + ")", now, actions);
}

void CoordinatorState::lose(uint32_t number, const std::string& why, TimeUs now, Actions& actions) {
  Member& member = members_.at(number);
  if (member.is_gone) return;
  member.is_gone = true;
  if (!present_ || present_->has(number)) breaks_without_loss_ = 0;
  on_gone(number, now, actions);
  if (ended_) return;
  if (next_ && next_->has(number)) cancel_next(actions);
  end_if_nobody_is_left(why, actions);
  if (ended_) return;
  if (present_ && present_->has(number)) return recover(why, now, actions);
  plan(now, actions);
}

void CoordinatorState::end_if_nobody_is_left(const std::string& why, Actions& actions) {
  if (!present_ || !living(*present_).empty()) return;
  if (finishes_) {
    ended_ = true;
    return refuse_all(unavailable("the job is over"), actions);
  }
  fail(unavailable("no worker is left that has the state of the training; the last one: " + why), actions);
}

void CoordinatorState::recover(const std::string& why, TimeUs now, Actions& actions) {
  cancel_next(actions);
  recover_us_ = kNever;
  Generation recovery{.number = ++last_generation_,
                      .epoch = epoch_,
                      .members = living(*present_),
                      .scheduler = {},
                      .formed = {},
                      .why = why};
  present_ = std::move(recovery);
  start_forming(*present_, actions);
  tell_shortage(now, actions);
}

void CoordinatorState::start_forming(const Generation& generation, Actions& actions) {
  tell(generation.members[0],
       Form{generation.number, generation.epoch, generation.members, "", generation.why}, actions);
}

void CoordinatorState::cancel_next(Actions& actions) {
  if (!next_) return;
  for (const uint32_t member : living(*next_)) tell(member, Cancelled{next_->number}, actions);
  cancelled_[next_->number] = std::move(*next_);
  next_.reset();
}

std::vector<uint32_t> CoordinatorState::living(const Generation& generation) const {
  std::vector<uint32_t> members = generation.members;
  std::erase_if(members, [this](uint32_t member) { return members_.at(member).is_gone; });
  return members;
}

std::vector<uint32_t> CoordinatorState::newcomers() const {
  std::vector<uint32_t> waiting;
  for (const auto& [number, member] : members_) {
    if (!member.is_gone && !member.resigns && !(present_ && present_->has(number))) waiting.push_back(number);
  }
  return waiting;
}

uint32_t CoordinatorState::num_active() const {
  return present_ ? static_cast<uint32_t>(living(*present_).size()) : 0;
}

uint32_t CoordinatorState::num_waiting() const { return static_cast<uint32_t>(newcomers().size()); }

size_t CoordinatorState::least_workers() const { return std::max(1u, options_.min_workers); }

TimeUs CoordinatorState::plan_us() const {
  if (ended_ || next_ || (present_ && !present_->is_formed())) return kNever;
  const auto resigns = [this](uint32_t member) { return members_.at(member).resigns; };
  if (present_ && std::ranges::any_of(present_->members, resigns)) return kNever;
  const size_t present = present_ ? living(*present_).size() : 0;
  const std::vector<uint32_t> waiting = finishes_ ? std::vector<uint32_t>() : newcomers();
  if (!finishes_ && present + waiting.size() < least_workers()) return kNever;
  if (!present_) {
    const bool are_all = waiting.size() >= options_.initial_workers;
    return are_all ? plan_again_us_ : std::max(plan_again_us_, start_deadline_us_);
  }
  const bool is_full = options_.max_workers > 0 && present >= options_.max_workers;
  const bool is_renumbering = present_->number != present_->epoch;
  if (!is_renumbering && (waiting.empty() || is_full || finishes_)) return kNever;
  if (waiting.empty() || is_full) return plan_again_us_;
  return std::max(plan_again_us_, members_.at(waiting.back()).enrolled_us + options_.gather_us);
}

void CoordinatorState::plan(TimeUs now, Actions& actions) {
  if (now < plan_us()) return;
  Generation generation{.number = ++last_generation_,
                        .epoch = last_generation_,
                        .members = present_ ? living(*present_) : std::vector<uint32_t>(),
                        .scheduler = {},
                        .formed = {},
                        .why = {}};
  for (const uint32_t newcomer : finishes_ ? std::vector<uint32_t>() : newcomers()) {
    if (options_.max_workers > 0 && generation.members.size() >= options_.max_workers) break;
    generation.members.push_back(newcomer);
  }
  next_ = std::move(generation);
  start_forming(*next_, actions);
}

void CoordinatorState::tell_shortage(TimeUs now, Actions& actions) {
  if (!present_) return;
  const uint32_t active = num_active();
  const bool is_short = active < options_.min_workers && !finishes_;
  if (is_short == (shortage_deadline_us_ != kNever)) return;
  shortage_deadline_us_ = is_short ? later(now, options_.shortage_timeout_us) : kNever;
  for (const uint32_t member : living(*present_)) {
    tell(member, Missing{is_short ? options_.min_workers - active : 0}, actions);
  }
}

bool CoordinatorState::lacks_workers_to_start() const {
  return !present_ && !next_ && newcomers().size() < least_workers();
}

void CoordinatorState::on_tick(TimeUs now, Actions& actions) {
  if (ended_) return;
  // If this process stood still, messages that have arrived meanwhile have not been read yet.
  const bool was_stopped = now - last_tick_us_ > options_.timeout_us / 2;
  last_tick_us_ = now;
  for (auto& [number, member] : members_) {
    if (member.is_gone || ended_) continue;
    if (was_stopped) member.last_heard_us = std::max(member.last_heard_us, now - options_.timeout_us / 2);
    const TimeUs silence_us = now - member.last_heard_us;
    if (silence_us < options_.timeout_us) continue;
    const std::string why = member.text + " has been silent for " + seconds(silence_us);
    refuse(member.peer, unavailable(why), actions);
    lose(number, why, now, actions);
  }
  if (ended_) return;
  if (now >= recover_us_) {
    if (is_beyond_repair(broken_, actions)) return;
    recover(broken_, now, actions);
  }
  if (now >= shortage_deadline_us_) {
    return fail(deadline_exceeded("the job has had fewer than " + std::to_string(options_.min_workers) +
                                  " workers for " + seconds(options_.shortage_timeout_us)),
                actions);
  }
  if (now >= start_deadline_us_ && lacks_workers_to_start()) {
    return fail(
        deadline_exceeded("expected at least " + std::to_string(least_workers()) + " workers within " +
                          seconds(options_.start_timeout_us) + ", got " + std::to_string(newcomers().size())),
        actions);
  }
  plan(now, actions);
}

TimeUs CoordinatorState::next_tick_us() const {
  if (ended_) return kNever;
  TimeUs next_us =
      std::min({recover_us_, shortage_deadline_us_, plan_us(), last_tick_us_ + options_.timeout_us / 4});
  if (lacks_workers_to_start()) next_us = std::min(next_us, start_deadline_us_);
  return next_us;
}

void CoordinatorState::on_shutdown(const std::string& text, Actions& actions) {
  if (!ended_) fail(unavailable(text), actions);
}

void CoordinatorState::fail(Status why, Actions& actions) {
  ended_ = true;
  failure_ = std::move(why);
  refuse_all(failure_, actions);
}

void CoordinatorState::refuse_all(const Status& why, Actions& actions) {
  for (auto& [number, member] : members_) {
    if (!member.is_gone) refuse(member.peer, why, actions);
  }
}

void CoordinatorState::refuse(PeerId peer, const Status& why, Actions& actions) {
  actions.push_back(SendTo{peer, Lost{why.code(), why.message()}});
  actions.push_back(ClosePeer{peer});
  member_of_peer_.erase(peer);
}

void CoordinatorState::tell(uint32_t number, Control message, Actions& actions) {
  actions.push_back(SendTo{members_.at(number).peer, std::move(message)});
}

void CoordinatorState::close(Member& member, Actions& actions) {
  actions.push_back(ClosePeer{member.peer});
  member_of_peer_.erase(member.peer);
}

}  // namespace byteps::protocol
