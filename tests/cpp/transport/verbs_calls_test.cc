// Arguments passed to libibverbs and the handling of its results, with replaced functions. Tests on
// real devices are in rdma_device/.
#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "transport/fake_verbs.h"

namespace byteps::transport::rdma {
namespace {

class VerbsCalls : public FakeVerbsTest {};

abi::AsyncEvent event(int32_t type, int port) {
  abi::AsyncEvent event{};
  event.type = type;
  event.element.port = port;
  return event;
}

abi::Wc completion(uint64_t id, int32_t status, int32_t opcode, uint32_t immediate) {
  abi::Wc wc{};
  wc.id = id;
  wc.status = status;
  wc.opcode = opcode;
  wc.immediate = htonl(immediate);
  return wc;
}

TEST_F(VerbsCalls, EventsOfThisPortAreToldAndAllAreAcknowledged) {
  constexpr int32_t kQpFatal = 1;
  expect_events({event(abi::kEventPortError, 1), event(kQpFatal, 2), event(abi::kEventPortError, 2),
                 event(abi::kEventPortActive, 1), event(abi::kEventPortActive, 2)},
                {NicEvent::kPortDown, NicEvent::kPortUp, NicEvent::kNone});
}

TEST_F(VerbsCalls, ADeviceThatCannotGoOnIsGone) {
  expect_events({event(abi::kEventDeviceFatal, 0)}, {NicEvent::kGone, NicEvent::kNone});
  expect_events({event(abi::kEventCqError, 0)}, {NicEvent::kGone, NicEvent::kNone});
  script_.error_after_events = EIO;
  expect_events({}, {NicEvent::kGone, NicEvent::kGone});
}

TEST_F(VerbsCalls, AQueuePairIsConnectedToTheOtherAddress) {
  const auto queue_pair = make({.traffic_class = 106, .service_level = 3, .timeout = 17, .retries = 5});
  EXPECT_EQ(queue_pair->address().number, 0x123456u);
  EXPECT_EQ(queue_pair->address().lid, 17);
  EXPECT_EQ(queue_pair->address().gid, info_.gid);
  ASSERT_TRUE(queue_pair->connect(other_).is_ok());
  ASSERT_EQ(script_.modified.size(), 3u);
  EXPECT_EQ(script_.modified[0].first.state, abi::kQpInit);
  EXPECT_EQ(script_.modified[0].first.pkey_index, 0);
  EXPECT_EQ(to_receive().state, abi::kQpReadyToReceive);
  EXPECT_EQ(to_receive().dest_number, 0xabcdefu);
  EXPECT_EQ(to_receive().receive_psn, 0x345678u);
  EXPECT_EQ(to_receive().path_mtu, abi::kMtu2048);
  const abi::AddressVector& to = to_receive().address_vector;
  EXPECT_EQ(to.lid, 9);
  EXPECT_EQ(to.is_global, 1);
  EXPECT_TRUE(std::ranges::equal(to.global.destination, other_.gid));
  EXPECT_EQ(to.global.source_index, 3);
  EXPECT_EQ(to.global.traffic_class, 106);
  EXPECT_GT(to.global.hop_limit, 1) << "RoCE v2 is routed";
  EXPECT_EQ(to.service_level, 3);
  EXPECT_EQ(to_send().state, abi::kQpReadyToSend);
  EXPECT_EQ(to_send().send_psn, queue_pair->address().packet_sequence);
  EXPECT_EQ(to_send().timeout, 17);
  EXPECT_EQ(to_send().retry_count, 5);
}

TEST_F(VerbsCalls, AnEndWithoutAGidIsReachedByItsLid) {
  QueuePairAddress other = other_;
  other.gid = {};
  ASSERT_TRUE(make()->connect(other).is_ok());
  EXPECT_EQ(to_receive().address_vector.is_global, 0);
  EXPECT_EQ(to_receive().address_vector.lid, 9);
}

TEST_F(VerbsCalls, TheSmallerPacketCounts) {
  info_.mtu_bytes = 1024;
  ASSERT_TRUE(make()->connect(other_).is_ok());
  EXPECT_EQ(to_receive().path_mtu, abi::kMtu1024);
}

TEST_F(VerbsCalls, AnEndThatIsNotReadyIsTriedWithoutEndOnlyIfPagesComeOnDemand) {
  for (const bool on_demand : {false, true}) {
    script_.modified.clear();
    info_.on_demand_paging = on_demand;
    ASSERT_TRUE(make()->connect(other_).is_ok());
    EXPECT_EQ(to_send().rnr_retry, on_demand ? 7 : 6);
  }
}

TEST_F(VerbsCalls, LessIsTakenInlineUntilTheDeviceAgrees) {
  script_.most_inline = 60;
  EXPECT_EQ(make({}, {.max_inline_bytes = 220})->max_inline_bytes(), 55u);
  EXPECT_EQ(make({}, {.max_inline_bytes = 60})->max_inline_bytes(), 60u);
}

TEST_F(VerbsCalls, QueuesAreWithinWhatTheDeviceHolds) {
  const auto refused = [this](const QueuePairOptions& queues) {
    channel_ = std::move(*VerbsChannel::make(device_));
    const auto made =
        VerbsQueuePair::make(device_, info_, {}, static_cast<VerbsChannel&>(*channel_), nullptr, queues);
    return !made && made.status().code() == StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused({.max_writes = 1001, .max_arrivals = 1}));
  EXPECT_TRUE(refused({.max_writes = 1, .max_arrivals = 1001}));
  EXPECT_TRUE(refused({.max_writes = 800, .max_arrivals = 800}));
  EXPECT_TRUE(refused({.max_writes = UINT32_MAX, .max_arrivals = UINT32_MAX}));
  EXPECT_FALSE(refused({.max_writes = 1000, .max_arrivals = 500}));
}

TEST_F(VerbsCalls, WritesArePostedInOrderAsTheyAre) {
  const auto queue_pair = make({}, {.max_inline_bytes = 64});
  std::vector<std::byte> data(100);
  std::vector<Write> writes(70,
                            Write{.id = 0, .data = data, .local_key = 5, .to_address = 1000, .to_key = 6});
  for (size_t i = 0; i < writes.size(); ++i) writes[i].id = i;
  writes[68] = {.id = 68, .data = std::span(data).first(64), .immediate = 0x01020304};
  writes[69] = {.id = 69, .data = {}, .immediate = 7, .completes = true};
  ASSERT_TRUE(queue_pair->post(writes).is_ok());
  ASSERT_EQ(script_.posted.size(), 70u);
  for (size_t i = 0; i < 70; ++i) EXPECT_EQ(script_.posted[i].id, i);
  EXPECT_EQ(script_.posted[0].opcode, abi::kWrRdmaWrite);
  EXPECT_EQ(script_.posted[0].flags, 0u);
  EXPECT_EQ(script_.posted[0].sge_count, 1);
  EXPECT_EQ(script_.posted[0].rdma.remote_address, 1000u);
  EXPECT_EQ(script_.posted[0].rdma.remote_key, 6u);
  EXPECT_EQ(script_.posted[68].opcode, abi::kWrRdmaWriteWithImmediate);
  EXPECT_EQ(script_.posted[68].flags, uint32_t{abi::kSendInline});
  EXPECT_EQ(script_.posted[68].immediate, htonl(0x01020304));
  EXPECT_EQ(script_.posted[69].flags, uint32_t{abi::kSendSignaled});
  EXPECT_EQ(script_.posted[69].sge_count, 0);
}

TEST_F(VerbsCalls, WritesThatCannotBeAreRefusedBeforeAnyIsPosted) {
  const auto queue_pair = make({}, {.max_inline_bytes = 64});
  std::vector<std::byte> data((1 << 20) + 1);
  const Write good{.data = std::span(data).first(9), .local_key = 5};
  const Write too_large{.data = data, .local_key = 5};
  const Write without_key{.data = std::span(data).first(65)};
  for (const Write& bad : {too_large, without_key}) {
    EXPECT_EQ(queue_pair->post({{good, bad}}).code(), StatusCode::kInternal);
  }
  EXPECT_TRUE(script_.posted.empty());
}

TEST_F(VerbsCalls, ArrivalsArePostedInBatches) {
  const auto queue_pair = make();
  for (const uint32_t count : {0u, 1u, 32u, 33u, 100u}) {
    script_.posted_arrivals = 0;
    ASSERT_TRUE(queue_pair->post_arrivals(count).is_ok());
    EXPECT_EQ(script_.posted_arrivals, count);
  }
}

TEST_F(VerbsCalls, CompletionsAreUnderstood) {
  const auto queue_pair = make();
  for (uint64_t i = 0; i < 40; ++i) script_.completions.push_back(completion(i, 0, 1, 0));
  script_.completions.push_back(completion(0, 0, abi::kWcReceiveRdmaWithImmediate, 99));
  script_.completions.push_back(completion(5, 12, 77, 0));
  std::vector<Completion> got(100);
  const auto count = queue_pair->poll(got);
  ASSERT_TRUE(count);
  ASSERT_EQ(*count, 42u);
  for (uint64_t i = 0; i < 40; ++i) EXPECT_EQ(got[i].id, i);
  EXPECT_EQ(got[39].kind, Completion::Kind::kWritten);
  EXPECT_EQ(got[40].kind, Completion::Kind::kArrived);
  EXPECT_EQ(got[40].immediate, 99u);
  EXPECT_EQ(got[41].status, 12);
  EXPECT_EQ(got[41].id, 5u);
  script_.poll_error = -1;
  EXPECT_EQ(queue_pair->poll(got).status().code(), StatusCode::kUnavailable);
}

TEST_F(VerbsCalls, MemoryIsRegisteredForNoMoreThanIsAsked) {
  std::vector<std::byte> memory(64);
  constexpr unsigned kRelaxed = abi::kAccessRelaxedOrdering;
  ASSERT_TRUE(register_memory(device_, memory, Access::kLocal, false));
  EXPECT_EQ(script_.access, kRelaxed);
  ASSERT_TRUE(register_memory(device_, memory, Access::kRemoteWrite, false));
  EXPECT_EQ(script_.access, kRelaxed | abi::kAccessLocalWrite | abi::kAccessRemoteWrite);
  ASSERT_TRUE(register_memory(device_, memory, Access::kLocal, true));
  EXPECT_EQ(script_.access, kRelaxed | abi::kAccessOnDemand);
}

TEST_F(VerbsCalls, AnOldLibraryIsAskedForNothingItDoesNotKnow) {
  verbs_.reg_mr_iova2 = nullptr;
  std::vector<std::byte> memory(64);
  ASSERT_TRUE(register_memory(device_, memory, Access::kLocal, false));
  EXPECT_EQ(script_.access, 0u);
  const auto region = register_dmabuf(device_, 0, 0, 4096, 0, Access::kLocal);
  ASSERT_FALSE(region);
  EXPECT_EQ(region.status().code(), StatusCode::kUnimplemented);
  EXPECT_NE(region.status().message().find("rdma-core 34"), std::string::npos);
}

}  // namespace
}  // namespace byteps::transport::rdma
