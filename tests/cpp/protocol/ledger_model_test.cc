// The guarantee of protocol/ledger.h, in random histories of several members.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "protocol/ledger.h"
#include "protocol/rounds.h"

namespace byteps::protocol {
namespace {

Ledger::Values memory_with(uint64_t content) {
  Ledger::Values values(new std::byte[sizeof(content)]);
  std::memcpy(values.get(), &content, sizeof(content));
  return values;
}

uint64_t number_in(const Ledger::Values& values) {
  uint64_t content = 0;
  std::memcpy(&content, values.get(), sizeof(content));
  return content;
}

// Members call push_pulls in the order of one program, refuse some of them, break
// off steps, and are lost. Generations end at any time, also recoveries, which then only some have
// finished. The outcome of a round is the same for all that live, and only contributions of equal
// rounds are summed.

class Programs {
 public:
  explicit Programs(uint32_t seed) : random_(seed) {
    const uint32_t workers = 2 + below(3);
    for (uint32_t member = 0; member < workers; ++member) living_.push_back(member);
    workers_.resize(workers);
  }

  void run() {
    int cuts = static_cast<int>(below(4));
    for (int i = 0; i < 4000 && !testing::Test::HasFailure(); ++i) {
      if (are_all_done()) break;
      const uint32_t member = living_[below(living_.size())];
      below(2) == 0 ? call(member) : deliver(member);
      if (below(40) == 0) release_if_possible();
      if (cuts > 0 && below(60) == 0) {
        --cuts;
        recover();
      }
    }
    ASSERT_TRUE(are_all_done()) << "somebody waits for ever";
    check_outcomes();
  }

 private:
  static constexpr int kSteps = 6;
  static constexpr const char* kCalls[] = {"a", "b", "c", "c"};  // in each step

  struct Outcome {
    bool is_ok = false;
    uint64_t content = 0;
    bool operator==(const Outcome&) const = default;
  };

  // The push_pulls of a name in one generation. Its rounds begin anew.
  struct NodeRounds {
    std::map<uint32_t, uint64_t> last;  // round of each member
    // By round: what each contributes to, as rounds of the epoch.
    std::map<uint64_t, std::map<uint32_t, uint64_t>> contributions;
    std::map<uint64_t, uint64_t> results;
    std::set<uint64_t> failed;
  };

  struct Worker {
    Ledger ledger;
    int step = 1;
    uint32_t next_call = 0;
    bool has_refused = false;                       // since its last table
    std::map<std::string, uint64_t> in_flight;      // step of the push_pull
    std::map<std::string, Ledger::Values> landing;  // memory of its result
    std::map<std::string, std::string> submitted;   // name of the node's push_pull for it
    std::map<std::string, std::map<uint64_t, Outcome>> outcomes;
  };

  uint32_t below(size_t limit) { return static_cast<uint32_t>(random_() % limit); }
  bool are_all_done() const {
    return std::ranges::all_of(living_, [this](uint32_t member) {
      return workers_[member].step > kSteps && workers_[member].in_flight.empty();
    });
  }

  // The next call of the program. The first name has no steps; all call it equally often.
  void call(uint32_t member) {
    Worker& worker = workers_[member];
    if (worker.step > kSteps) return;
    const bool breaks_off = worker.next_call > 0 && worker.step < kSteps && below(8) == 0;
    if (breaks_off || worker.next_call == std::size(kCalls)) {
      ++worker.step;
      worker.next_call = 0;
      return;
    }
    const std::string name = kCalls[worker.next_call];
    if (worker.in_flight.contains(name)) return;  // the program waits for it
    const uint64_t step = worker.next_call == 0 ? 0 : static_cast<uint64_t>(worker.step);
    if (below(10) == 0) {
      const bool is_news = worker.ledger.refuse(name, step, invalid_argument("refused"));
      note(member, name, {});
      if (is_news && !is_frozen_) refuse_in_node(member, name, step);
      worker.has_refused = true;
      ++worker.next_call;
      return;
    }
    ++worker.next_call;
    if (worker.ledger.start(name, step)) return note(member, name, {});
    worker.in_flight[name] = step;
    worker.landing[name] = memory_with(0);
    if (!is_frozen_) contribute(member, name, step);
  }
  uint64_t round_of(uint32_t member, const std::string& name) const {
    for (const LedgerEntry& entry : workers_[member].ledger.table())
      if (entry.name == name) return entry.last_call;
    return 0;
  }
  void note(uint32_t member, const std::string& name, Outcome outcome) {
    ASSERT_TRUE(workers_[member].outcomes[name].emplace(round_of(member, name), outcome).second);
  }

  uint64_t begin_in_node(uint32_t member, const std::string& name, uint64_t step) {
    NodeRounds& rounds = nodes_[name];
    uint64_t& last = rounds.last[member];
    const uint64_t round = next_round(last, step);
    // What it has skipped has failed, and so has what it contributes to after others have gone on.
    for (auto& [other, contributions] : rounds.contributions)
      if (other > last && other < round && !contributions.contains(member)) rounds.failed.insert(other);
    for (const auto& [other, its] : rounds.last)
      if (its > round && !rounds.contributions[round].contains(other)) rounds.failed.insert(round);
    last = round;
    return round;
  }
  void refuse_in_node(uint32_t member, const std::string& name, uint64_t step) {
    nodes_[name].failed.insert(begin_in_node(member, name, step));
  }
  void contribute(uint32_t member, const std::string& name, uint64_t step) {
    const std::string what = node_name(member, name);
    workers_[member].submitted[name] = what;
    const uint64_t round = begin_in_node(member, what, what == name ? step : 0);
    NodeRounds& rounds = nodes_[what];
    auto& contributions = rounds.contributions[round];
    contributions[member] = round_of(member, name);
    if (rounds.failed.contains(round) || contributions.size() < living_.size()) return;
    for (const auto& [other, epoch_round] : contributions)
      ASSERT_EQ(epoch_round, contributions.begin()->second) << "rounds of '" << name << "' are mixed up";
    rounds.results[round] = ++last_content_ * 0x0101010101010101u;  // so that all parts of it differ
  }
  // The push_pull of a node for what a member lacks of a result: the whole, or the rest.
  std::string node_name(uint32_t member, const std::string& name) {
    const ByteRanges rest = gaps(workers_[member].ledger.parts(name), sizeof(uint64_t));
    return rest == ByteRanges{{0, sizeof(uint64_t)}} ? name : name + rest_of(rest);
  }
  static std::string rest_of(const ByteRanges& rest) {
    std::string text;
    for (const auto& [offset, bytes] : rest)
      text += " " + std::to_string(offset) + "+" + std::to_string(bytes);
    return text;
  }
  // A node has summed this part.
  void land(uint32_t member, const std::string& name, const ByteRange& part, uint64_t content) {
    Worker& worker = workers_[member];
    std::memcpy(worker.landing[name].get() + part.offset,
                reinterpret_cast<const std::byte*>(&content) + part.offset, part.bytes);
    worker.ledger.add_part(name, part);
  }
  void deliver(uint32_t member) {
    Worker& worker = workers_[member];
    if (worker.in_flight.empty()) return;
    const std::string name = std::next(worker.in_flight.begin(), below(worker.in_flight.size()))->first;
    const NodeRounds& rounds = nodes_[worker.submitted[name]];
    const auto last = rounds.last.find(member);
    if (last == rounds.last.end()) return;
    const auto result = rounds.results.find(last->second);
    if (result != rounds.results.end()) {
      const ByteRange rest = gaps(worker.ledger.parts(name), sizeof(uint64_t)).front();
      const uint64_t skipped = below(2) * below(rest.bytes);
      land(member, name, {rest.offset + skipped, 1 + below(rest.bytes - skipped)}, result->second);
      finish_if_complete(member, name);
    } else if (rounds.failed.contains(last->second)) {
      worker.ledger.fail(name, aborted("a node has failed it"));
      worker.in_flight.erase(name);
      note(member, name, {});
    }
  }
  void finish_if_complete(uint32_t member, const std::string& name) {
    Worker& worker = workers_[member];
    if (!gaps(worker.ledger.parts(name), sizeof(uint64_t)).empty()) return;
    worker.ledger.finish(name, worker.landing[name], sizeof(uint64_t));
    worker.in_flight.erase(name);
    note(member, name, {true, number_in(worker.landing[name])});
  }
  // As at a commit, which all reach with nothing in flight.
  void release_if_possible() {
    for (const uint32_t member : living_) {
      const Worker& worker = workers_[member];
      if (!worker.in_flight.empty() || worker.next_call != 0 || worker.step != workers_[living_[0]].step)
        return;
    }
    for (const uint32_t member : living_) workers_[member].ledger.release(workers_[member].ledger.mark());
  }

  void go_on_a_while() {
    for (uint32_t i = below(10); i > 0; --i) call(living_[below(living_.size())]);
  }
  void recover() {
    is_frozen_ = true;
    nodes_.clear();
    bool is_done = false;
    while (!is_done) {
      go_on_a_while();
      if (living_.size() > 1 && below(2) == 0) living_.erase(living_.begin() + below(living_.size()));
      std::vector<LedgerTable> tables;
      for (const uint32_t member : living_) {
        auto table = decode_ledger(encode(workers_[member].ledger.table()));
        ASSERT_TRUE(table.is_ok()) << table.status();
        tables.push_back(std::move(*table));
        workers_[member].has_refused = false;
      }
      const Reconciliation reconciliation = reconcile(tables);
      go_on_a_while();
      // What one refuses now is not in its table: it breaks the recovery off.
      const auto has_refused = [this](uint32_t member) { return workers_[member].has_refused; };
      is_done = below(3) > 0 && std::ranges::none_of(living_, has_refused);
      for (uint32_t rank = 0; rank < living_.size(); ++rank) {
        if (is_done || (below(2) == 0 && !has_refused(living_[rank]))) finish_recovery(rank, reconciliation);
      }
    }
    is_frozen_ = false;
    for (const uint32_t member : living_)
      for (const auto& [name, step] : std::map(workers_[member].in_flight)) contribute(member, name, step);
  }
  void finish_recovery(uint32_t rank, const Reconciliation& reconciliation) {
    const uint32_t member = living_[rank];
    std::set<std::string> received;
    for (const auto& [name, round, part, holder, to] : reconciliation.transfers) {
      if (std::ranges::find(to, rank) == to.end()) continue;
      Worker& sender = workers_[living_[holder]];
      Ledger::Values values = sender.ledger.held(name, round);
      if (!values) values = sender.landing.at(name);
      ASSERT_EQ(round, round_of(member, name));
      land(member, name, part, number_in(values));
      received.insert(name);
    }
    for (const std::string& name : received) finish_if_complete(member, name);
    for (const auto& [name, why] : workers_[member].ledger.apply(reconciliation.failures)) {
      ASSERT_EQ(workers_[member].in_flight.erase(name), 1u);
      note(member, name, {});
    }
  }

  void check_outcomes() {
    std::map<std::string, std::map<uint64_t, Outcome>> all;
    for (const uint32_t member : living_) {
      for (const auto& [name, outcomes] : workers_[member].outcomes) {
        for (const auto& [round, outcome] : outcomes) {
          const auto [known, is_new] = all[name].emplace(round, outcome);
          ASSERT_EQ(known->second, outcome) << "round " << round << " of '" << name << "'";
        }
      }
    }
    // What a member has skipped has failed for the others.
    for (const uint32_t member : living_) {
      for (const auto& [name, outcomes] : all) {
        for (const auto& [round, outcome] : outcomes) {
          if (!workers_[member].outcomes[name].contains(round)) {
            ASSERT_FALSE(outcome.is_ok) << "round " << round;
          }
        }
      }
    }
  }

  std::mt19937_64 random_;
  std::vector<uint32_t> living_;  // by rank
  std::vector<Worker> workers_;
  std::map<std::string, NodeRounds> nodes_;
  bool is_frozen_ = false;
  uint64_t last_content_ = 0;
};

TEST(LedgerModel, LivingMembersGetTheSameOutcomes) {
  for (uint32_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Programs(seed).run();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace byteps::protocol
