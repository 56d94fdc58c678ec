// A service of two shards, each on a loop of its own.
#include "summation/service.h"
#include "base/event_flag.h"

#include "summation/harness.h"

namespace byteps::summation {
namespace {

class ServiceTest : public testing::Test, public ShardEvents {
 protected:
  ServiceTest() {
    std::vector<Service::ShardLoop> loops;
    for (size_t i = 0; i < 2; ++i) {
      loops_.push_back(std::move(*transport::EpollLoop::create("service-test")));
      loops.push_back({loops_.back().get(), &outboxes_[i]});
    }
    service_ = std::make_unique<Service>(loops, metrics_, *this);
    service_->start({.epoch = kEpoch,
                     .num_workers = 2,
                     .describe_rank = {"rank 0", "rank 1"},
                     .machines = {{"rank 0", "rank 1"}, {0, 1}},
                     .ranks = {},
                     .bytes_per_s = {},
                     .limits = {kNever, kNever}});
    for (size_t i = 0; i < 2; ++i) {
      on_loop(i, [&, this] {
        auto [mine, other] = transport::make_inproc_pair(*loops_[i]);
        peers_.push_back(std::make_unique<Peer>(std::move(mine), 0));
        service_->shard(i).adopt(std::move(other));
        peers_.back()->hello();
      });
    }
  }
  // Not in the destructor: until here the loops call virtual functions of this object.
  void TearDown() override {
    for (size_t i = 0; i < 2; ++i) on_loop(i, [&, this] { peers_[i].reset(); });
    service_.reset();
  }

  void on_loop(size_t loop, UniqueFunction<void()> task) {
    loops_[loop]->run_and_wait(std::move(task));
    for (int i = 0; i < 10; ++i) loops_[loop]->run_and_wait([] {});
  }
  // Rank 0 contributes to each shard.
  void contribute(uint32_t round) {
    for (size_t i = 0; i < 2; ++i) on_loop(i, [&, this] { peers_[i]->contribute(round, {1, 1, 1, 1}); });
  }
  void drain() {
    for (size_t i = 0; i < 2; ++i) on_loop(i, [] {});
  }
  void expect_failed(const std::string& why) {
    for (const auto& peer : peers_) {
      ASSERT_EQ(peer->texts_.size(), 1u);
      EXPECT_EQ(peer->texts_[0], why);
    }
  }
  void on_child_lost(uint32_t, const Status&) override {}
  void on_stalled(const protocol::Stalled&) override {}

  Metrics metrics_;
  std::array<protocol::Outbox, 2> outboxes_ = {protocol::Outbox{kCreditBytes},
                                               protocol::Outbox{kCreditBytes}};
  std::vector<std::unique_ptr<transport::EventLoop>> loops_;
  std::unique_ptr<Service> service_;
  std::vector<std::unique_ptr<Peer>> peers_;  // rank 0 at each shard
};

// Rank 1 never connected, so no goodbye says that it has left.
TEST_F(ServiceTest, EveryShardLearnsThatARankHasLeft) {
  contribute(1);
  service_->rank_left(1, false);
  drain();
  expect_failed("rank 1 has left the job");
}

TEST_F(ServiceTest, EveryShardLearnsThatATensorHasFailed) {
  contribute(1);
  service_->fail_tensor(protocol::number_of(protocol::Key{1, 0}), 1, invalid_argument("rank 1 refuses it"));
  drain();
  expect_failed("rank 1 refuses it");
}

TEST_F(ServiceTest, EveryShardForgetsATensorAndItsFailures) {
  service_->fail_tensor(protocol::number_of(protocol::Key{1, 0}), 1, invalid_argument("rank 1 refuses it"));
  contribute(1);
  drain();
  expect_failed("rank 1 refuses it");
  service_->forget({{.tensor = 1, .partitions = 1}});
  contribute(1);
  drain();
  for (const auto& peer : peers_) EXPECT_EQ(peer->answers_.size(), 1u) << "a new round 1 waits for rank 1";
  service_->fail(unavailable("the test ends"));  // so nothing waits in memory of the peers
  drain();
}

TEST_F(ServiceTest, EveryShardLearnsThatTheJobHasFailed) {
  contribute(1);
  service_->fail(unavailable("rank 1 is dead"));
  drain();
  expect_failed("rank 1 is dead");
}

TEST_F(ServiceTest, LeavingSaysGoodbyeFromEveryShardAndEnds) {
  EventFlag left;
  service_->leave(now_us() + 10'000'000, [&left] { left.set(); });
  EXPECT_EQ(left.wait(now_us() + 5'000'000), EventFlag::Wake::kSet);
  drain();
  for (const auto& peer : peers_) {
    ASSERT_EQ(peer->answers_.size(), 1u);
    EXPECT_EQ(peer->answers_[0].type, DataType::kGoodbye);
  }
}

}  // namespace
}  // namespace byteps::summation
