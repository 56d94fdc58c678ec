#include <gtest/gtest.h>

#include "protocol/message.h"
#include "protocol/message_harness.h"

namespace byteps::protocol {
namespace {

DataHead random_head(Random& random) {
  DataHead head;
  head.type = static_cast<DataType>(1 + random.below(10));
  const bool is_hello = head.type == DataType::kHello;
  if (is_hello) head.level = static_cast<Level>(1 + random.below(3));
  head.plan = {.partition_scale = static_cast<uint8_t>(random.below(kMaxPartitionScale + 1)),
               .credit = static_cast<uint8_t>(random.below(kMaxCredit + 1)),
               .placement = static_cast<uint8_t>(is_hello ? 0 : random.below(256))};
  head.dtype = random.dtype();
  head.op = static_cast<ReduceOp>(1 + random.below(8));
  if (is_stored(head.op)) head.staleness = static_cast<uint8_t>(random.below(256));
  head.epoch = random.u32();
  head.key = {random.below(key_tensor(kMaxTensorNumber + 1, 0)),
              static_cast<uint32_t>(random.below(kMaxPartitions))};
  head.round = random.u32();
  head.rank = static_cast<uint32_t>(random.below(kMaxNodes));
  head.priority = static_cast<int32_t>(random.u32());
  head.root = static_cast<uint32_t>(random.below(kMaxNodes));
  head.root_node = static_cast<uint16_t>(random.below(kMaxNodes));
  head.serving_index = static_cast<uint16_t>(random.below(1u << 16));
  head.bytes = random.below(kMaxTensorBytes / 8 + 1) * 8;
  const bool is_held_failure = head.type == DataType::kHeld && random.below(2) == 0;
  if (head.type == DataType::kFailed || is_held_failure) head.code = random.failure();
  return head;
}

TEST(DataMessage, HasTheDocumentedBytes) {
  DataHead head;
  head.type = DataType::kPushPull;
  head.dtype = DType::kFloat64;
  head.op = ReduceOp::kBroadcast;
  head.epoch = 0x01020304;
  head.key = {0x25'1112'1314, 0x00022324};
  head.round = 0x38'3132'3334;
  head.rank = 0x0142;
  head.priority = -2;
  head.root = 0x0251;
  head.plan = {.partition_scale = 7, .credit = 9, .placement = 0xFA};
  head.root_node = 0x0362;
  head.serving_index = 0x0173;
  head.bytes = 0x0000'0061'6263'6468;
  head.shape = *Shape::of(std::vector<int64_t>{2, 300});
  const auto expected = bytes_of({17,   2,    4,    6,    0,    0xFA, 0x97, 0,                             //
                                  4,    3,    2,    1,    0x14, 0x13, 0x12, 0x11, 0x24, 0x23, 0x96, 0x00,  //
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

TEST(DataMessage, RefusesHeadsThatBreakARule) {
  DataHead good;
  good.type = DataType::kPushPull;
  good.bytes = 8;
  ASSERT_TRUE(decode_data(encode(good)).is_ok());
  struct Case {
    size_t offset;
    int value;
    const char* says;
  };
  const Case cases[] = {{0, 2, "version 17, got 2"},
                        {1, 0, "type"},
                        {1, 17, "type"},
                        {2, 0, "dtype"},
                        {2, 9, "dtype"},
                        {3, 0, "reduction"},
                        {3, 9, "reduction"},
                        {4, 1, "code"},
                        {4, 11, "status"},
                        {6, kMaxPartitionScale + 1, "plan"},
                        {7, 1, "staleness"},
                        {41, 0x40, "rank"},
                        {43, 0x40, "root"},
                        {45, 0x40, "root node"},
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
  for (const int level : {0, 4}) {
    DataHeadBytes hello = encode(DataHead{.level = Level::kMachine});
    ASSERT_TRUE(decode_data(hello).is_ok());
    hello[5] = static_cast<std::byte>(level);
    EXPECT_NE(decode_data(hello).status().message().find("level"), std::string::npos) << level;
  }
  good.op = ReduceOp::kAccumulate;
  good.staleness = 1;
  EXPECT_TRUE(decode_data(encode(good)).is_ok());
  good.type = DataType::kFailed;
  EXPECT_FALSE(decode_data(encode(good)).is_ok()) << "a failure with code ok";
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

}  // namespace
}  // namespace byteps::protocol
