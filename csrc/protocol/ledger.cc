#include "protocol/ledger.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "base/check.h"
#include "protocol/codec_bytes.h"
#include "protocol/rounds.h"

namespace byteps::protocol {
namespace {

constexpr uint32_t kMaxLedgerNames = 1 << 20;
// Of one name. Failures before are those of rounds that all members have been to.
constexpr size_t kMaxFailures = 64;
constexpr size_t kMaxParts = 1 << 20;

// Each is above the one before.
bool ascend(const auto& items, auto member) {
  return std::ranges::adjacent_find(items, std::ranges::greater_equal(), member) == items.end();
}

void entry_fields(auto& codec, auto& entry) {
  codec.text("name", entry.name, kMaxNameBytes);
  codec.number("last call", entry.last_call);
  codec.flag("in flight", entry.is_in_flight);
  codec.number("result's round", entry.result_round);
  codec.number("result's bytes", entry.result_bytes, 0, kMaxTensorBytes);
  constexpr size_t kLeastFailureBytes = sizeof(uint64_t) + sizeof(uint8_t) + sizeof(uint16_t);
  codec.list("failures", entry.failures, kMaxFailures, kLeastFailureBytes, [](auto& each, auto& failure) {
    each.number("round", failure.round, 1);
    each.enumeration("code", failure.code, status_code_from);
    each.text("text", failure.text, kMaxTextBytes);
    each.require(failure.code != StatusCode::kOk, "the code of a failure is a failure");
  });
  codec.require(ascend(entry.failures, &LedgerEntry::Failure::round), "failures are ordered by round");
  codec.list("parts", entry.parts, kMaxParts, 2 * sizeof(uint64_t), [](auto& each, auto& part) {
    each.number("offset", part.offset, 0, kMaxTensorBytes);
    each.number("bytes", part.bytes, 1, kMaxTensorBytes);
  });
  codec.require(is_ordered(entry.parts), "parts are ordered, with gaps between them");
  codec.require(entry.is_in_flight || entry.parts.empty(), "parts are of a push_pull in flight");
}

void table_fields(auto& codec, auto& table) {
  constexpr size_t kLeastEntryBytes =
      sizeof(uint16_t) + 3 * sizeof(uint64_t) + sizeof(uint8_t) + 2 * sizeof(uint32_t);
  codec.list("entries", table, kMaxLedgerNames, kLeastEntryBytes,
             [](auto& each, auto& entry) { entry_fields(each, entry); });
  codec.require(ascend(table, &LedgerEntry::name), "entries are ordered by name");
}

Status gone_on(const std::string& name, uint64_t round, uint64_t reached) {
  return aborted(describe_round(round) + " of '" + name + "': another rank has gone on to " +
                 describe_round(reached) + " without it");
}

// What all ranks know of one name; null: a rank has never used it.
using Entries = std::vector<const LedgerEntry*>;

// What one rank has of the result of a round, and whether it waits for the rest.
struct Share {
  ByteRanges parts;
  bool has_all = false;
  bool waits = false;
};

// Between two neighbours of the result, each rank has all or nothing.
std::set<uint64_t> cuts_of(const std::vector<Share>& shares) {
  std::set<uint64_t> cuts;
  for (const Share& share : shares) {
    for (const ByteRange& part : share.parts) cuts.insert({part.offset, part.end()});
  }
  return cuts;
}

std::vector<Share> shares_in(uint64_t round, const Entries& entries) {
  std::vector<Share> shares(entries.size());
  for (size_t rank = 0; rank < entries.size(); ++rank) {
    const LedgerEntry* const entry = entries[rank];
    if (entry == nullptr) continue;
    Share& share = shares[rank];
    share.has_all = entry->result_round == round;
    share.waits = entry->is_in_flight && entry->last_call == round;
    if (share.has_all) {
      add(share.parts, {0, entry->result_bytes});
    } else if (share.waits) {
      share.parts = entry->parts;
    }
  }
  return shares;
}

// Plans that the ranks which wait for the result of a round get what others have of it.
class Distribution {
 public:
  explicit Distribution(size_t num_ranks) : sent_(num_ranks) {}

  void add(const std::string& name, uint64_t round, const Entries& entries, Reconciliation& result) {
    const std::vector<Share> shares = shares_in(round, entries);
    std::optional<uint64_t> from;
    const std::set<uint64_t> cuts = cuts_of(shares);
    for (const uint64_t to : cuts) {
      if (from) add(name, round, shares, {*from, to - *from}, result);
      from = to;
    }
    if (cuts.empty()) add(name, round, shares, {}, result);  // an empty result is one, too
  }

 private:
  void add(const std::string& name, uint64_t round, const std::vector<Share>& shares, const ByteRange& part,
           Reconciliation& result) {
    Reconciliation::Transfer transfer{.name = name, .round = round, .part = part, .holder = 0, .to = {}};
    std::optional<uint32_t> holder;
    for (uint32_t rank = 0; rank < shares.size(); ++rank) {
      const Share& share = shares[rank];
      const bool has_it = share.has_all || (part.bytes > 0 && contains(share.parts, part));
      if (has_it && (!holder || sent_[rank] < sent_[*holder])) holder = rank;
      if (!has_it && share.waits) transfer.to.push_back(rank);
    }
    if (!holder || transfer.to.empty()) return;
    transfer.holder = *holder;
    sent_[*holder] += part.bytes;
    result.transfers.push_back(std::move(transfer));
  }

  std::vector<uint64_t> sent_;  // bytes, by rank
};

void reconcile_name(const std::string& name, const Entries& entries, Distribution& distribution,
                    Reconciliation& result) {
  uint64_t complete = 0;  // last round of which a rank has the whole result
  uint64_t reached = 0;   // by any rank, also by one that is lost now
  std::map<uint64_t, Status> failures;
  for (const LedgerEntry* const entry : entries) {
    if (entry == nullptr) continue;
    complete = std::max(complete, entry->result_round);
    reached = std::max(reached, entry->last_call);
    for (const auto& [round, code, text] : entry->failures) failures.try_emplace(round, Status(code, text));
  }
  if (!failures.empty()) reached = std::max(reached, failures.rbegin()->first);
  // All ranks have contributed to a round that has a result, so they have been to it.
  failures.erase(failures.begin(), failures.upper_bound(complete));
  for (const LedgerEntry* const entry : entries) {
    if (entry == nullptr || !entry->is_in_flight || entry->last_call == complete) continue;
    if (entry->last_call < reached)
      failures.try_emplace(entry->last_call, gone_on(name, entry->last_call, reached));
  }
  if (complete > 0) distribution.add(name, complete, entries, result);
  if (reached > complete && !failures.contains(reached)) distribution.add(name, reached, entries, result);
  for (auto& [round, why] : failures) result.failures.push_back({name, round, std::move(why)});
}

}  // namespace

std::vector<std::byte> encode(const LedgerTable& table) {
  std::vector<std::byte> bytes;
  ByteWriter writer(bytes);
  table_fields(writer, table);
  return bytes;
}

Result<LedgerTable> decode_ledger(Bytes bytes) {
  LedgerTable table;
  ByteReader reader(bytes, "ledger");
  table_fields(reader, table);
  BPS_RETURN_IF_ERROR(reader.finish());
  return table;
}

Reconciliation reconcile(const std::vector<LedgerTable>& tables) {
  std::map<std::string, Entries> by_name;
  for (size_t rank = 0; rank < tables.size(); ++rank) {
    for (const LedgerEntry& entry : tables[rank]) {
      Entries& entries = by_name[entry.name];
      entries.resize(tables.size());
      entries[rank] = &entry;
    }
  }
  Reconciliation result;
  Distribution distribution(tables.size());
  for (const auto& [name, entries] : by_name) reconcile_name(name, entries, distribution, result);
  return result;
}

void Ledger::begin(Name& name, uint64_t step) {
  BPS_CHECK(!name.is_in_flight) << "a push_pull of this name is in flight";
  name.last_call = next_round(name.last_call, step);
}

std::optional<Status> Ledger::start(const std::string& name, uint64_t step) {
  Name& known = names_[name];
  begin(known, step);
  if (auto failure = failure_of(name, known)) return failure;
  known.is_in_flight = true;
  known.parts.clear();
  ++in_flight_;
  return std::nullopt;
}

bool Ledger::refuse(const std::string& name, uint64_t step, const Status& why) {
  Name& known = names_[name];
  begin(known, step);
  if (failure_of(name, known)) return false;
  note_failure(known, known.last_call, why);
  return true;
}

void Ledger::add_part(const std::string& name, const ByteRange& part) {
  Name& known = names_.at(name);
  BPS_CHECK(known.is_in_flight) << name << " is not in flight";
  add(known.parts, part);
}

const ByteRanges& Ledger::parts(const std::string& name) const { return names_.at(name).parts; }

void Ledger::finish(const std::string& name, Values values, uint64_t bytes) {
  Name& known = names_.at(name);
  BPS_CHECK(known.is_in_flight) << name << " is not in flight";
  known.is_in_flight = false;
  --in_flight_;
  known.result_round = known.last_call;
  known.result_bytes = bytes;
  known.result_order = ++last_order_;
  known.values = std::move(values);
  known.is_held = true;
  // All members have contributed to this round, so they have been to those before.
  known.failures.erase(known.failures.begin(), known.failures.lower_bound(known.last_call));
}

void Ledger::fail(const std::string& name, const Status& why) {
  Name& known = names_.at(name);
  BPS_CHECK(known.is_in_flight) << name << " is not in flight";
  known.is_in_flight = false;
  --in_flight_;
  note_failure(known, known.last_call, why);
}

// A rank that knows of a failure has been past the rounds before.
std::optional<Status> Ledger::failure_of(const std::string& name, const Name& known) {
  const auto failure = known.failures.lower_bound(known.last_call);
  if (failure == known.failures.end()) return std::nullopt;
  const auto& [round, why] = *failure;
  return round == known.last_call ? why : gone_on(name, known.last_call, round);
}

void Ledger::note_failure(Name& name, uint64_t round, const Status& why) {
  name.failures.try_emplace(round, why);
  if (name.failures.size() > kMaxFailures) name.failures.erase(name.failures.begin());
}

bool Ledger::is_in_flight(const std::string& name) const {
  const auto found = names_.find(name);
  return found != names_.end() && found->second.is_in_flight;
}

Ledger::Values Ledger::memory_for(const std::string& name, uint64_t bytes) const {
  const auto found = names_.find(name);
  if (found != names_.end() && found->second.values && found->second.result_bytes == bytes)
    return found->second.values;
  return Values(new std::byte[std::max<uint64_t>(bytes, 1)]);
}

Ledger::Values Ledger::held(const std::string& name, uint64_t round) const {
  const auto found = names_.find(name);
  return found != names_.end() && found->second.is_held && found->second.result_round == round
             ? found->second.values
             : nullptr;
}

void Ledger::release(uint64_t mark) {
  for (auto& [name, known] : names_) {
    if (known.result_order > mark) continue;
    if (!std::exchange(known.is_held, false)) known.values.reset();
  }
}

LedgerTable Ledger::table() const {
  LedgerTable table;
  for (const auto& [name, known] : names_) {
    LedgerEntry entry;
    entry.name = name;
    entry.last_call = known.last_call;
    entry.is_in_flight = known.is_in_flight;
    if (known.is_in_flight) entry.parts = known.parts;
    if (known.is_held) {
      entry.result_round = known.result_round;
      entry.result_bytes = known.result_bytes;
    }
    for (const auto& [round, why] : known.failures)
      entry.failures.push_back({round, why.code(), why.message()});
    table.push_back(std::move(entry));
  }
  std::ranges::sort(table, {}, &LedgerEntry::name);
  return table;
}

std::vector<std::pair<std::string, Status>> Ledger::apply(
    const std::vector<Reconciliation::Failure>& failures) {
  std::vector<std::pair<std::string, Status>> failed;
  for (const auto& [name, round, why] : failures) {
    Name& known = names_[name];
    if (round < known.last_call || (round == known.last_call && !known.is_in_flight)) continue;
    note_failure(known, round, why);
    if (!known.is_in_flight) continue;
    const Status own = failure_of(name, known).value();
    fail(name, own);
    failed.emplace_back(name, own);
  }
  return failed;
}

void Ledger::clear() {
  BPS_CHECK(in_flight_ == 0) << in_flight_ << " push_pulls are in flight";
  names_.clear();
}

}  // namespace byteps::protocol
