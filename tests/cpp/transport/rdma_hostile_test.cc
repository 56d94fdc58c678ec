// Invalid messages from an authenticated peer end the connection and do no other harm.
#include <cstring>
#include <random>

#include "transport/rdma/ring.h"
#include "transport/rdma_harness.h"

namespace byteps::transport::rdma {
namespace {

// Talks RDMA to a listener and writes whatever a test wants.
class RawPeer {
 public:
  RawPeer(FakeFabric& fabric, EventLoop& loop)
      : loop_(loop), nic_(fabric.make_nic()), memory_(kInboxAt + 2 * kReceiveBufferBytes) {
    channel_ = std::move(*nic_->make_channel());
    region_ = std::move(*nic_->register_memory(memory_, Access::kRemoteWrite));
    make_queue_pair();
  }
  ~RawPeer() { hang_up(); }
  void hang_up() {
    run_on(loop_, [&] { tcp_.reset(); });
  }

  static constexpr size_t kReceiveBufferBytes = 8 << 20;
  uint64_t receive_buffer() const {
    return reinterpret_cast<uint64_t>(memory_.data() + kInboxAt + kRingBytes);
  }
  uint32_t key() const { return region_->key().remote; }

  void meet(const Address& address) {
    const auto transport = make_tcp_transport({.credentials = test_credentials()});
    auto connected = connect_and_wait(*transport, loop_, address, soon_us());
    ASSERT_TRUE(connected.is_ok()) << connected.status();
    tcp_ = std::move(*connected);
    run_on(loop_, [&] { tcp_->start(&recorder_); });
    introduce(0, 0);
  }
  // Replaces the queue pair.
  void meet_again(uint32_t attempt, uint32_t arrivals) {
    pair_.reset();
    make_queue_pair();
    introduce(attempt, arrivals);
  }
  void tell(const std::string& message) {
    run_on(loop_, [&] { tcp_->send(as_bytes(message), {}, {}); });
  }
  EndpointOffer offer() const {
    return {.is_ethernet = true,
            .queue_pair = pair_->address(),
            .ring_address = reinterpret_cast<uint64_t>(memory_.data() + kInboxAt),
            .ring_key = key(),
            .card = "raw"};
  }
  // Writes to the next position in the ring, if there is room.
  void write(const Record& record, std::string_view head = {}, std::string_view payload = {}) {
    std::vector<std::byte> bytes(kRecordBytes + head.size() + payload.size());
    encode_record(record, std::span(bytes).first<kRecordBytes>());
    if (!head.empty()) std::memcpy(bytes.data() + kRecordBytes, head.data(), head.size());
    if (!payload.empty())
      std::memcpy(bytes.data() + kRecordBytes + head.size(), payload.data(), payload.size());
    write_raw(bytes);
  }
  void write_raw(Bytes bytes) {
    const auto position = ring_.allocate(units_of(bytes.size()));
    ASSERT_TRUE(position);
    const size_t offset = *position * kUnitBytes;
    std::memcpy(memory_.data() + offset, bytes.data(), bytes.size());
    post({.data = Bytes(memory_).subspan(offset, bytes.size()),
          .local_key = region_->key().local,
          .to_address = other_.ring_address + offset,
          .to_key = other_.ring_key,
          .immediate = units_of(bytes.size())});
  }
  void write_immediate(uint32_t immediate) {
    post({.to_address = other_.ring_address, .to_key = other_.ring_key, .immediate = immediate});
  }

 private:
  static constexpr size_t kInboxAt = kRingBytes;
  void make_queue_pair() {
    pair_ = std::move(*nic_->make_queue_pair(*channel_, this, {.max_writes = 256, .max_arrivals = 4096}));
    BPS_CHECK(pair_->post_arrivals(4096).is_ok());
  }
  void introduce(uint32_t attempt, uint32_t arrivals) {
    EndpointOffer mine = offer();
    mine.attempt = attempt;
    mine.arrivals = arrivals;
    const size_t answers = recorder_.seen.get().frames.size();
    tell(encode_offer(mine));
    ASSERT_TRUE(recorder_.wait_for_frames(answers + 1));
    other_ = *decode_offer(as_bytes(recorder_.seen.get().frames[answers].head));
    ASSERT_TRUE(pair_->connect(other_.queue_pair).is_ok());
    write_immediate(kConsumedFlag);
  }
  void post(const Write& write) { BPS_CHECK(pair_->post({&write, 1}).is_ok()); }

  EventLoop& loop_;
  Recorder recorder_;
  std::unique_ptr<FakeNic> nic_;
  std::vector<std::byte> memory_;  // staging ring, inbox and receive buffers
  std::unique_ptr<CompletionChannel> channel_;
  std::unique_ptr<MemoryRegion> region_;
  std::unique_ptr<QueuePair> pair_;
  std::unique_ptr<Connection> tcp_;
  RingWriter ring_;
  EndpointOffer other_;
};

class RdmaHostileTest : public RdmaTest {
 protected:
  // Connects a raw peer with the end kB.
  void meet() {
    if (!acceptor_) set_up();
    leave();
    recorder_ = std::make_unique<Recorder>();
    peer_ = std::make_unique<RawPeer>(fabric_, loop(kA));
    ASSERT_NO_FATAL_FAILURE(peer_->meet(acceptor_->address()));
    ends_[kB] = acceptor_->take();
    ASSERT_TRUE(ends_[kB]);
    if (answers_) {
      recorder_->keeps_leases = true;
      recorder_->frame = [this](Connection& connection, const Arrival& arrival, Bytes) {
        connection.send(as_bytes("answer"),
                        {.data = as_bytes(text_), .reply_space = {}, .returns_lease = arrival.lease}, {});
        return Status::ok();
      };
    }
    run_on(loop(kB), [&] { end(kB).start(recorder_.get()); });
  }
  void leave() {
    destroy(kB);
    peer_.reset();
  }
  void TearDown() override { leave(); }
  void expect_data_loss() {
    const Status why = recorder_->why_closed();
    EXPECT_EQ(why.code(), StatusCode::kDataLoss) << why;
    EXPECT_TRUE(mentions(why, "127.0.0.1")) << why;
    EXPECT_TRUE(no_queue_pair_is_left(kB));
  }

  void set_up_to_renew() { set_up({}, {.renewal_limit_us = 20'000'000}); }

  bool answers_ = false;
  const std::string text_ = pattern(9'000, 1);
  std::unique_ptr<Recorder> recorder_;
  std::unique_ptr<RawPeer> peer_;
};

const Record kReserve{.type = RecordType::kReserve, .lease = 5, .payload_bytes = 10'000};
const Record kPlaced{.type = RecordType::kPlaced, .head_bytes = 1, .lease = 5, .payload_bytes = 10'000};
const Record kPiece{.type = RecordType::kFrame, .head_bytes = 1, .payload_bytes = 10'000, .inline_bytes = 4};
const Record kWithReply{
    .type = RecordType::kFrame, .head_bytes = 1, .lease = 6, .address = 4096, .key = 1, .reply_bytes = 8'000};

TEST_F(RdmaHostileTest, RecordsThatMakeNoSenseNow) {
  const Record end_of_piece{.type = RecordType::kMore, .inline_bytes = 4};
  const Record too_large{.type = RecordType::kPlaced, .lease = 5, .payload_bytes = 10'001};
  const Record answered{.type = RecordType::kAnswered, .returns_lease = 3, .payload_bytes = 5'000};
  const std::vector<std::vector<Record>> all{
      {end_of_piece},
      {kPiece, kPiece},
      {kReserve, kPiece, kPlaced},
      {kPiece, {.type = RecordType::kFrame}},
      {{.type = RecordType::kFrame, .head_bytes = 1, .payload_bytes = 6, .inline_bytes = 4}, end_of_piece},
      {kPlaced},
      {kReserve, too_large},
      {kReserve, kReserve},
      {kReserve, {.type = RecordType::kRelease, .lease = 5}, kPlaced},
      {{.type = RecordType::kRelease, .lease = 5}},
      {answered},
      {{.type = RecordType::kGiveBack, .returns_lease = 3}},
      {{.type = RecordType::kFrame, .returns_lease = 3}},
      {{.type = RecordType::kReserved, .lease = 3, .address = 4096}},
      {{.type = static_cast<RecordType>(77)}},
      {{.type = RecordType::kEnd, .consumed = 5}},
  };
  for (const auto& records : all) {
    SCOPED_TRACE(&records - all.data());
    ASSERT_NO_FATAL_FAILURE(meet());
    for (const Record& record : records) {
      peer_->write(record, std::string(record.head_bytes, 'h'), std::string(record.inline_bytes, 'p'));
    }
    expect_data_loss();
  }
}

TEST_F(RdmaHostileTest, LeasesThatAreOutAreNotGrantedAgain) {
  const std::vector<std::vector<Record>> all{
      {kReserve, kPlaced, kPlaced},
      {kReserve, kPlaced, {.type = RecordType::kRelease, .lease = 5}},
      {kWithReply, kWithReply},
      {kWithReply, {.type = RecordType::kReserve, .lease = 6, .payload_bytes = 1}},
  };
  for (const auto& records : all) {
    SCOPED_TRACE(&records - all.data());
    ASSERT_NO_FATAL_FAILURE(meet());
    run_on(loop(kB), [&] { recorder_->keeps_leases = true; });
    for (const Record& record : records) peer_->write(record, "h");
    expect_data_loss();
  }
}

TEST_F(RdmaHostileTest, ImmediatesThatMakeNoSense) {
  for (const uint32_t immediate :
       {0u, kRingUnits / 2 + 1, kRingUnits, 0x7fffffffu, kConsumedFlag | 1000, 0xffffffffu}) {
    SCOPED_TRACE(immediate);
    ASSERT_NO_FATAL_FAILURE(meet());
    peer_->write_immediate(immediate);
    expect_data_loss();
  }
}

// Neither processed nor reported as consumed; the end's own memory must not grow with them.
TEST_F(RdmaHostileTest, MoreRecordsThanTheRingHolds) {
  ASSERT_NO_FATAL_FAILURE(set_up());
  peer_ = std::make_unique<RawPeer>(fabric_, loop(kA));
  ASSERT_NO_FATAL_FAILURE(peer_->meet(acceptor_->address()));
  ends_[kB] = acceptor_->take();
  ASSERT_TRUE(ends_[kB]);
  peer_->write({.type = RecordType::kFrame});
  for (uint32_t i = 0; i < 200; ++i) peer_->write_immediate(1);
  ASSERT_TRUE(eventually([&] { return fabric_.statistics().immediates >= 200; }));
  recorder_ = std::make_unique<Recorder>();
  run_on(loop(kB), [&] { end(kB).start(recorder_.get()); });
  expect_data_loss();
}

// The frame's payload is being written, and its record follows later.
TEST_F(RdmaHostileTest, ALeaseThatIsGivenBackBeforeItWasGranted) {
  set_up({}, {.cards = {{.max_message_bytes = 8192}}});
  ASSERT_NO_FATAL_FAILURE(meet());
  const std::string large = pattern(RawPeer::kReceiveBufferBytes / 2, 3);
  send(kB, "frame", payload_of(large));
  fabric_.set_options({.delay_us = 300});
  const uint64_t before = fabric_.statistics().writes;
  peer_->write(
      {.type = RecordType::kReserved, .lease = 1, .address = peer_->receive_buffer(), .key = peer_->key()});
  ASSERT_TRUE(eventually([&] { return fabric_.statistics().writes > before + 5; }));
  peer_->write({.type = RecordType::kGiveBack, .returns_lease = 1});
  expect_data_loss();
  fabric_.set_options({});
  EXPECT_EQ(sent_.all().front().code(), StatusCode::kDataLoss);
}

TEST_F(RdmaHostileTest, MemoryThatIsNotThere) {
  expected_mistakes_ = 2;  // made by the peer that sent it
  answers_ = true;
  ASSERT_NO_FATAL_FAILURE(meet());
  Record record = kWithReply;
  record.reply_bytes = 10'000;
  peer_->write(record, "h");  // the answer goes to an invalid address
  EXPECT_EQ(recorder_->why_closed().code(), StatusCode::kUnavailable);
  answers_ = false;
  ASSERT_NO_FATAL_FAILURE(meet());
  const std::string large = pattern(20'000, 3);
  send(kB, "frame", payload_of(large));
  peer_->write({.type = RecordType::kReserved, .lease = 1, .address = UINT64_MAX - 10, .key = 12});
  EXPECT_EQ(recorder_->why_closed().code(), StatusCode::kUnavailable);
  EXPECT_EQ(sent_.all().front().code(), StatusCode::kUnavailable);
}

TEST_F(RdmaHostileTest, ChangedBytesCloseOrMeanSomethingHarmless) {
  std::mt19937 random(1);
  const std::vector<Record> good{
      kReserve,
      kPlaced,
      kPiece,
      {.type = RecordType::kMore, .inline_bytes = 4},
      {.type = RecordType::kFrame, .head_bytes = 1},
      {.type = RecordType::kGiveBack, .returns_lease = 1},
      {.type = RecordType::kReserved, .lease = 1},
      {.type = RecordType::kRelease, .lease = 5},
      {.type = RecordType::kEnd},
  };
  for (int i = 0; i < 200; ++i) {
    answers_ = i % 2 != 0;
    ASSERT_NO_FATAL_FAILURE(meet());
    if (i % 3 == 0) send(kB, "frame", payload_of(text_));
    peer_->write(kReserve);
    if (i % 5 == 0) peer_->write(kPlaced, "h");
    for (int j = 0; j < 6; ++j) {
      std::vector<std::byte> bytes(kRecordBytes + 16);
      encode_record(good[random() % good.size()], std::span(bytes).first<kRecordBytes>());
      const size_t at = random() % kRecordBytes;
      bytes[at] = random() % 2 ? static_cast<std::byte>(random()) : static_cast<std::byte>(random() % 10);
      peer_->write_raw(bytes);
    }
    peer_->write({.type = static_cast<RecordType>(77)});
    const Status why = recorder_->why_closed();
    EXPECT_TRUE(why.code() == StatusCode::kDataLoss || why.code() == StatusCode::kUnavailable) << why;
  }
  leave();
  EXPECT_TRUE(no_queue_pair_is_left(kB));
  sent_.all();
  expected_mistakes_ = fabric_.statistics().mistakes();  // writes to invalid addresses of the peer
  ASSERT_NO_FATAL_FAILURE(connect());
}

TEST_F(RdmaHostileTest, MessagesOfARenewalThatMakeNoSenseNow) {
  set_up_to_renew();
  meet();
  for (const std::string& message : {encode_renewal_request(0), encode_renewal_request(1),
                                     encode_offer(peer_->offer()), std::string("?")}) {
    meet();
    peer_->tell(message);
    expect_data_loss();
  }
}

TEST_F(RdmaHostileTest, OnlyWhatWasSentMayHaveBeenReceived) {
  set_up_to_renew();
  for (const uint32_t arrivals : {2u, ~0u}) {
    meet();
    peer_->meet_again(1, arrivals);  // one message, the introduction, was sent
    expect_data_loss();
  }
  meet();
  peer_->meet_again(1, 1);
  peer_->write({.type = RecordType::kFrame});
  EXPECT_TRUE(recorder_->wait_for_frames(1));
}

}  // namespace
}  // namespace byteps::transport::rdma
