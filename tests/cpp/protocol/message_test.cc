#include "protocol/message.h"

#include <gtest/gtest.h>

#include <random>

#include "protocol/codec_bytes.h"

namespace byteps::protocol {
namespace {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  uint64_t below(uint64_t limit) { return engine_() % limit; }
  uint32_t u32() { return static_cast<uint32_t>(engine_()); }
  uint64_t u64() { return engine_(); }
  std::string text(size_t max_bytes) {
    const size_t size = below(8) == 0 ? max_bytes : below(std::min<size_t>(max_bytes, 40) + 1);
    return std::string(size, static_cast<char>('a' + below(26)));
  }
  DType dtype() { return static_cast<DType>(1 + below(8)); }
  StatusCode failure() { return static_cast<StatusCode>(1 + below(9)); }

 private:
  std::mt19937_64 engine_;
};

DataHead random_head(Random& random) {
  DataHead head;
  head.type = static_cast<DataType>(1 + random.below(5));
  head.level = static_cast<Level>(1 + random.below(3));
  head.plan = {.partition_scale = static_cast<uint8_t>(random.below(kMaxPartitionScale + 1)),
               .credit = static_cast<uint8_t>(random.below(kMaxCredit + 1))};
  head.dtype = random.dtype();
  head.op = static_cast<ReduceOp>(1 + random.below(8));
  if (is_stored(head.op)) head.staleness = static_cast<uint8_t>(random.below(256));
  head.epoch = random.u32();
  head.key = {random.u32(), static_cast<uint32_t>(random.below(kMaxPartitions))};
  head.round = random.u32();
  head.rank = static_cast<uint32_t>(random.below(kMaxNodes));
  head.priority = static_cast<int32_t>(random.u32());
  head.root = static_cast<uint32_t>(random.below(kMaxNodes));
  head.root_node = static_cast<uint16_t>(random.below(kMaxNodes));
  head.shard_index = static_cast<uint16_t>(random.below(1u << 16));
  head.bytes = random.below(kMaxTensorBytes / 8 + 1) * 8;
  if (head.type == DataType::kFailed) head.code = random.failure();
  return head;
}

NodeInfo random_node(Random& random, Role role, int32_t rank) {
  NodeInfo node;
  node.role = role;
  node.rank = rank;
  node.local_rank = static_cast<int32_t>(random.below(9)) - 1;
  node.local_size = static_cast<int32_t>(random.below(9)) - 1;
  node.pid = random.u64();
  node.host = random.text(kMaxHostBytes);
  node.machine = random.text(kMaxHostBytes);
  node.addresses.resize(random.below(4));
  for (std::string& address : node.addresses) address = random.text(kMaxHostBytes);
  node.local_addresses.resize(random.below(4));
  for (std::string& address : node.local_addresses) address = random.text(kMaxHostBytes);
  node.rdma_addresses.resize(random.below(4));
  for (std::string& address : node.rdma_addresses) address = random.text(kMaxHostBytes);
  node.nic_mbps = random.u32();
  return node;
}

Roster random_roster(Random& random) {
  Roster roster;
  roster.epoch = random.u32();
  roster.num_workers = 1 + static_cast<uint32_t>(random.below(4));
  roster.timeout_us = 1 + random.below(kMaxTimeoutUs);
  roster.partition_bytes = random.below(kMaxTensorBytes + 1);
  for (uint32_t i = 0; i < roster.num_workers; ++i) {
    roster.nodes.push_back(random_node(random, Role::kWorker, static_cast<int32_t>(i)));
  }
  const auto servers = static_cast<int32_t>(random.below(3));
  for (int32_t i = 0; i < servers; ++i) roster.nodes.push_back(random_node(random, Role::kServer, i));
  roster.self = static_cast<uint32_t>(random.below(roster.nodes.size()));
  return roster;
}

Placed random_placed(Random& random) {
  Placed placed{random.text(kMaxNameBytes), 1 + static_cast<uint32_t>(random.below(kMaxTensors)), {}};
  placed.places.resize(random.below(100));
  for (RootLocation& place : placed.places) {
    place = {static_cast<uint16_t>(random.below(1u << 16)), static_cast<uint16_t>(random.below(1u << 16))};
  }
  return placed;
}

TensorMode random_upkeep(Random& random) {
  if (random.below(2) == 0) return {};
  return {true, static_cast<uint8_t>(random.below(256))};
}

// One message of each type, in the order of Control.
std::vector<Control> random_controls(Random& random) {
  return {
      Join{random_node(random, Role::kServer, -1), random.u32(), random.u32(), random.text(kMaxHostBytes)},
      random_roster(random),
      Declare{.name = random.text(kMaxNameBytes),
              .dtype = random.dtype(),
              .bytes = random.below(kMaxTensorBytes + 1),
              .mode = random_upkeep(random)},
      random_placed(random),
      Refused{random.text(kMaxNameBytes), random.u32(), random.failure(), random.text(kMaxTextBytes),
              1 + random.below(kEveryRound)},
      Barrier{1 + random.u32() / 2},
      BarrierDone{1 + random.u32() / 2, static_cast<StatusCode>(random.below(10)),
                  random.text(kMaxTextBytes)},
      Heartbeat{},
      Suspect{random.u32(), random.text(kMaxTextBytes)},
      Lost{random.failure(), random.text(kMaxTextBytes)},
      Leave{random.text(kMaxTextBytes)},
      Left{random.u32(), random.u32()},
      Finished{random.text(kMaxTextBytes)},
      ProbeSetup{random.u32()},
      ProbeReady{{random.text(kMaxHostBytes), random.text(kMaxHostBytes)}},
      ProbeStart{1 + random.u32() / 2, {{{random.text(kMaxHostBytes)}}, {}}},
      ProbeDone{1 + random.u32() / 2, random.below(kMaxNicBytesPerS + 1)},
      Waits{random.text(kMaxTextBytes), random.below(2) == 1},
      Waiting{random.text(kMaxTextBytes)},
      RoundFailed{random.text(kMaxNameBytes), 1 + random.below(kEveryRound), random.below(2) == 0,
                  random.failure(), random.text(kMaxTextBytes)},
      Stalled{random.u32(), random.text(kMaxNameBytes), random.text(kMaxTextBytes)},
      Leaving{random.u32(), random.text(kMaxTextBytes)},
  };
}

std::vector<std::byte> bytes_of(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

TEST(DataMessage, HasTheDocumentedBytes) {
  DataHead head;
  head.type = DataType::kPushPull;
  head.dtype = DType::kFloat64;
  head.op = ReduceOp::kBroadcast;
  head.epoch = 0x01020304;
  head.key = {0x11121314, 0x00022324};
  head.round = 0x38'3132'3334;
  head.rank = 0x0142;
  head.priority = -2;
  head.root = 0x0251;
  head.level = Level::kMachine;
  head.plan = {.partition_scale = 7, .credit = 9};
  head.root_node = 0x0362;
  head.shard_index = 0x0173;
  head.bytes = 0x0000'0061'6263'6468;
  head.shape = *Shape::of(std::vector<int64_t>{2, 300});
  const auto expected = bytes_of({5,    2,    4,    6,    0,    1,    0x97, 0,                             //
                                  4,    3,    2,    1,    0x14, 0x13, 0x12, 0x11, 0x24, 0x23, 0x02, 0x00,  //
                                  0xFE, 0xFF, 0xFF, 0xFF, 0x34, 0x33, 0x32, 0x31, 0x38, 0,    0,    0,     //
                                  0x68, 0x64, 0x63, 0x62, 0x61, 0,    0,    0,                             //
                                  0x42, 0x01, 0x51, 0x02, 0x62, 0x03, 0x73, 0x01,                          //
                                  0x22, 2,    0xAC, 2,    0,    0,    0,    0,                             //
                                  0,    0,    0,    0,    0,    0,    0,    0});
  const DataHeadBytes bytes = encode(head);
  EXPECT_EQ(std::vector(bytes.begin(), bytes.end()), expected);
  EXPECT_EQ(decode_data(bytes).value(), head);
}

TEST(DataMessage, RoundTripsExactly) {
  Random random(1);
  for (int i = 0; i < 10'000; ++i) {
    const DataHead head = random_head(random);
    const auto decoded = decode_data(encode(head));
    ASSERT_TRUE(decoded.is_ok()) << decoded.status();
    ASSERT_EQ(*decoded, head);
  }
}

TEST(DataMessage, RefusesWhatBreaksARule) {
  DataHead good;
  good.type = DataType::kPushPull;
  good.bytes = 8;
  ASSERT_TRUE(decode_data(encode(good)).is_ok());
  struct Case {
    size_t offset;
    int value;
    const char* says;
  };
  const Case cases[] = {{0, 2, "version 5, got 2"},
                        {1, 0, "type"},
                        {1, 7, "type"},
                        {2, 0, "dtype"},
                        {2, 9, "dtype"},
                        {3, 0, "reduction"},
                        {3, 9, "reduction"},
                        {4, 1, "code"},
                        {4, 10, "status"},
                        {5, 0, "level"},
                        {5, 4, "level"},
                        {6, kMaxPartitionScale + 1, "plan"},
                        {7, 1, "staleness"},
                        {18, 4, "partition"},
                        {41, 0x40, "rank"},
                        {43, 0x40, "root"},
                        {45, 0x40, "top"},
                        {32, 6, "element size"},
                        {37, 0x02, "bytes"}};
  for (const Case& c : cases) {
    DataHeadBytes bytes = encode(good);
    bytes[c.offset] = static_cast<std::byte>(c.value);
    const auto decoded = decode_data(bytes);
    ASSERT_FALSE(decoded.is_ok()) << "offset " << c.offset << ", value " << c.value;
    EXPECT_EQ(decoded.status().code(), StatusCode::kDataLoss);
    EXPECT_NE(decoded.status().message().find(c.says), std::string::npos) << decoded.status();
  }
  good.op = ReduceOp::kAccumulate;
  good.staleness = 1;
  EXPECT_TRUE(decode_data(encode(good)).is_ok());
  good.type = DataType::kFailed;
  EXPECT_FALSE(decode_data(encode(good)).is_ok()) << "a failure that is ok";
}

TEST(DataMessage, RefusesEveryOtherSize) {
  const DataHeadBytes bytes = encode(DataHead{});
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(decode_data(Bytes(bytes).first(size)).is_ok());
  std::vector<std::byte> longer(bytes.begin(), bytes.end());
  longer.push_back(std::byte{0});
  EXPECT_FALSE(decode_data(longer).is_ok());
}

TEST(DataMessage, AnyBytesAreRefusedOrRoundTrip) {
  Random random(2);
  int accepted = 0;
  for (int i = 0; i < 100'000; ++i) {
    DataHeadBytes bytes = encode(random_head(random));
    for (uint64_t n = random.below(3); n > 0; --n)
      bytes[random.below(bytes.size())] = std::byte(random.below(256));
    const auto decoded = decode_data(bytes);
    if (!decoded) continue;
    ++accepted;
    ASSERT_EQ(encode(*decoded), bytes);
  }
  EXPECT_GT(accepted, 10'000);
}

TEST(ControlMessage, HasTheDocumentedBytes) {
  const EncodedControl encoded = encode(Declare{"w", DType::kFloat32, 0x0102, 7, {true, 9}});
  EXPECT_EQ(std::vector(encoded.head.begin(), encoded.head.end()), bytes_of({5, 0x43, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(encoded.payload, bytes_of({1, 0, 'w', 3, 0x02, 0x01, 0, 0, 0, 0, 0, 0, 7, 1, 9}));
}

TEST(ControlMessage, WhatIsNotKeptHasNoStaleness) {
  const EncodedControl encoded = encode(Declare{"w", DType::kFloat32, 0x0102, 7, {false, 9}});
  EXPECT_FALSE(decode_control(encoded.head, encoded.payload));
}

TEST(ControlMessage, TypesHaveTheDocumentedNumbers) {
  Random random(3);
  int type = 0x41;
  for (const Control& message : random_controls(random)) {
    EXPECT_EQ(encode(message).head[1], static_cast<std::byte>(type++));
  }
  EXPECT_EQ(type, 0x57);
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
      // A copy of its own, so that the address sanitizer sees a read behind the end.
      const std::vector<std::byte> cut(encoded.payload.begin(),
                                       encoded.payload.begin() + static_cast<ptrdiff_t>(size));
      const auto decoded = decode_control(encoded.head, cut);
      ASSERT_FALSE(decoded.is_ok()) << "type " << message.index() << " cut to " << size;
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
      // Often near the beginning, where the lengths are.
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
  EXPECT_FALSE(check_control_head(Bytes(head).first(7), 0).is_ok());
  head[1] = std::byte{0x40};
  EXPECT_FALSE(check_control_head(head, 0).is_ok());
  head[1] = std::byte{0x57};
  EXPECT_FALSE(check_control_head(head, 0).is_ok());
  head = encode(Heartbeat{}).head;
  head[7] = std::byte{1};
  EXPECT_FALSE(check_control_head(head, 0).is_ok());
  head = encode(Heartbeat{}).head;
  head[0] = std::byte{9};
  EXPECT_FALSE(check_control_head(head, 0).is_ok());
}

// A count of items asks for memory: it has to be covered by bytes that came in.
TEST(ControlMessage, CountsAreCheckedBeforeMemoryIsTaken) {
  EncodedControl encoded = encode(Placed{"w", 1, {}});
  store_number(&encoded.payload[encoded.payload.size() - 4], uint32_t{kMaxPartitions});
  EXPECT_NE(decode_control(encoded.head, encoded.payload).status().message().find("expected 1048576 bytes"),
            std::string::npos);
  store_number(&encoded.payload[encoded.payload.size() - 4], uint32_t{0xFFFFFFFF});
  EXPECT_NE(decode_control(encoded.head, encoded.payload).status().message().find("expected 0 to 262144"),
            std::string::npos);
}

TEST(ControlMessage, RosterMustBeInOrder) {
  Random random(7);
  Roster good = random_roster(random);
  good.nodes = {random_node(random, Role::kWorker, 0), random_node(random, Role::kWorker, 1),
                random_node(random, Role::kServer, 0)};
  good.num_workers = 2;
  good.self = 2;
  auto accepted = [](const Roster& roster) {
    const EncodedControl encoded = encode(roster);
    return decode_control(encoded.head, encoded.payload).is_ok();
  };
  EXPECT_TRUE(accepted(good));
  Roster bad = good;
  bad.self = 3;
  EXPECT_FALSE(accepted(bad)) << "self is nobody";
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
}

TEST(ControlMessage, LongTextsAreCutBetweenCharacters) {
  const std::string umlauts = [] {
    std::string text = "x";
    while (text.size() < size_t{kMaxTextBytes} + 100) text += "\xC3\xA4";
    return text;
  }();
  const EncodedControl encoded = encode(Lost{StatusCode::kUnavailable, umlauts});
  const auto decoded = decode_control(encoded.head, encoded.payload);
  ASSERT_TRUE(decoded.is_ok()) << decoded.status();
  EXPECT_EQ(std::get<Lost>(*decoded).text, umlauts.substr(0, kMaxTextBytes - 1));
  EXPECT_EQ(cut_text("abc", 3), "abc");
  EXPECT_EQ(cut_text("abc", 2), "ab");
  EXPECT_EQ(cut_text("\xC3\xA4", 1), "");
}

TEST(NodeInfo, DescribesItselfToPeople) {
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
