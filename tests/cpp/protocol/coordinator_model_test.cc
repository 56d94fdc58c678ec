// CoordinatorState with simulated members, which follow the protocol over connections that deliver in
// order, each message after a random time. Members come, die, resign, and their nodes break.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "protocol/coordinator_state.h"

namespace byteps::protocol {
namespace {

class ElasticJob {
 public:
  explicit ElasticJob(uint32_t seed) : random_(seed), state_(options(), 0) {
    finishes_ = below(4) == 0;
    for (uint32_t i = 0; i < initial_; ++i) at(below(kTimeoutUs), [this] { come(); });
    const uint64_t faults = below(8);
    for (uint64_t i = 0; i < faults; ++i)
      at(kTimeoutUs / 2 + below(kFaultsEndUs), [this] { make_a_fault(); });
    if (finishes_) at(kFaultsEndUs, [this] { is_over_ = true; });
  }

  void run() {
    while (now_ < kEndUs && !state_.has_ended() && !testing::Test::HasFailure()) {
      const TimeUs tick_us = state_.next_tick_us();
      if (events_.empty() || tick_us <= events_.top().at_us) {
        now_ = std::max(now_, tick_us);
        apply([&](auto& actions) { state_.on_tick(now_, actions); });
        if (!state_.has_ended()) {
          ASSERT_GT(state_.next_tick_us(), now_);
        }
        if (now_ > 2 * kFaultsEndUs && has_settled()) break;
        continue;
      }
      now_ = events_.top().at_us;
      const auto run = std::move(events_.top().run);
      events_.pop();
      run();
    }
    check_the_end();
  }

 private:
  static constexpr TimeUs kTimeoutUs = 1'000'000;
  static constexpr TimeUs kHeartbeatUs = kTimeoutUs / 3;
  static constexpr TimeUs kMostDelayUs = kTimeoutUs / 20;
  static constexpr TimeUs kFaultsEndUs = 8 * kTimeoutUs;
  static constexpr TimeUs kEndUs = 60 * kTimeoutUs;

  using Numbers = std::vector<uint32_t>;

  // A generation as its members' nodes see it. Nodes of a fixed roster start when all are there, and all
  // fail when one is gone.
  struct Nodes {
    Form form;
    std::set<uint32_t> joined;
    bool is_broken = false;
    // Of a recovery: commits that each has completed, and whether it is in another one.
    std::map<uint32_t, std::pair<uint32_t, bool>> tables;
    // Of each collective of a commit: what each is ready to enter, and whether it hears of a shortage.
    std::map<uint32_t, std::map<uint32_t, std::pair<uint32_t, bool>>> flags;
  };

  struct Node {
    uint32_t generation = 0;
    bool has_started = false;
  };

  // What a worker does, without its data. See elastic/async_elastic_node.h.
  struct Member {
    PeerId peer = 0;
    uint32_t number = 0;  // 0: not enrolled yet
    bool is_alive = true;
    bool is_connected = true;
    TimeUs last_sent_us = 0;  // time at which its last message arrives
    TimeUs last_told_us = 0;
    uint32_t epoch = 0;
    uint32_t present = 0;  // 0: no node of it
    bool is_frozen = true;
    bool is_drained = true;
    bool is_exchanging = false;
    std::optional<Node> next;
    std::optional<Node> recovering;
    std::map<uint32_t, Form> planned;
    uint32_t entering = 0;
    bool is_in_commit = false;
    bool waits_for_workers = false;  // within a commit
    uint32_t commits = 0;            // collectives that it has completed in this epoch
    std::optional<Resign> resign;    // instead of its next commit
    bool is_ready_to_leave = false;  // it has resigned: makes no more commits
    uint32_t missing = 0;
  };

  struct Event {
    TimeUs at_us;
    uint64_t order;
    mutable std::function<void()> run;
    bool operator<(const Event& other) const {
      return at_us != other.at_us ? at_us > other.at_us : order > other.order;
    }
  };

  uint64_t below(uint64_t limit) { return random_() % limit; }
  TimeUs delay() {
    return static_cast<TimeUs>(below(8) == 0 ? below(kMostDelayUs) : below(kMostDelayUs / 20));
  }
  void at(TimeUs at_us, std::function<void()> run) {
    events_.push({std::max(at_us, now_), ++last_event_, std::move(run)});
  }
  void later(std::function<void()> run) { at(now_ + delay(), std::move(run)); }

  CoordinatorOptions options() {
    initial_ = 1 + static_cast<uint32_t>(below(4));
    min_ = below(2) == 0 ? 1 : 1 + static_cast<uint32_t>(below(initial_));
    max_ = below(2) == 0 ? 0 : initial_ + static_cast<uint32_t>(below(2));
    return {.min_workers = min_,
            .max_workers = max_,
            .initial_workers = initial_,
            .start_timeout_us = 4 * kTimeoutUs,
            .timeout_us = kTimeoutUs,
            .shortage_timeout_us = 2 * kEndUs,
            .gather_us = static_cast<TimeUs>(below(kTimeoutUs / 4)),
            .version = "1"};
  }

  // The coordinator

  template <typename Body>
  void apply(Body body) {
    CoordinatorState::Actions actions;
    body(actions);
    ASSERT_GE(state_.epoch(), last_epoch_) << "epochs only grow";
    last_epoch_ = state_.epoch();
    for (const SchedulerAction& action : actions) {
      if (const auto* send = std::get_if<SendTo>(&action)) deliver(send->peer, send->message);
      if (const auto* close = std::get_if<ClosePeer>(&action)) closed_.insert(close->peer);
    }
  }
  void deliver(PeerId peer, const Control& message) {
    if (closed_.contains(peer)) return;
    Member& member = *members_.at(peer);
    if (const auto* form = std::get_if<Form>(&message)) check_form(*form);
    member.last_told_us = std::max(member.last_told_us, now_ + delay());
    at(member.last_told_us, [this, &member, message] {
      if (member.is_alive) on_coordinator(member, message);
    });
  }
  void check_form(const Form& form) {
    ASSERT_EQ(std::set(form.members.begin(), form.members.end()).size(), form.members.size());
    ASSERT_FALSE(form.members.empty());
    const auto [known, is_new] = forms_.try_emplace(form.generation, form);
    if (!is_new) {
      ASSERT_EQ(known->second.members, form.members) << "a roster never changes";
      return;
    }
    ASSERT_EQ(known, std::prev(forms_.end())) << "generations only grow";
    ASSERT_EQ(form.is_recovery(), form.epoch == last_epoch_) << "recoveries are those of the present epoch";
    if (form.epoch == 0 || last_epoch_ == 0) return;
    // Those of the epoch come first, in their order.
    const Numbers& before = forms_.at(last_epoch_).members;
    Numbers survivors;
    for (const uint32_t member : before)
      if (std::ranges::find(form.members, member) != form.members.end()) survivors.push_back(member);
    ASSERT_TRUE(std::equal(survivors.begin(), survivors.end(), form.members.begin()));
    ASSERT_FALSE(survivors.empty());
    if (form.is_recovery()) {
      ASSERT_EQ(survivors.size(), form.members.size());
    }
    if (max_ > 0) {
      ASSERT_LE(form.members.size(), max_);
    }
  }
  void send(Member& member, const Control& message) {
    member.last_sent_us = std::max(member.last_sent_us, now_ + delay());
    at(member.last_sent_us, [this, &member, message] {
      if (member.is_connected)
        apply([&](auto& actions) { state_.on_message(member.peer, message, now_, actions); });
    });
  }
  void send_heartbeats(Member& member) {
    if (!member.is_alive) return;
    send(member, Heartbeat{});
    at(now_ + kHeartbeatUs, [this, &member] { send_heartbeats(member); });
  }

  // Members

  void come() {
    const PeerId peer = members_.size() + 1;
    Member& member = *(members_[peer] = std::make_unique<Member>());
    member.peer = peer;
    send(member, Enrol{.pid = peer, .host = "h", .version = "1"});
    at(now_ + kHeartbeatUs, [this, &member] { send_heartbeats(member); });
  }
  // Without a word, or with the end of its connection.
  void die(Member& member, bool is_silent) {
    if (!member.is_alive) return;
    member.is_alive = false;
    leave_all_nodes(member);
    if (is_silent) return;
    at(std::max(member.last_sent_us, now_ + delay()), [this, &member] { close(member); });
  }
  void close(Member& member) {
    if (!std::exchange(member.is_connected, false)) return;
    apply([&](auto& actions) { state_.on_closed(member.peer, unavailable("end of file"), now_, actions); });
  }
  void leave_all_nodes(Member& member) {
    for (auto& [number, nodes] : nodes_) leave(member, number);
    member.next.reset();
    member.recovering.reset();
    member.present = 0;
  }
  void leave(Member& member, uint32_t generation) {
    const auto found = nodes_.find(generation);
    if (found == nodes_.end() || found->second.joined.erase(member.number) == 0) return;
    break_nodes(generation);
  }
  void break_nodes(uint32_t generation) {
    Nodes& nodes = nodes_.at(generation);
    nodes.is_broken = true;
    for (const uint32_t other : nodes.joined) {
      Member& member = *by_number_.at(other);
      at(now_ + delay() * (below(4) == 0 ? 8 : 1), [this, &member, generation] {
        if (member.is_alive) on_node_failed(member, generation);
      });
    }
  }
  void on_node_failed(Member& member, uint32_t generation) {
    if (member.next && member.next->generation == generation) {
      send(member, Broken{generation, "a node is gone"});
      drop(member, member.next);
    } else if (member.recovering && member.recovering->generation == generation) {
      send(member, Broken{generation, "a node is gone"});
    } else if (member.present == generation && !member.is_frozen) {
      freeze(member);
      send(member, Broken{generation, "a node is gone"});
    }
  }
  void drop(Member& member, std::optional<Node>& node) {
    if (!node) return;
    if (&node == &member.recovering) member.is_exchanging = false;
    const uint32_t generation = node->generation;
    node.reset();
    leave(member, generation);
  }
  void freeze(Member& member) {
    member.is_frozen = true;
    if (member.present == 0) return go_on_if_ready(member);
    member.is_drained = false;
    later([this, &member, generation = member.present] {
      if (!member.is_alive || member.present != generation || !member.is_frozen) return;
      member.is_drained = true;
      member.present = 0;
      leave(member, generation);
      go_on_if_ready(member);
    });
  }
  void go_on_if_ready(Member& member) {
    if (!member.is_frozen || !member.is_drained) return;
    if (member.entering > member.epoch) enter(member, member.entering);
    if (!member.recovering || !member.recovering->has_started || member.is_exchanging) return;
    if (!member.is_frozen) return;
    member.is_exchanging = true;
    const uint32_t generation = member.recovering->generation;
    Nodes& nodes = nodes_.at(generation);
    if (nodes.is_broken) return;
    nodes.tables[member.number] = {member.commits, member.is_in_commit && !member.waits_for_workers};
    if (nodes.tables.size() < nodes.form.members.size()) return;
    note_progress(nodes);
    for (const uint32_t other : nodes.form.members) {
      Member& each = *by_number_.at(other);
      later([this, &each, generation] {
        if (each.is_alive && each.recovering && each.recovering->generation == generation)
          finish_recovery(each, generation);
      });
    }
  }
  void finish_recovery(Member& member, uint32_t generation) {
    const Nodes& nodes = nodes_.at(generation);
    uint32_t most = 0;
    for (const auto& [other, table] : nodes.tables) most = std::max(most, table.first);
    for (const auto& [other, table] : nodes.tables) {
      ASSERT_GE(table.first + 1, most) << "nobody is more than one collective ahead";
      if (table.first < most) {
        ASSERT_TRUE(table.second) << "others have completed it without this member";
      }
    }
    member.recovering.reset();
    member.is_exchanging = false;
    member.present = generation;
    member.is_frozen = false;
    const auto [completed, was_in_flight] = nodes.tables.at(member.number);
    if (completed < most) {
      on_flags(member, 0, member.missing > 0);
    } else if (was_in_flight) {
      contribute(member, 0);
    } else if (member.is_in_commit && !member.waits_for_workers) {
      contribute(member, 0);
    } else {
      go_on_waiting_for_workers(member);
    }
    if (nodes.is_broken) on_node_failed(member, generation);
  }

  void on_coordinator(Member& member, const Control& message) {
    if (const auto* enrolled = std::get_if<Enrolled>(&message)) {
      member.number = enrolled->member;
      ASSERT_TRUE(by_number_.emplace(member.number, &member).second) << "a number is used twice";
    } else if (const auto* form = std::get_if<Form>(&message)) {
      on_form(member, *form);
    } else if (const auto* entered = std::get_if<Entered>(&message)) {
      if (entered->generation <= member.epoch) return;
      if (member.epoch > 0) {
        ASSERT_TRUE(member.is_in_commit) << "it has not agreed";
      }
      member.entering = entered->generation;
      freeze(member);
    } else if (const auto* cancelled = std::get_if<Cancelled>(&message)) {
      if (member.next && member.next->generation == cancelled->generation) drop(member, member.next);
    } else if (const auto* resigned = std::get_if<Resigned>(&message)) {
      if (resigned->member != member.number) return send(member, *resigned);
      die(member, false);
    } else if (const auto* missing = std::get_if<Missing>(&message)) {
      member.missing = missing->workers;
      go_on_waiting_for_workers(member);
    } else if (std::holds_alternative<Lost>(message)) {
      ASSERT_TRUE(state_.has_ended()) << "refused: " << std::get<Lost>(message).text;
      die(member, true);
    }
  }
  void on_form(Member& member, const Form& form) {
    ASSERT_NE(std::ranges::find(form.members, member.number), form.members.end());
    if (form.epoch < member.epoch) return;
    if (form.is_recovery()) {
      if (form.epoch > member.epoch) {
        ASSERT_TRUE(member.epoch == 0 || member.is_in_commit);
        member.entering = form.epoch;
      }
      drop(member, member.next);
      drop(member, member.recovering);
      join(member, member.recovering, form);
      freeze(member);
    } else {
      drop(member, member.next);
      member.planned[form.generation] = form;
      join(member, member.next, form);
    }
  }
  void join(Member& member, std::optional<Node>& node, const Form& form) {
    const uint32_t generation = form.generation;
    node = Node{.generation = generation, .has_started = false};
    if (form.scheduler.empty()) {
      ASSERT_EQ(form.members[0], member.number);
      nodes_[generation].form = form;
      send(member, Hosting{generation, "ip:1"});
    }
    Nodes& nodes = nodes_.at(generation);
    nodes.joined.insert(member.number);
    if (nodes.joined == std::set(form.members.begin(), form.members.end()) && !nodes.is_broken) {
      for (const uint32_t other : form.members) {
        Member& each = *by_number_.at(other);
        later([this, &each, generation] { on_started(each, generation); });
      }
    }
    at(now_ + kTimeoutUs, [this, &member, generation] {  // start timeout
      for (const auto* its : {&member.next, &member.recovering}) {
        if (member.is_alive && *its && (*its)->generation == generation && !(*its)->has_started)
          return on_node_failed(member, generation);
      }
    });
  }
  void on_started(Member& member, uint32_t generation) {
    if (!member.is_alive || nodes_.at(generation).is_broken) return;
    for (auto* its : {&member.next, &member.recovering}) {
      if (!*its || (*its)->generation != generation) continue;
      (*its)->has_started = true;
      send(member, Formed{generation});
    }
    go_on_waiting_for_workers(member);
    go_on_if_ready(member);
  }
  void enter(Member& member, uint32_t epoch) {
    ASSERT_GT(epoch, member.epoch) << "epochs only grow";
    ASSERT_TRUE(member.planned.contains(epoch)) << "it has not heard of this generation";
    if (std::exchange(member.epoch, epoch) != 0) leave(member, member.present);
    const bool has_node = member.next && member.next->generation == epoch && member.next->has_started;
    if (has_node) member.next.reset();
    // Perhaps it has heard of the generation after this one already.
    if (member.next && member.next->generation <= epoch) drop(member, member.next);
    if (member.recovering && nodes_.at(member.recovering->generation).form.epoch < epoch)
      drop(member, member.recovering);
    member.present = has_node ? epoch : 0;
    member.is_frozen = !has_node;
    member.is_drained = true;
    member.commits = 0;
    member.is_in_commit = member.waits_for_workers = false;
    send(member, Entered{epoch});
    if (!has_node) send(member, Broken{epoch, "this member had given the generation up"});
    if (has_node && nodes_.at(epoch).is_broken) on_node_failed(member, epoch);
    schedule_commit(member);
  }

  // Commits

  void schedule_commit(Member& member) {
    at(now_ + 1 + static_cast<TimeUs>(below(kTimeoutUs / 4)), [this, &member, epoch = member.epoch] {
      if (!member.is_alive || member.is_in_commit || member.epoch != epoch || member.is_ready_to_leave)
        return;
      if (is_over_ && !member.resign) member.resign = Resign{};
      if (member.resign) {
        member.is_ready_to_leave = true;
        return send(member, *member.resign);
      }
      member.is_in_commit = true;
      if (!member.is_frozen) contribute(member, ready(member));
    });
  }
  static uint32_t ready(const Member& member) {
    return member.next && member.next->has_started ? member.next->generation : 0;
  }
  void contribute(Member& member, uint32_t is_ready_for) {
    member.waits_for_workers = false;
    const uint32_t generation = member.present;
    Nodes& nodes = nodes_.at(generation);
    auto& flags = nodes.flags[member.commits];
    flags[member.number] = {is_ready_for, member.missing > 0};
    if (flags.size() < nodes.form.members.size()) return;
    note_progress(nodes);
    bool agree = true;
    bool is_short = false;
    for (const auto& [other, flag] : flags) {
      agree = agree && flag.first == is_ready_for;
      is_short = is_short || flag.second;
    }
    // A loss at this very time is the hardest: some hear of the agreement before it, others never.
    if (agree && is_ready_for != 0 && now_ < kFaultsEndUs && below(4) == 0) {
      const Numbers& members = nodes_.at(is_ready_for).form.members;
      Member& unlucky = *by_number_.at(members[below(members.size())]);
      later([this, &unlucky] { die(unlucky, false); });
    }
    for (const uint32_t other : nodes.form.members) {
      Member& each = *by_number_.at(other);
      later([this, &each, generation, epoch = agree ? is_ready_for : 0, is_short] {
        if (each.is_alive && each.present == generation) on_flags(each, epoch, is_short);
      });
    }
  }
  void on_flags(Member& member, uint32_t epoch, bool is_short) {
    ASSERT_TRUE(member.is_in_commit);
    ++member.commits;
    if (epoch != 0) {
      enter(member, epoch);
      return go_on_if_ready(member);
    }
    if (is_short) {
      member.waits_for_workers = true;
      return go_on_waiting_for_workers(member);
    }
    member.is_in_commit = false;
    schedule_commit(member);
  }
  void go_on_waiting_for_workers(Member& member) {
    if (!member.waits_for_workers || member.is_frozen) return;
    if (member.missing == 0 || ready(member) != 0) contribute(member, ready(member));
  }
  void note_progress(const Nodes& nodes) {
    ASSERT_GE(nodes.form.generation, last_progress_) << "members of an older generation make progress";
    last_progress_ = nodes.form.generation;
  }

  // Faults

  void make_a_fault() {
    if (state_.has_ended()) return;
    const uint64_t kind = below(10);
    if (kind < 4) return come();
    Numbers alive;
    for (const auto& [number, member] : by_number_)
      if (member->is_alive && !member->is_ready_to_leave) alive.push_back(number);
    if (alive.size() < 2) return;
    Member& member = *by_number_.at(alive[below(alive.size())]);
    switch (kind) {
      case 4: return die(member, true);
      case 5: member.resign = Resign{.cause = {}, .others_stay = true}; return;
      case 6: member.resign = Resign{.cause = "KeyError", .others_stay = false}; return;
      case 7: {
        const std::optional<Node>& node = below(2) == 0 ? member.next : member.recovering;
        const uint32_t generation = node ? node->generation : member.present;
        if (generation != 0 && ++breaks_ <= 2) break_nodes(generation);
        return;
      }
      default: return die(member, false);
    }
  }

  // The end

  bool has_settled() const {
    if (finishes_) return false;
    uint32_t active = 0;
    uint32_t waiting = 0;
    std::set<uint32_t> generations;
    for (const auto& [number, member] : by_number_) {
      if (!member->is_alive) continue;
      if (member->epoch == 0) {
        ++waiting;
        continue;
      }
      if (member->is_frozen || member->epoch != state_.epoch()) return false;
      ++active;
      generations.insert(member->present);
    }
    if (state_.num_active() != active || state_.num_waiting() != waiting) return false;
    if (generations.size() > 1) return false;
    if (active + waiting < min_) return true;
    if (generations.empty()) return false;
    const bool is_full = max_ > 0 && active >= max_;
    return *generations.begin() == state_.epoch() && (waiting == 0 || is_full);
  }
  void check_the_end() {
    if (testing::Test::HasFailure()) return;
    if (state_.has_ended() && !state_.failure().is_ok()) {
      const std::string& why = state_.failure().message();
      if (why.find("no worker is left that has the state") != std::string::npos) {
        for (const auto& [number, member] : by_number_) {
          if (member->epoch != state_.epoch()) continue;
          ASSERT_FALSE(member->is_alive && !member->is_ready_to_leave);
        }
        return;
      }
      ASSERT_TRUE(last_epoch_ == 0 && why.find("expected at least") != std::string::npos) << why;
      return;
    }
    if (finishes_) {
      ASSERT_TRUE(state_.has_ended() || last_epoch_ == 0 || is_short()) << describe();
      return;
    }
    ASSERT_TRUE(has_settled()) << describe();
  }
  bool is_short() const { return state_.num_active() < min_; }
  std::string describe() const {
    std::string text = "epoch " + std::to_string(state_.epoch()) + ", active " +
                       std::to_string(state_.num_active()) + ", waiting " +
                       std::to_string(state_.num_waiting()) + ", min " + std::to_string(min_) + ", max " +
                       std::to_string(max_);
    for (const auto& [number, member] : by_number_) {
      if (!member->is_alive) continue;
      text += "\nmember " + std::to_string(number) + ": epoch " + std::to_string(member->epoch) +
              ", present " + std::to_string(member->present) + (member->is_frozen ? ", frozen" : "") +
              (member->is_drained ? "" : ", not drained") + (member->is_in_commit ? ", in a commit" : "") +
              (member->waits_for_workers ? ", waits for workers" : "") +
              (member->is_ready_to_leave ? ", leaves" : "") + ", next " + describe(member->next) +
              ", recovering " + describe(member->recovering);
    }
    return text;
  }
  static std::string describe(const std::optional<Node>& node) {
    if (!node) return "none";
    return std::to_string(node->generation) + (node->has_started ? " started" : "");
  }

  std::mt19937_64 random_;
  uint32_t initial_ = 0;
  uint32_t min_ = 0;
  uint32_t max_ = 0;
  CoordinatorState state_;
  TimeUs now_ = 0;
  std::priority_queue<Event> events_;
  uint64_t last_event_ = 0;
  std::map<PeerId, std::unique_ptr<Member>> members_;
  std::map<uint32_t, Member*> by_number_;
  std::set<PeerId> closed_;
  std::map<uint32_t, Nodes> nodes_;
  std::map<uint32_t, Form> forms_;
  uint32_t last_epoch_ = 0;
  uint32_t last_progress_ = 0;
  uint32_t breaks_ = 0;
  bool finishes_ = false;
  bool is_over_ = false;
};

TEST(CoordinatorModel, LivingMembersEndUpInOneGeneration) {
  for (uint32_t seed = 1; seed <= 4000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    ElasticJob(seed).run();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace byteps::protocol
