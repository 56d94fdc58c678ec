#include <gtest/gtest.h>

#include "protocol/codec_bytes.h"
#include "protocol/message.h"
#include "protocol/message_harness.h"

namespace byteps::protocol {
namespace {

NodeInfo random_node(Random& random, Role role, int32_t rank) {
  NodeInfo node;
  node.role = role;
  node.rank = rank;
  node.local_rank = static_cast<int32_t>(random.below(9)) - 1;
  node.local_size = static_cast<int32_t>(random.below(9)) - 1;
  node.pid = random.u64();
  node.host = random.text(kMaxHostBytes);
  node.machine = random.text(kMaxHostBytes);
  const size_t num_shards = random.below(4);
  node.endpoints.resize(random.below(4));
  for (Endpoint& endpoint : node.endpoints) {
    endpoint.transport = random.text(kMaxTransportBytes);
    endpoint.addresses.resize(num_shards);
    for (std::string& address : endpoint.addresses) address = random.text(kMaxHostBytes);
  }
  node.nic_mbps = random.u32();
  return node;
}

Roster random_roster(Random& random) {
  Roster roster;
  roster.epoch = random.u32();
  roster.num_workers = 1 + static_cast<uint32_t>(random.below(4));
  roster.timeout_us = 1 + random.below(kMaxTimeoutUs);
  roster.partition_bytes = random.below(kMaxTensorBytes + 1);
  roster.failover = random.below(2) == 1;
  roster.takes_turns = random.below(2) == 1;
  roster.has_standby = random.below(2) == 1;
  for (uint32_t i = 0; i < roster.num_workers; ++i) {
    roster.nodes.push_back(random_node(random, Role::kWorker, static_cast<int32_t>(i)));
  }
  const auto servers = static_cast<int32_t>(random.below(3));
  for (int32_t i = 0; i < servers; ++i) {
    roster.nodes.push_back(random_node(random, Role::kServer, i));
    if (random.below(2) == 0) roster.lost.push_back(roster.num_workers + static_cast<uint32_t>(i));
  }
  roster.num_added = static_cast<uint32_t>(random.below(static_cast<uint64_t>(servers) + 1));
  roster.self = static_cast<uint32_t>(random.below(roster.nodes.size()));
  return roster;
}

Placed random_placed(Random& random) {
  Placed placed{random.text(kMaxNameBytes), 1 + random.below(kMaxTensorNumber), {}};
  placed.round = random.below(kEveryRound);
  placed.plan = {.partition_scale = static_cast<uint8_t>(random.below(8)), .credit = 3};
  placed.locations.resize(random.below(100));
  for (RootLocation& location : placed.locations) {
    location = {static_cast<uint16_t>(random.below(1u << 16)), static_cast<uint16_t>(random.below(1u << 16))};
  }
  return placed;
}

TensorMode random_mode(Random& random) {
  if (random.below(2) == 0) return {};
  return {true, static_cast<uint8_t>(random.below(256))};
}

uint32_t random_member(Random& random) { return 1 + static_cast<uint32_t>(random.below(kMaxNodes)); }

Form random_form(Random& random) {
  Form form;
  form.generation = 1 + random.u32() / 2;
  form.epoch = 1 + static_cast<uint32_t>(random.below(form.generation));
  for (uint64_t i = random.below(4) + 1; i > 0; --i) form.members.push_back(random_member(random));
  form.scheduler = random.text(kMaxHostBytes);
  form.why = random.text(kMaxTextBytes);
  return form;
}

// One message of each type, in the order of Control.
std::vector<Control> random_controls(Random& random) {
  return {
      Join{random_node(random, Role::kServer, -1), random.u32(), random.u32(), random.text(kMaxHostBytes)},
      random_roster(random),
      Declare{.name = random.text(kMaxNameBytes),
              .dtype = random.dtype(),
              .bytes = random.below(kMaxTensorBytes + 1),
              .mode = random_mode(random),
              .placement = static_cast<uint8_t>(random.below(256))},
      random_placed(random),
      Refused{random.text(kMaxNameBytes), random.u32(), random.failure(), random.text(kMaxTextBytes),
              1 + random.below(kEveryRound)},
      Barrier{1 + random.u32() / 2},
      BarrierDone{1 + random.u32() / 2, static_cast<StatusCode>(random.below(10)),
                  random.text(kMaxTextBytes)},
      Heartbeat{random.u64()},
      Suspect{random.u32(), random.text(kMaxTextBytes)},
      Lost{random.failure(), random.text(kMaxTextBytes)},
      Leave{random.text(kMaxTextBytes)},
      Left{random.u32(), random.u32()},
      Finished{random.text(kMaxTextBytes)},
      ProbeSetup{random.u32()},
      ProbeReady{{random.text(kMaxHostBytes), random.text(kMaxHostBytes)}},
      ProbeStart{
          1 + random.u32() / 2, 1 + random.u32() % kMaxAddresses, {{{random.text(kMaxHostBytes)}}, {}}},
      ProbeDone{1 + random.u32() / 2, random.below(kMaxNicBytesPerS + 1), random.below(kMaxRoundTripUs + 1),
                random.u32()},
      Waits{random.text(kMaxTextBytes), random.below(2) == 1},
      Waiting{random.text(kMaxTextBytes)},
      RoundFailed{random.text(kMaxNameBytes), 1 + random.below(kEveryRound), random.below(2) == 0,
                  random.failure(), random.text(kMaxTextBytes), random.below(kEveryRound)},
      Stalled{random.u32(), random.text(kMaxNameBytes), random.text(kMaxTextBytes)},
      Leaving{random.u32(), random.text(kMaxTextBytes)},
      Forget{{{random.text(kMaxNameBytes), random.below(kEveryRound), random.u32(), {.partition_scale = 7}},
              {random.text(kMaxNameBytes), 0, 0, {}}}},
      Forgotten{{{key_tensor(kMaxTensorNumber, 7), kMaxPartitions}, {1 + random.below(kMaxTensorNumber), 0}}},
      Traffic{{{static_cast<uint32_t>(random.below(kMaxNodes)), random.below(2) == 1, random.u32(),
                random.below(kMaxTimeoutUs + 1)}}},
      Speeds{static_cast<uint8_t>(random.below(256)),
             {random.u32()},
             {static_cast<uint32_t>(random.below(1'000'000'001))},
             random.text(kMaxTextBytes)},
      Removed{random.u32(),
              random.text(kMaxTextBytes),
              {static_cast<uint32_t>(random.below(1'000'000'001))},
              random.below(2) == 1},
      Lingers{random.u32()},
      AllLinger{},
      Added{random_node(random, Role::kServer, 3)},
      Standby{random.text(kMaxHostBytes)},
      Replicate{random.u64(), std::vector<std::byte>(random.below(9), std::byte{7})},
      Replicated{random.u64()},
      Rejoin{random.u32(), static_cast<uint32_t>(random.below(kMaxNodes)), random.u64()},
      Resumed{random.u64()},
      Enrol{random.u64(), random.text(kMaxHostBytes), random.text(kMaxHostBytes)},
      Enrolled{random_member(random), 1 + random.below(kMaxTimeoutUs)},
      random_form(random),
      Hosting{1 + random.u32() / 2, random.text(kMaxHostBytes)},
      Formed{1 + random.u32() / 2},
      Entered{1 + random.u32() / 2},
      Cancelled{1 + random.u32() / 2},
      Broken{1 + random.u32() / 2, random.text(kMaxTextBytes)},
      Resign{random.text(kMaxTextBytes), random.below(2) == 1},
      Resigned{random_member(random), random.text(kMaxTextBytes)},
      Missing{static_cast<uint32_t>(random.below(kMaxNodes + 1))},
  };
}

TEST(ControlMessage, HasTheDocumentedBytes) {
  const EncodedControl encoded = encode(Declare{"w", DType::kFloat32, 0x0102, 7, {true, 9}, 0xFA});
  EXPECT_EQ(std::vector(encoded.head.begin(), encoded.head.end()), bytes_of({17, 0x43, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(encoded.payload, bytes_of({1, 0, 'w', 3, 0x02, 0x01, 0, 0, 0, 0, 0, 0, 7, 1, 9, 0xFA}));
}

TEST(ControlMessage, EveryTransportOfANodeHasAnAddressForEachShard) {
  Join join;
  join.self.endpoints = {{"shm", {"a", "b"}}, {"tcp", {"c", "d"}}};
  EncodedControl encoded = encode(join);
  EXPECT_TRUE(decode_control(encoded.head, encoded.payload));
  join.self.endpoints[1].addresses.pop_back();
  encoded = encode(join);
  EXPECT_FALSE(decode_control(encoded.head, encoded.payload));
}

TEST(ControlMessage, OnlyStoredTensorsHaveAStaleness) {
  const EncodedControl encoded = encode(Declare{"w", DType::kFloat32, 0x0102, 7, {false, 9}});
  EXPECT_FALSE(decode_control(encoded.head, encoded.payload));
}

TEST(ControlMessage, TypesHaveTheDocumentedNumbers) {
  Random random(3);
  int type = 0x41;
  for (const Control& message : random_controls(random)) {
    EXPECT_EQ(encode(message).head[1], static_cast<std::byte>(type++));
  }
  EXPECT_EQ(type, 0x6F);
}

TEST(ControlMessage, RoundTripsExactly) {
  Random random(4);
  for (int i = 0; i < 200; ++i) {
    for (const Control& message : random_controls(random)) {
      const EncodedControl encoded = encode(message);
      const auto decoded = decode_control(encoded.head, encoded.payload);
      ASSERT_TRUE(decoded.is_ok()) << decoded.status();
      ASSERT_EQ(*decoded, message);
    }
  }
}

TEST(ControlMessage, EveryTruncationAndEveryTrailingByteIsRefused) {
  Random random(5);
  for (const Control& message : random_controls(random)) {
    EncodedControl encoded = encode(message);
    for (size_t size = 0; size < encoded.payload.size(); ++size) {
      // A separate copy, so that the address sanitizer detects reads beyond the end.
      const std::vector<std::byte> truncated(encoded.payload.begin(),
                                             encoded.payload.begin() + static_cast<ptrdiff_t>(size));
      const auto decoded = decode_control(encoded.head, truncated);
      ASSERT_FALSE(decoded.is_ok()) << "type " << message.index() << " truncated to " << size;
      ASSERT_EQ(decoded.status().code(), StatusCode::kDataLoss);
    }
    encoded.payload.push_back(std::byte{0});
    EXPECT_FALSE(decode_control(encoded.head, encoded.payload).is_ok()) << "type " << message.index();
  }
}

TEST(ControlMessage, AnyBytesAreRefusedOrRoundTrip) {
  Random random(6);
  std::vector<EncodedControl> originals;
  for (int i = 0; i < 20; ++i) {
    for (const Control& message : random_controls(random)) originals.push_back(encode(message));
  }
  int accepted = 0;
  for (int i = 0; i < 100'000; ++i) {
    EncodedControl mutant = originals[random.below(originals.size())];
    if (mutant.payload.empty() || random.below(20) == 0) {
      mutant.head[random.below(kControlHeadBytes)] = std::byte(random.below(256));
    } else {
      // Mostly near the beginning, where the lengths are.
      const size_t reach = std::min<size_t>(mutant.payload.size(), random.below(2) == 0 ? 16 : SIZE_MAX);
      mutant.payload[random.below(reach)] = std::byte(random.below(256));
    }
    const auto decoded = decode_control(mutant.head, mutant.payload);
    if (!decoded) continue;
    ++accepted;
    const EncodedControl again = encode(*decoded);
    ASSERT_EQ(again.head, mutant.head);
    ASSERT_EQ(again.payload, mutant.payload);
  }
  EXPECT_GT(accepted, 10'000);
}

TEST(ControlMessage, HeadIsCheckedBeforeThePayloadIsRead) {
  std::array<std::byte, kControlHeadBytes> head = encode(Heartbeat{}).head;
  EXPECT_TRUE(check_control_head(head, kMaxControlBytes).is_ok());
  EXPECT_FALSE(check_control_head(head, kMaxControlBytes + 1).is_ok());
  EXPECT_TRUE(check_control_head(encode(Replicate{}).head, kMaxReplicateBytes).is_ok());
  EXPECT_FALSE(check_control_head(encode(Replicate{}).head, kMaxReplicateBytes + 1).is_ok());
  EXPECT_FALSE(check_control_head(Bytes(head).first(7), 0).is_ok());
  head[1] = std::byte{0x40};
  EXPECT_FALSE(check_control_head(head, 0).is_ok());
  head[1] = std::byte{0x6F};
  EXPECT_FALSE(check_control_head(head, 0).is_ok());
  head = encode(Heartbeat{}).head;
  head[7] = std::byte{1};
  EXPECT_FALSE(check_control_head(head, 0).is_ok());
  head = encode(Heartbeat{}).head;
  head[0] = std::byte{8};
  EXPECT_FALSE(check_control_head(head, 0).is_ok());
}

// A count of items must be covered by received bytes before memory is allocated for them.
TEST(ControlMessage, CountsAreCheckedBeforeMemoryIsTaken) {
  EncodedControl encoded = encode(Placed{"w", 1, {}});
  store_number(&encoded.payload[encoded.payload.size() - 14], uint32_t{kMaxPartitions});
  EXPECT_NE(decode_control(encoded.head, encoded.payload).status().message().find("expected 1048576 bytes"),
            std::string::npos);
  store_number(&encoded.payload[encoded.payload.size() - 14], uint32_t{0xFFFFFFFF});
  EXPECT_NE(decode_control(encoded.head, encoded.payload).status().message().find("expected 0 to 262144"),
            std::string::npos);
}

// The scheduler multiplies it.
TEST(ControlMessage, ARoundTripIsAtMostAMinute) {
  EncodedControl encoded = encode(ProbeDone{.round = 1, .rtt_us = kMaxRoundTripUs});
  EXPECT_TRUE(decode_control(encoded.head, encoded.payload).is_ok());
  encoded = encode(ProbeDone{.round = 1, .rtt_us = kMaxRoundTripUs + 1});
  EXPECT_NE(decode_control(encoded.head, encoded.payload).status().message().find("round trip"),
            std::string::npos);
}

TEST(ControlMessage, RosterMustBeInOrder) {
  Random random(7);
  Roster good = random_roster(random);
  good.nodes = {random_node(random, Role::kWorker, 0), random_node(random, Role::kWorker, 1),
                random_node(random, Role::kServer, 0)};
  good.num_workers = 2;
  good.self = 2;
  good.num_added = 1;
  good.lost = {2};
  auto accepted = [](const Roster& roster) {
    const EncodedControl encoded = encode(roster);
    return decode_control(encoded.head, encoded.payload).is_ok();
  };
  EXPECT_TRUE(accepted(good));
  Roster bad = good;
  bad.self = 3;
  EXPECT_FALSE(accepted(bad)) << "self is not a node";
  bad = good;
  std::swap(bad.nodes[0], bad.nodes[1]);
  EXPECT_FALSE(accepted(bad)) << "ranks out of order";
  bad = good;
  bad.num_workers = 3;
  EXPECT_FALSE(accepted(bad)) << "a server among the workers";
  bad = good;
  bad.num_workers = 0;
  EXPECT_FALSE(accepted(bad)) << "no workers";
  bad = good;
  bad.timeout_us = 0;
  EXPECT_FALSE(accepted(bad)) << "no time";
  bad = good;
  bad.num_added = 2;
  EXPECT_FALSE(accepted(bad)) << "a worker came later";
  bad = good;
  bad.lost = {1};
  EXPECT_FALSE(accepted(bad)) << "a worker is lost";
  bad.lost = {3};
  EXPECT_FALSE(accepted(bad)) << "what is lost is not a node";
}

TEST(ControlMessage, GenerationsHaveMembersAndFollowTheirEpoch) {
  const auto accepted = [](const Form& form) {
    const EncodedControl encoded = encode(form);
    return decode_control(encoded.head, encoded.payload).is_ok();
  };
  EXPECT_TRUE(accepted({3, 3, {1, 2}, "", ""}));
  EXPECT_TRUE(accepted({3, 2, {kMaxNodes}, "ip:1", "worker 1 is lost"}));
  EXPECT_FALSE(accepted({3, 4, {1, 2}, "", ""})) << "an epoch that has not begun";
  EXPECT_FALSE(accepted({3, 0, {1, 2}, "", ""}));
  EXPECT_FALSE(accepted({3, 3, {}, "", ""})) << "no members";
  EXPECT_FALSE(accepted({3, 3, {0}, "", ""})) << "members count from 1";
  EXPECT_FALSE(accepted({3, 3, {kMaxNodes + 1}, "", ""}));
}

TEST(ControlMessage, TheRostersOfAllNodesDifferInTheirHeadsOnly) {
  Random random(8);
  Roster roster = random_roster(random);
  roster.self = 0;
  const EncodedControl first = encode(roster);
  for (roster.self = 0; roster.self < roster.nodes.size(); ++roster.self) {
    const EncodedControl encoded = encode(roster);
    EXPECT_EQ(encoded.payload, first.payload);
    EXPECT_EQ(encoded.head, roster_head(roster.self));
    EXPECT_EQ(*decode_control(encoded.head, encoded.payload), Control(roster));
  }
}

TEST(ControlMessage, LongTextsAreTruncatedBetweenCharacters) {
  const std::string umlauts = [] {
    std::string text = "x";
    while (text.size() < size_t{kMaxTextBytes} + 100) text += "\xC3\xA4";
    return text;
  }();
  const EncodedControl encoded = encode(Lost{StatusCode::kUnavailable, umlauts});
  const auto decoded = decode_control(encoded.head, encoded.payload);
  ASSERT_TRUE(decoded.is_ok()) << decoded.status();
  EXPECT_EQ(std::get<Lost>(*decoded).text, umlauts.substr(0, kMaxTextBytes - 1));
  EXPECT_EQ(truncate_text("abc", 3), "abc");
  EXPECT_EQ(truncate_text("abc", 2), "ab");
  EXPECT_EQ(truncate_text("\xC3\xA4", 1), "");
}

TEST(Enrol, DescribesItself) { EXPECT_EQ((Enrol{42, "node7", "1"}.describe()), "host node7, pid 42"); }

TEST(NodeInfo, DescribesItself) {
  NodeInfo node;
  node.pid = 42;
  node.host = "node7";
  EXPECT_EQ(node.describe(), "worker (host node7, pid 42)");
  node.rank = 3;
  EXPECT_EQ(node.describe(), "rank 3 (host node7, pid 42)");
  node.role = Role::kServer;
  EXPECT_EQ(node.describe(), "server 3 (host node7, pid 42)");
}

}  // namespace
}  // namespace byteps::protocol
