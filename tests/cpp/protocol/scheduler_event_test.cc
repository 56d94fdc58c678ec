#include "protocol/scheduler_event.h"

#include <gtest/gtest.h>

namespace byteps::protocol {
namespace {

using EventKind = SchedulerEvent::Kind;

TEST(SchedulerEvent, TravelsAsBytes) {
  const SchedulerEvent message{
      .kind = EventKind::kMessage, .peer = 7, .now_us = -3, .message = Declare{.name = "w", .bytes = 12}};
  auto read = decode_event(encode(message));
  ASSERT_TRUE(read) << read.status();
  EXPECT_EQ(read->kind, EventKind::kMessage);
  EXPECT_EQ(read->peer, 7u);
  EXPECT_EQ(read->now_us, -3);
  EXPECT_EQ(read->message, message.message);

  read = decode_event(
      encode(SchedulerEvent{.kind = EventKind::kClosed, .peer = 1, .why = unavailable("reset")}));
  ASSERT_TRUE(read) << read.status();
  EXPECT_EQ(read->why.code(), StatusCode::kUnavailable);
  EXPECT_EQ(read->why.message(), "reset");

  read = decode_event(encode(SchedulerEvent{.kind = EventKind::kHeartbeat, .peer = 1, .count = 99}));
  ASSERT_TRUE(read) << read.status();
  EXPECT_EQ(read->count, 99u);
}

TEST(SchedulerEvent, TheLargestMessageFits) {
  Forget forget;
  forget.names.resize(kMaxForgotten, {.name = std::string(kMaxNameBytes, 'x'), .round = 1});
  const SchedulerEvent event{.kind = EventKind::kMessage, .message = forget};
  const Replicate replicate{1, encode(event)};
  EXPECT_TRUE(check_control_head(encode(replicate).head, encode(replicate).payload.size()).is_ok());
  EXPECT_TRUE(decode_event(replicate.content));
}

TEST(SchedulerEvent, RefusesOtherBytes) {
  std::vector<std::byte> bytes = encode(SchedulerEvent{.kind = EventKind::kMessage, .message = Barrier{3}});
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_EQ(decode_event(Bytes(bytes).first(size)).status().code(), StatusCode::kDataLoss) << size;
  bytes[0] = std::byte{5};
  EXPECT_EQ(decode_event(bytes).status().code(), StatusCode::kDataLoss) << "no such kind";
}

TEST(SchedulerOrigin, TravelsAsBytes) {
  const SchedulerOrigin origin{.options = {.num_workers = 3,
                                           .num_servers = 2,
                                           .start_timeout_us = 30,
                                           .refusal_timeout_us = 4,
                                           .timeout_us = 5,
                                           .op_timeout_us = 6,
                                           .partition_bytes = 4096,
                                           .placement = {PlacementPolicy::Kind::kWeights, {0.25, 1, 3}},
                                           .failover = true,
                                           .has_standby = true,
                                           .probe_nics = true,
                                           .fit_shards = true,
                                           .long_path_us = 8,
                                           .report_us = 9,
                                           .first_epoch = 10},
                               .now_us = 11};
  const std::vector<std::byte> bytes = encode(origin);
  const auto read = decode_origin(bytes);
  ASSERT_TRUE(read) << read.status();
  EXPECT_EQ(encode(*read), bytes);
  EXPECT_EQ(read->options.placement.weights, origin.options.placement.weights);
  EXPECT_EQ(read->options.first_epoch, 10u);
  EXPECT_EQ(read->now_us, 11);
  EXPECT_FALSE(decode_origin(Bytes(bytes).first(bytes.size() - 1)));
}

}  // namespace
}  // namespace byteps::protocol
