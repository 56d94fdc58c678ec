// A shard, and scripted workers at the other ends of in-process connections, with and without
// leased buffers.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/event_flag.h"
#include "base/log.h"
#include "summation/shard.h"
#include "transport/epoll_loop.h"
#include "transport/inproc.h"
#include "transport/shm/shm_transport.h"

namespace byteps::summation {

using protocol::DataHead;
using protocol::DataType;
using protocol::Level;

constexpr uint32_t kEpoch = 0xfeedbeef;
constexpr uint64_t kCreditBytes = 1 << 20;
constexpr size_t kCount = 4;  // elements of every tensor here
using Values = std::vector<int32_t>;

// One worker's end. Everything runs on the shard's loop.
class Peer final : public transport::Receiver {
 public:
  Peer(std::unique_ptr<transport::Connection> connection, uint32_t rank)
      : rank_(rank), connection_(std::move(connection)) {
    connection_->start(this);
  }

  void hello() { send(plain(DataType::kHello), {}); }
  void goodbye() { send(plain(DataType::kGoodbye), {}); }
  DataHead head(uint32_t round) const {
    DataHead head;
    head.type = DataType::kPushPull;
    head.dtype = dtype_;
    head.key = {1, 0};
    head.round = round;
    head.rank = rank_;
    head.op = op_;
    head.staleness = staleness_;
    head.root_node = top_;
    head.bytes = kCount * sizeof(int32_t);
    return head;
  }
  // Contributes `values` as leased memory, with space for the answer if `with_reply_space`.
  void contribute(uint32_t round, Values values, bool with_reply_space = false) {
    values_ = std::move(values);
    send(head(round), std::as_bytes(std::span(values_)), with_reply_space);
  }
  void send(const DataHead& head, Bytes payload, bool with_reply_space = false) {
    const MutableBytes space = with_reply_space ? std::as_writable_bytes(std::span(values_)) : MutableBytes{};
    connection_->send(protocol::encode(head), {payload, space}, nullptr);
  }
  void close() { connection_->close(); }

  uint32_t epoch_ = kEpoch;
  Level level_ = Level::kCluster;
  uint16_t top_ = 0;
  DType dtype_ = DType::kInt32;  // or another dtype of that size
  ReduceOp op_ = ReduceOp::kSum;
  uint8_t staleness_ = 0;
  Values values_;
  std::vector<DataHead> answers_;
  std::vector<std::string> texts_;  // payloads of the answers
  std::optional<Status> closed_;
  UniqueFunction<void()> when_answered_;

 private:
  DataHead plain(DataType type) const {
    DataHead head;
    head.type = type;
    head.epoch = epoch_;
    head.level = level_;
    head.rank = rank_;
    return head;
  }
  Result<transport::ReceiveBuffer> on_head(transport::Connection&,
                                           const transport::Arrival& arrival) override {
    receive_buffer_.resize(arrival.payload_bytes);
    return transport::ReceiveBuffer::at(receive_buffer_);
  }
  Status on_frame(transport::Connection&, const transport::Arrival& arrival, Bytes payload) override {
    answers_.push_back(*protocol::decode_data(arrival.head));
    texts_.emplace_back(as_text(payload));
    if (when_answered_) when_answered_();
    return Status::ok();
  }
  void on_closed(transport::Connection&, const Status& why) override { closed_ = why; }

  uint32_t rank_;
  std::vector<std::byte> receive_buffer_;
  std::unique_ptr<transport::Connection> connection_;
};

class ShardFixture : public testing::Test, public ShardEvents {
 protected:
  ShardFixture() : loop_(std::move(*transport::EpollLoop::create("shard-test"))) {
    shard_ = std::make_unique<Shard>(0, *loop_, outbox_, metrics_, *this);
  }
  // Starts a shard at `position` of the job, to which ranks 0 and 1 contribute at `level`.
  void start(Position position, Level level) {
    position.epoch = kEpoch;
    position.num_workers = static_cast<uint32_t>(position.describe_rank.size());
    if (position.limits.op_timeout_us == 0) position.limits = {kNever, kNever};
    on_loop([&] { shard_->start(position); });
    for (uint32_t rank = 0; rank < 2; ++rank) {
      peers_.push_back(connect(rank));
      peers_.back()->level_ = level;
    }
    on_loop([this] {
      for (const auto& peer : peers_) peer->hello();
    });
  }
  // Not in the destructor: until here the loop calls virtual functions of this object.
  void TearDown() override {
    on_loop([this] {
      peers_.clear();
      shard_.reset();
    });
  }

  std::unique_ptr<Peer> connect(uint32_t rank) {
    std::unique_ptr<Peer> peer;
    on_loop([&] {
      auto [mine, other] = transport::make_inproc_pair(*loop_);
      peer = std::make_unique<Peer>(std::move(mine), rank);
      shard_->adopt(std::move(other));
    });
    return peer;
  }
  // A worker that appears to be in another process and can lease `arena_bytes` at a time.
  std::unique_ptr<Peer> connect_shm(uint32_t rank, size_t arena_bytes) {
    const auto shm =
        transport::make_shm_transport({.stream = {.credentials = {"", "job"}}, .arena_bytes = arena_bytes});
    std::unique_ptr<Peer> peer;
    EventFlag adopted;
    EventFlag connected;
    auto listener = shm->listen(*loop_, {"@", 0}, [&](auto connection) {
      shard_->adopt(std::move(connection));
      adopted.set();
    });
    shm->connect(*loop_, (*listener)->address(), kNever, [&](auto connection) {
      peer = std::make_unique<Peer>(std::move(*connection), rank);
      connected.set();
    });
    adopted.wait(kNever);
    connected.wait(kNever);
    on_loop([&] { listener->reset(); });
    return peer;
  }
  // Runs `task` on the loop, and then all tasks that it has caused.
  void on_loop(UniqueFunction<void()> task) {
    loop_->run_and_wait(std::move(task));
    for (int i = 0; i < 10; ++i) loop_->run_and_wait([] {});
  }
  void on_child_lost(uint32_t child, const Status&) override { lost_.push_back(child); }
  void on_stalled(const protocol::Stalled& stalled) override { BPS_LOG(kWarning) << stalled.describe(); }

  Values result_of(const Peer& peer, size_t answer = 0) {
    Values values(kCount);
    EXPECT_EQ(peer.texts_.at(answer).size(), kCount * sizeof(int32_t)) << peer.texts_.at(answer);
    std::memcpy(values.data(), peer.texts_.at(answer).data(), peer.texts_.at(answer).size());
    return values;
  }

  Metrics metrics_;
  protocol::Outbox outbox_{kCreditBytes};
  std::unique_ptr<transport::EventLoop> loop_;
  std::unique_ptr<Shard> shard_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<uint32_t> lost_;
};

// A root of two machines of one rank each.
class RootFixture : public ShardFixture {
 protected:
  RootFixture() {
    start({.describe_rank = {"rank 0", "rank 1"},
           .machines = {{"rank 0", "rank 1"}, {0, 1}},
           .ranks = {},
           .bytes_per_s = {},
           .limits = {}},
          Level::kCluster);
  }
};

}  // namespace byteps::summation
