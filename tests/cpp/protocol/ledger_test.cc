#include "protocol/ledger.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "protocol/codec_bytes.h"
#include "protocol/message_harness.h"
#include "protocol/rounds.h"

namespace byteps::protocol {
namespace {

using Lines = std::vector<std::string>;
using LedgerFailures = std::vector<LedgerEntry::Failure>;

Ledger::Values values_of(uint64_t content) {
  Ledger::Values values(new std::byte[sizeof(content)]);
  std::memcpy(values.get(), &content, sizeof(content));
  return values;
}

// What reconcile() says, in one line for each transfer and each failure.
Lines describe(const Reconciliation& reconciliation) {
  Lines texts;
  for (const auto& [name, round, part, holder, to] : reconciliation.transfers) {
    const std::string offset = part.offset == 0 ? "" : " at " + std::to_string(part.offset);
    std::string text = name + " " + std::to_string(round) + " (" + std::to_string(part.bytes) + " bytes" +
                       offset + "): " + std::to_string(holder) + " to";
    for (const uint32_t rank : to) text += " " + std::to_string(rank);
    texts.push_back(text);
  }
  for (const auto& [name, round, why] : reconciliation.failures)
    texts.push_back(name + " " + std::to_string(round) + ": " + why.to_string());
  return texts;
}

LedgerEntry with_failures(LedgerEntry entry, std::vector<uint64_t> rounds) {
  for (const uint64_t round : rounds)
    entry.failures.push_back({round, StatusCode::kInvalidArgument, "wrong " + std::to_string(round)});
  return entry;
}

LedgerEntry in_parts(LedgerEntry entry, ByteRanges parts) {
  entry.parts = std::move(parts);
  return entry;
}

// Reconciling

struct ReconcileRow {
  const char* label;
  std::vector<LedgerTable> tables;  // by rank
  Lines expected;
};

TEST(Reconcile, FollowsItsRules) {
  const ReconcileRow rows[] = {
      {"nobody has used a name", {{}, {}}, {}},
      {"nobody has the result: it is summed again",
       {{{"w", 3, true, 2, 8, {}}}, {{"w", 3, true, 2, 8, {}}}, {{"w", 2, false, 2, 8, {}}}},
       {}},
      {"nothing is in flight", {{{"w", 3, false, 3, 8, {}}}, {{"w", 3, false, 3, 8, {}}}}, {}},
      {"one has the result: the others get it",
       {{{"w", 3, true, 2, 8, {}}}, {{"w", 3, false, 3, 12, {}}}, {{"w", 3, true, 2, 8, {}}}},
       {"w 3 (12 bytes): 1 to 0 2"}},
      {"parts are there: those who lack them get them, and the rest is summed again",
       {{in_parts({"w", 3, true, 2, 8, {}}, {{0, 4}})},
        {in_parts({"w", 3, true, 2, 8, {}}, {{0, 8}, {12, 4}})},
        {{"w", 3, true, 2, 8, {}}}},
       {"w 3 (4 bytes): 0 to 2", "w 3 (4 bytes at 4): 1 to 0 2", "w 3 (4 bytes at 12): 1 to 0 2"}},
      {"who has a part sends it in turn",
       {{in_parts({"w", 3, true, 2, 8, {}}, {{0, 8}})},
        {in_parts({"w", 3, true, 2, 8, {}}, {{0, 4}})},
        {in_parts({"w", 3, true, 2, 8, {}}, {{4, 4}})}},
       {"w 3 (4 bytes): 0 to 2", "w 3 (4 bytes at 4): 2 to 1"}},
      {"one has the result, and another a part of it",
       {{{"w", 3, false, 3, 8, {}}}, {in_parts({"w", 3, true, 2, 8, {}}, {{2, 2}})}},
       {"w 3 (2 bytes): 0 to 1", "w 3 (4 bytes at 4): 0 to 1"}},
      {"an empty result",
       {{{"w", 3, false, 3, 0, {}}}, {{"w", 3, true, 2, 0, {}}}},
       {"w 3 (0 bytes): 0 to 1"}},
      {"parts are there of a round that has failed as a whole",
       {{in_parts({"w", 3, true, 2, 8, {}}, {{0, 4}})},
        {{"w", 3, true, 2, 8, {}}},
        {with_failures({"w", 3, false, 2, 8, {}}, {3})}},
       {"w 3: invalid argument: wrong 3"}},
      {"several have it: the first one sends it",
       {{{"w", 3, true, 2, 8, {}}}, {{"w", 3, false, 3, 8, {}}}, {{"w", 3, false, 3, 8, {}}}},
       {"w 3 (8 bytes): 1 to 0"}},
      {"one has it, and has begun the next one",
       {{{"w", 4, true, 3, 8, {}}}, {{"w", 3, true, 2, 8, {}}}},
       {"w 3 (8 bytes): 0 to 1"}},
      {"one has it, and the next one has failed there",
       {{with_failures({"w", 4, false, 3, 8, {}}, {4})}, {{"w", 3, true, 2, 8, {}}}},
       {"w 3 (8 bytes): 0 to 1", "w 4: invalid argument: wrong 4"}},
      {"all have released the last result", {{{"w", 3, true, 0, 0, {}}}, {{"w", 2, false, 0, 0, {}}}}, {}},
      {"a round has failed at one: it fails at all",
       {{with_failures({"w", 3, false, 0, 0, {}}, {3})},
        {{"w", 3, true, 0, 0, {}}},
        {{"w", 2, false, 0, 0, {}}},
        {}},
       {"w 3: invalid argument: wrong 3"}},
      {"several have failed at one",
       {{with_failures({"w", 4, true, 0, 0, {}}, {1, 2, 3})}, {{"w", 1, true, 0, 0, {}}}},
       {"w 1: invalid argument: wrong 1", "w 2: invalid argument: wrong 2",
        "w 3: invalid argument: wrong 3"}},
      {"the first one's reason counts",
       {{{"w", 1, false, 0, 0, {{1, StatusCode::kAborted, "a"}}}},
        {{"w", 1, false, 0, 0, {{1, StatusCode::kDataLoss, "b"}}}}},
       {"w 1: aborted: a"}},
      {"one has gone on without a round: it fails where it is in flight",
       {{{"w", 5, true, 0, 0, {}}}, {{"w", 3, true, 0, 0, {}}}},
       {"w 3: aborted: round 3 of 'w': another rank has gone on to round 5 without it"}},
      {"one that is lost now has said of a later round that it has failed",
       {{with_failures({"w", 2, false, 0, 0, {}}, {5})}, {{"w", 3, true, 0, 0, {}}}},
       {"w 3: aborted: round 3 of 'w': another rank has gone on to round 5 without it",
        "w 5: invalid argument: wrong 5"}},
      {"a result is stronger than a failure",
       {{with_failures({"w", 3, false, 0, 0, {}}, {2, 3})},
        {{"w", 3, false, 3, 8, {}}},
        {{"w", 3, true, 2, 8, {}}}},
       {"w 3 (8 bytes): 1 to 2"}},
      {"a rank has not used the name yet", {{}, {{"w", 1, true, 0, 0, {}}}}, {}},
      {"names do not depend on each other",
       {{{"a", 2, false, 2, 8, {}}, {"b", 1, true, 0, 0, {}}},
        {{"a", 2, true, 1, 8, {}}, {"c", 1, true, 0, 0, {}}}},
       {"a 2 (8 bytes): 0 to 1"}},
  };
  for (const ReconcileRow& row : rows) EXPECT_EQ(describe(reconcile(row.tables)), row.expected) << row.label;
}

TEST(Reconcile, NamesSteps) {
  const uint64_t third = next_round(0, 3);
  const Reconciliation result =
      reconcile({{{"w", next_round(0, 4), true, 0, 0, {}}}, {{"w", third, true, 0, 0, {}}}});
  ASSERT_EQ(result.failures.size(), 1u);
  EXPECT_EQ(result.failures[0].round, third);
  EXPECT_EQ(result.failures[0].why.message(), "step 3 of 'w': another rank has gone on to step 4 without it");
}

// A member's ledger

TEST(Ledger, CountsRounds) {
  Ledger ledger;
  EXPECT_FALSE(ledger.is_in_flight("w"));
  EXPECT_EQ(ledger.start("w", 0), std::nullopt);
  EXPECT_EQ(ledger.start("v", 0), std::nullopt);
  EXPECT_TRUE(ledger.is_in_flight("w"));
  EXPECT_EQ(ledger.in_flight(), 2u);
  EXPECT_EQ(ledger.table(), (LedgerTable{{"v", 1, true, 0, 0, {}}, {"w", 1, true, 0, 0, {}}}));
  ledger.finish("w", values_of(7), 8);
  EXPECT_EQ(ledger.in_flight(), 1u);
  EXPECT_EQ(ledger.table()[1], (LedgerEntry{"w", 1, false, 1, 8, {}}));
  EXPECT_EQ(ledger.start("w", 0), std::nullopt);
  EXPECT_EQ(ledger.table()[1], (LedgerEntry{"w", 2, true, 1, 8, {}})) << "the last result is held";
  ledger.fail("w", aborted("a"));
  ledger.refuse("w", 0, invalid_argument("b"));
  EXPECT_EQ(
      ledger.table()[1],
      (LedgerEntry{
          "w", 3, false, 1, 8, {{2, StatusCode::kAborted, "a"}, {3, StatusCode::kInvalidArgument, "b"}}}));
  EXPECT_EQ(ledger.start("w", 0), std::nullopt);
  ledger.finish("w", values_of(8), 8);
  EXPECT_EQ(ledger.table()[1], (LedgerEntry{"w", 4, false, 4, 8, {}}))
      << "all have been to the rounds before";
  EXPECT_EQ(ledger.start("w", 9), std::nullopt);
  EXPECT_EQ(ledger.table()[1].last_call, next_round(4, 9));
}

TEST(Ledger, HoldsTheLastResultUntilItIsReleased) {
  Ledger ledger;
  ledger.start("w", 0);
  const Ledger::Values first = values_of(7);
  ledger.finish("w", first, 8);
  EXPECT_EQ(ledger.held("w", 1), first);
  EXPECT_EQ(ledger.held("w", 2), nullptr);
  EXPECT_EQ(ledger.held("v", 1), nullptr);
  const uint64_t mark = ledger.mark();
  ledger.start("v", 0);
  ledger.finish("v", values_of(8), 8);
  EXPECT_GT(ledger.mark(), mark);
  ledger.release(mark);
  EXPECT_EQ(ledger.held("w", 1), nullptr);
  EXPECT_NE(ledger.held("v", 1), nullptr) << "after the mark";
  EXPECT_EQ(ledger.table()[1], (LedgerEntry{"w", 1, false, 0, 0, {}}));
}

TEST(Ledger, TheMemoryOfTheLastResultIsUsedAgain) {
  Ledger ledger;
  EXPECT_NE(ledger.memory_for("w", 0), nullptr);
  const Ledger::Values first = ledger.memory_for("w", 8);
  ledger.start("w", 0);
  ledger.finish("w", first, 8);
  EXPECT_EQ(ledger.memory_for("w", 8), first);
  EXPECT_NE(ledger.memory_for("w", 16), first) << "of another size";
  ledger.release(ledger.mark());
  EXPECT_EQ(ledger.memory_for("w", 8), first) << "for the next push_pull";
  ledger.release(ledger.mark());
  EXPECT_EQ(first.use_count(), 1) << "the name has not been used since the release before";
  EXPECT_NE(ledger.memory_for("w", 8), first);
}

TEST(Ledger, WhatHasFailedElsewhereFailsHere) {
  Ledger ledger;
  ledger.start("a", 0);
  ledger.start("b", 0);
  ledger.start("c", 0);
  ledger.finish("b", values_of(1), 8);
  ledger.finish("c", values_of(1), 8);
  const auto failed = ledger.apply({{"a", 1, aborted("x")}, {"b", 2, aborted("y")}, {"c", 1, aborted("z")}});
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0].first, "a");
  EXPECT_EQ(failed[0].second.message(), "x");
  EXPECT_FALSE(ledger.is_in_flight("a"));
  EXPECT_EQ(ledger.in_flight(), 0u);
  EXPECT_NE(ledger.held("c", 1), nullptr) << "it has the outcome already";
  EXPECT_EQ(ledger.start("b", 0)->message(), "y") << "it comes to the round later";
  EXPECT_FALSE(ledger.is_in_flight("b"));
  EXPECT_EQ(ledger.in_flight(), 0u);
  EXPECT_EQ(ledger.start("b", 0), std::nullopt);
  EXPECT_EQ(ledger.table()[1].last_call, 3u);
}

TEST(Ledger, SaysWhetherOthersKnowOfARefusal) {
  Ledger ledger;
  EXPECT_TRUE(ledger.refuse("w", 0, invalid_argument("x")));
  ledger.apply({{"w", 3, aborted("y")}});
  EXPECT_FALSE(ledger.refuse("w", 0, invalid_argument("x"))) << "before one that has failed";
  EXPECT_FALSE(ledger.refuse("w", 0, invalid_argument("x")));
  EXPECT_TRUE(ledger.refuse("w", 0, invalid_argument("x")));
}

TEST(Ledger, NamesThatOnlyOthersHaveUsedMayHaveFailed) {
  Ledger ledger;
  EXPECT_TRUE(ledger.apply({{"w", 1, aborted("x")}}).empty());
  EXPECT_EQ(ledger.table(), (LedgerTable{{"w", 0, false, 0, 0, {{1, StatusCode::kAborted, "x"}}}}));
  EXPECT_EQ(ledger.start("w", 0)->message(), "x");
}

// Another rank has been past this round; perhaps it has forgotten how it failed.
TEST(Ledger, RoundsBeforeAFailureHaveFailedAsWell) {
  Ledger ledger;
  ledger.apply({{"w", 3, aborted("x")}});
  EXPECT_EQ(ledger.start("w", 0)->message(),
            "round 1 of 'w': another rank has gone on to round 3 without it");
  EXPECT_EQ(ledger.start("w", 0)->code(), StatusCode::kAborted);
  EXPECT_EQ(ledger.start("w", 0)->message(), "x");
  EXPECT_EQ(ledger.start("w", 0), std::nullopt);
  const auto failed = ledger.apply({{"w", 6, aborted("y")}});
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0].second.message(), "round 4 of 'w': another rank has gone on to round 6 without it");
}

TEST(Ledger, KnowsAsManyFailuresAsATableMayHave) {
  Ledger ledger;
  for (int i = 1; i <= 100; ++i) ledger.refuse("w", 0, invalid_argument(std::to_string(i)));
  const LedgerTable table = ledger.table();
  EXPECT_EQ(table[0].failures.size(), 64u);
  EXPECT_EQ(table[0].failures.front().round, 37u);
  EXPECT_EQ(table[0].failures.back().text, "100");
  ASSERT_TRUE(decode_ledger(encode(table)).is_ok());
  Ledger other;
  other.start("w", 0);
  const Reconciliation reconciliation = reconcile({table, other.table()});
  EXPECT_EQ(other.apply(reconciliation.failures).size(), 1u);
  for (int i = 2; i <= 100; ++i) EXPECT_NE(other.start("w", 0), std::nullopt) << i;
  EXPECT_EQ(other.start("w", 0), std::nullopt) << "all are in the same round again";
}

TEST(Ledger, ANewEpochKnowsNothing) {
  Ledger ledger;
  ledger.refuse("w", 0, invalid_argument("x"));
  ledger.clear();
  EXPECT_TRUE(ledger.table().empty());
  EXPECT_EQ(ledger.start("w", 0), std::nullopt);
  EXPECT_EQ(ledger.table()[0].last_call, 1u);
}

// Bytes

LedgerTable random_table(Random& random) {
  std::set<std::string> names;
  while (names.size() < 5) names.insert(random.text(kMaxNameBytes));
  LedgerTable table;
  for (const std::string& name : names) {
    LedgerEntry entry{
        name, random.u64(), random.below(2) == 1, random.u64(), random.below(kMaxTensorBytes + 1), {}};
    for (uint64_t i = entry.is_in_flight ? random.below(4) : 0, end = 0; i > 0; --i) {
      entry.parts.push_back({end + random.below(100) + 1, random.below(100) + 1});
      end = entry.parts.back().end();
    }
    uint64_t round = 0;
    for (uint64_t i = random.below(4); i > 0; --i)
      entry.failures.push_back({round += 1 + random.u32(), random.failure(), random.text(kMaxTextBytes)});
    table.push_back(entry);
  }
  return table;
}

TEST(LedgerBytes, AreTheDocumentedOnes) {
  EXPECT_EQ(
      encode(LedgerTable{{"w", 3, true, 2, 0x0102, {{1, StatusCode::kInvalidArgument, "x"}}, {{4, 5}}}}),
      bytes_of({1, 0, 0,   0, 1, 0, 'w', 3, 0, 0, 0, 0, 0, 0, 0,
                1, 2, 0,   0, 0, 0, 0,   0, 0, 2, 1, 0, 0, 0, 0,
                0, 0, 1,   0, 0, 0, 1,   0, 0, 0, 0, 0, 0, 0, static_cast<int>(StatusCode::kInvalidArgument),
                1, 0, 'x', 1, 0, 0, 0,   4, 0, 0, 0, 0, 0, 0, 0,
                5, 0, 0,   0, 0, 0, 0,   0}));
}

TEST(LedgerBytes, RoundTripExactly) {
  Random random(1);
  EXPECT_EQ(*decode_ledger(encode(LedgerTable())), LedgerTable());
  for (int i = 0; i < 200; ++i) {
    const LedgerTable table = random_table(random);
    const auto decoded = decode_ledger(encode(table));
    ASSERT_TRUE(decoded.is_ok()) << decoded.status();
    ASSERT_EQ(*decoded, table);
  }
}

TEST(LedgerBytes, EveryTruncationAndEveryTrailingByteIsRefused) {
  Random random(2);
  for (int i = 0; i < 5; ++i) {
    std::vector<std::byte> bytes = encode(random_table(random));
    for (size_t size = 0; size < bytes.size(); ++size) {
      // A separate copy, so that the address sanitizer detects reads beyond the end.
      const std::vector<std::byte> truncated(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size));
      ASSERT_EQ(decode_ledger(truncated).status().code(), StatusCode::kDataLoss) << size;
    }
    bytes.push_back(std::byte{0});
    ASSERT_FALSE(decode_ledger(bytes).is_ok());
  }
}

TEST(LedgerBytes, RandomBytesAreReadWithinBounds) {
  Random random(3);
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::byte> bytes = encode(random_table(random));
    bytes[random.below(bytes.size())] = static_cast<std::byte>(random.below(256));
    const auto decoded = decode_ledger(bytes);
    if (decoded.is_ok()) reconcile({*decoded, *decoded});
  }
}

TEST(LedgerBytes, BrokenRulesAreRefused) {
  const LedgerFailures none = {};
  const std::pair<LedgerTable, const char*> cases[] = {
      {{{"w", 1, false, 0, kMaxTensorBytes + 1, none}}, "result's bytes: expected 0 to "},
      {{{"w", 1, false, 0, 0, {{0, StatusCode::kAborted, ""}}}}, "round: expected 1 to "},
      {{{"w", 1, false, 0, 0, {{1, StatusCode::kOk, ""}}}}, "the code of a failure is a failure"},
      {{{"w", 1, false, 0, 0, {{1, static_cast<StatusCode>(99), ""}}}}, "status: expected a code from 0 to "},
      {{{"w", 9, false, 0, 0, {{2, StatusCode::kAborted, ""}, {2, StatusCode::kAborted, ""}}}},
       "failures are ordered by round"},
      {{{"w", 9, false, 0, 0, LedgerFailures(65, {1, StatusCode::kAborted, ""})}},
       "failures: expected 0 to 64"},
      {{{"w", 9, true, 0, 0, none, {{0, 4}, {4, 4}}}}, "parts are ordered, with gaps between them"},
      {{{"w", 9, true, 0, 0, none, {{8, 4}, {4, 3}}}}, "parts are ordered, with gaps between them"},
      {{{"w", 9, true, 0, 0, none, {{4, 0}}}}, "bytes: expected 1 to "},
      {{{"w", 9, false, 0, 0, none, {{0, 4}}}}, "parts are of a push_pull in flight"},
      {{{"w", 1, false, 0, 0, none}, {"v", 1, false, 0, 0, none}}, "entries are ordered by name"},
      {{{"w", 1, false, 0, 0, none}, {"w", 1, false, 0, 0, none}}, "entries are ordered by name"},
      {{{std::string(kMaxNameBytes + 1, 'w'), 1, false, 0, 0, none}}, nullptr},
  };
  for (const auto& [table, why] : cases) {
    const auto decoded = decode_ledger(encode(table));
    if (why == nullptr) {
      EXPECT_EQ(decoded->front().name.size(), kMaxNameBytes) << "truncated by the writer";
      continue;
    }
    ASSERT_FALSE(decoded.is_ok()) << why;
    EXPECT_NE(decoded.status().message().find(why), std::string::npos) << decoded.status();
  }
  const auto many = bytes_of({0xFF, 0xFF, 0xFF, 0x0F});
  EXPECT_FALSE(decode_ledger(many).is_ok());
}

}  // namespace
}  // namespace byteps::protocol
