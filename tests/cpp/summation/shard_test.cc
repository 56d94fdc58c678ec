// A shard and scripted workers at the other ends of in-process connections, some of which lend and some of which do not.
#include "summation/shard.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/event_flag.h"
#include "transport/inproc.h"
#include "transport/shm/shm_transport.h"

namespace byteps::summation {
namespace {

using protocol::DataHead;
using protocol::DataType;

constexpr uint32_t kEpoch = 0xfeedbeef;
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
    head.dtype = DType::kInt32;
    head.key = {1, 0};
    head.round = round;
    head.rank = rank_;
    head.bytes = kCount * sizeof(int32_t);
    return head;
  }
  // Contributes `values`, whose memory is lent with a place for the answer if `with_reply_space`.
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
    head.rank = rank_;
    return head;
  }
  Result<transport::Landing> on_head(transport::Connection&, const transport::Arrival& arrival) override {
    landing_.resize(arrival.payload_bytes);
    return transport::Landing::into(landing_);
  }
  Status on_frame(transport::Connection&, const transport::Arrival& arrival, Bytes payload) override {
    answers_.push_back(*protocol::decode_data(arrival.head));
    texts_.emplace_back(as_text(payload));
    if (when_answered_) when_answered_();
    return Status::ok();
  }
  void on_closed(transport::Connection&, const Status& why) override { closed_ = why; }

  uint32_t rank_;
  std::vector<std::byte> landing_;
  std::unique_ptr<transport::Connection> connection_;
};

class ShardTest : public testing::Test, public ShardEvents {
 protected:
  ShardTest() : loop_(std::move(*transport::EventLoop::create("shard-test"))) {
    shard_ = std::make_unique<Shard>(*loop_, metrics_, *this);
    on_loop([this] { shard_->start({"rank 0", "rank 1"}, kEpoch, {kNever, kNever}); });
    for (uint32_t rank = 0; rank < 2; ++rank) peers_.push_back(connect(rank));
    on_loop([this] {
      for (const auto& peer : peers_) peer->hello();
    });
  }
  ~ShardTest() override {
    on_loop([this] {
      peers_.clear();
      shard_.reset();
    });
  }

  std::unique_ptr<Peer> connect(uint32_t rank) {
    std::unique_ptr<Peer> peer;
    on_loop([&] {
      auto [mine, other] = transport::make_inproc_pair(*loop_, *loop_);
      peer = std::make_unique<Peer>(std::move(mine), rank);
      shard_->adopt(std::move(other));
    });
    return peer;
  }
  // A worker in another process, as far as anybody can tell, that can lend `lend_bytes` at a time.
  std::unique_ptr<Peer> connect_shm(uint32_t rank, size_t lend_bytes) {
    const auto shm =
        transport::make_shm_transport({.stream = {.credentials = {"", "job"}}, .lend_bytes = lend_bytes});
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
  // Runs `task` on the loop, and then all that it has caused.
  void on_loop(UniqueFunction<void()> task) {
    loop_->run_and_wait(std::move(task));
    for (int i = 0; i < 10; ++i) loop_->run_and_wait([] {});
  }
  void on_child_lost(uint32_t child, const Status&) override { lost_.push_back(child); }

  Values result_of(const Peer& peer, size_t answer = 0) {
    Values values(kCount);
    EXPECT_EQ(peer.texts_.at(answer).size(), kCount * sizeof(int32_t));
    std::memcpy(values.data(), peer.texts_.at(answer).data(), peer.texts_.at(answer).size());
    return values;
  }

  Metrics metrics_;
  std::unique_ptr<transport::EventLoop> loop_;
  std::unique_ptr<Shard> shard_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<uint32_t> lost_;
};

TEST_F(ShardTest, AnswersEveryChildOnceAllHaveContributed) {
  on_loop([this] { peers_[1]->contribute(1, {1, 2, 3, 4}); });
  EXPECT_TRUE(peers_[1]->answers_.empty());
  on_loop([this] { peers_[0]->contribute(1, {10, 20, 30, 40}); });
  for (const auto& peer : peers_) {
    ASSERT_EQ(peer->answers_.size(), 1u);
    EXPECT_EQ(peer->answers_[0].type, DataType::kResult);
    EXPECT_EQ(result_of(*peer), (Values{11, 22, 33, 44}));
  }
  EXPECT_EQ(metrics_.sums.load(), 1u);
}

TEST_F(ShardTest, TheResultOfALentContributionIsPutIntoItsReplySpace) {
  on_loop([this] { peers_[0]->contribute(1, {10, 20, 30, 40}, true); });
  on_loop([this] { peers_[1]->contribute(1, {1, 2, 3, 4}); });
  ASSERT_EQ(peers_[0]->answers_.size(), 1u);
  EXPECT_EQ(peers_[0]->values_, (Values{11, 22, 33, 44}));
  EXPECT_EQ(result_of(*peers_[0]), (Values{11, 22, 33, 44}));
  EXPECT_EQ(result_of(*peers_[1]), (Values{11, 22, 33, 44}));
}

TEST_F(ShardTest, ARepeatedContributionCountsOnce) {
  on_loop([this] {
    peers_[0]->contribute(1, {1, 1, 1, 1});
    peers_[0]->send(peers_[0]->head(1), std::as_bytes(std::span(peers_[0]->values_)));
    peers_[1]->contribute(1, {2, 2, 2, 2});
  });
  EXPECT_EQ(result_of(*peers_[1]), (Values{3, 3, 3, 3}));
  EXPECT_EQ(peers_[0]->answers_.size(), 1u);
}

TEST_F(ShardTest, ASkippedRoundClosesThatConnectionOnly) {
  on_loop([this] { peers_[0]->contribute(2, {1, 1, 1, 1}); });
  ASSERT_TRUE(peers_[0]->closed_);
  EXPECT_EQ(lost_, std::vector<uint32_t>{0});
  EXPECT_FALSE(peers_[1]->closed_);
}

TEST_F(ShardTest, NothingCountsBeforeTheHello) {
  const auto stranger = connect(1);
  on_loop([&] { stranger->contribute(1, {9, 9, 9, 9}); });
  EXPECT_TRUE(stranger->closed_);
  EXPECT_TRUE(lost_.empty()) << "nobody knows who it was";
}

TEST_F(ShardTest, HellosOfRanksThatDoNotExistAreNoHellos) {
  const auto stranger = connect(2);
  on_loop([&] { stranger->hello(); });
  EXPECT_TRUE(stranger->closed_);
}

TEST_F(ShardTest, ASecondConnectionOfARankIsRefusedWithoutHarm) {
  const auto twin = connect(0);
  on_loop([&] { twin->hello(); });
  EXPECT_TRUE(twin->closed_);
  EXPECT_FALSE(peers_[0]->closed_);
  EXPECT_TRUE(lost_.empty());
}

TEST_F(ShardTest, AHelloOfAnotherEpochIsOfAnotherJob) {
  on_loop([this] { peers_[0]->close(); });
  lost_.clear();
  const auto stray = connect(0);
  stray->epoch_ = kEpoch + 1;
  on_loop([&] { stray->hello(); });
  EXPECT_TRUE(stray->closed_);
  EXPECT_TRUE(lost_.empty());
}

TEST_F(ShardTest, AChildThatLeftFailsTheOthersRounds) {
  on_loop([this] { peers_[1]->goodbye(); });
  on_loop([this] { peers_[0]->contribute(1, {1, 1, 1, 1}); });
  ASSERT_EQ(peers_[0]->answers_.size(), 1u);
  EXPECT_EQ(peers_[0]->answers_[0].type, DataType::kFailed);
  EXPECT_EQ(peers_[0]->texts_[0], "rank 1 has left the job");
  EXPECT_TRUE(lost_.empty());
}

TEST_F(ShardTest, WhatALeavingChildHadLentStillCounts) {
  on_loop([this] {
    peers_[1]->contribute(1, {1, 2, 3, 4}, true);
    peers_[1]->goodbye();
  });
  peers_[1]->values_ = {0, 0, 0, 0};  // its owner may do so: it has left
  on_loop([this] { peers_[0]->contribute(1, {10, 20, 30, 40}); });
  EXPECT_EQ(result_of(*peers_[0]), (Values{11, 22, 33, 44}));
  EXPECT_EQ(peers_[1]->values_, (Values{0, 0, 0, 0}));
}

// Shared memory goes away with its connection.
TEST_F(ShardTest, WhatALostChildHadLentIsCopiedBeforeItsConnectionGoes) {
  on_loop([this] { peers_[1]->contribute(1, {1, 2, 3, 4}, true); });
  on_loop([this] { peers_[1]->close(); });
  peers_[1]->values_ = {0, 0, 0, 0};
  on_loop([this] { peers_[0]->contribute(1, {10, 20, 30, 40}); });
  EXPECT_EQ(result_of(*peers_[0]), (Values{11, 22, 33, 44}));
  EXPECT_EQ(peers_[1]->values_, (Values{0, 0, 0, 0}));
}

TEST_F(ShardTest, RoomForAnAnswerOfAnotherSizeClosesTheConnection) {
  on_loop([this] {
    peers_[0]->values_.resize(kCount + 1);
    peers_[0]->send(peers_[0]->head(1), std::as_bytes(std::span(peers_[0]->values_).first(kCount)), true);
  });
  EXPECT_EQ(peers_[0]->closed_->code(), StatusCode::kUnavailable);
  EXPECT_EQ(lost_, std::vector<uint32_t>{0});
}

TEST_F(ShardTest, AFailedJobAnswersAllAndTouchesNoLentMemory) {
  on_loop([this] { peers_[0]->contribute(1, {1, 2, 3, 4}, true); });
  on_loop([this] { shard_->fail(unavailable("rank 1 is dead")); });
  ASSERT_EQ(peers_[0]->answers_.size(), 1u);
  EXPECT_EQ(peers_[0]->texts_[0], "rank 1 is dead");
  on_loop([this] { peers_[1]->contribute(1, {1, 1, 1, 1}); });
  EXPECT_EQ(peers_[1]->texts_.at(0), "rank 1 is dead");
  EXPECT_EQ(peers_[0]->values_, (Values{1, 2, 3, 4}));
}

TEST_F(ShardTest, ABrokenConnectionIsReportedAndItsAnswersGoNowhere) {
  on_loop([this] { peers_[0]->contribute(1, {1, 1, 1, 1}); });
  on_loop([this] { peers_[0]->close(); });
  on_loop([this] { peers_[1]->contribute(1, {2, 2, 2, 2}); });
  EXPECT_EQ(lost_, std::vector<uint32_t>{0});
  EXPECT_EQ(result_of(*peers_[1]), (Values{3, 3, 3, 3}));
}

TEST_F(ShardTest, LeavingSaysGoodbyeAndEndsWhenAllChildrenAreGone) {
  EventFlag left;
  on_loop([&] { shard_->leave(now_us() + 10'000'000, [&] { left.set(); }); });
  for (const auto& peer : peers_) {
    ASSERT_EQ(peer->answers_.size(), 1u);
    EXPECT_EQ(peer->answers_[0].type, DataType::kGoodbye);
    on_loop([&] { peer->close(); });
  }
  EXPECT_EQ(left.wait(now_us() + 5'000'000), EventFlag::Wake::kSet);
}

// Rank 0 can lend one contribution at a time, and rank 1 contributes in the other order.
TEST_F(ShardTest, LoansThatTheirChildNeedsGoBackThoughTheirRoundsWait) {
  on_loop([this] { peers_[0]->close(); });
  peers_[0] = connect_shm(0, kCount * sizeof(int32_t));
  const auto contribute = [this](uint32_t rank, uint32_t tensor) {
    DataHead head = peers_[rank]->head(1);
    head.key.tensor = tensor;
    peers_[rank]->values_ = {1, 2, 3, static_cast<int32_t>(tensor)};
    peers_[rank]->send(head, std::as_bytes(std::span(peers_[rank]->values_)), true);
  };
  EventFlag answered;
  on_loop([&] {
    peers_[0]->hello();
    contribute(0, 7);
  });
  on_loop([&] {
    contribute(0, 8);
    peers_[1]->when_answered_ = [&] { contribute(1, 7); };
    peers_[0]->when_answered_ = [&] {
      if (peers_[0]->answers_.size() == 2) answered.set();
    };
    contribute(1, 8);
  });
  EXPECT_EQ(answered.wait(now_us() + 10'000'000), EventFlag::Wake::kSet);
  on_loop([] {});
  EXPECT_EQ(peers_[0]->answers_.at(0).key.tensor, 8u);
  EXPECT_EQ(result_of(*peers_[0], 0), (Values{2, 4, 6, 16}));
  EXPECT_EQ(result_of(*peers_[0], 1), (Values{2, 4, 6, 14}));
}

// Found by simulation: a survivor's goodbye overtook the scheduler's verdict, and the survivor was taken for the cause.
TEST_F(ShardTest, AfterAFailureNobodyGetsAGoodbye) {
  EventFlag left;
  on_loop([this] { shard_->fail(unavailable("rank 1 is dead")); });
  on_loop([&] { shard_->leave(now_us() + 10'000'000, [&] { left.set(); }); });
  for (const auto& peer : peers_) {
    EXPECT_TRUE(peer->answers_.empty());
    on_loop([&] { peer->close(); });
  }
  EXPECT_EQ(left.wait(now_us() + 5'000'000), EventFlag::Wake::kSet);
}

TEST_F(ShardTest, AFailureEndsTheWaitForAChildThatDoesNotRead) {
  std::unique_ptr<transport::Connection> stopped;
  EventFlag left;
  on_loop([&] {
    auto [mine, other] = transport::make_inproc_pair(*loop_, *loop_);
    stopped = std::move(mine);
    shard_->adopt(std::move(other));
    shard_->leave(kNever, [&] { left.set(); });
  });
  EXPECT_FALSE(left.is_set());
  on_loop([this] { shard_->fail(unavailable("rank 1 is dead")); });
  EXPECT_TRUE(left.is_set());
  on_loop([&] { stopped.reset(); });
}

}  // namespace
}  // namespace byteps::summation
