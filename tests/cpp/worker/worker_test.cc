// A worker, with links to a scripted server over in-process connections and a scripted scheduler.
#include "worker/worker.h"

#include <gtest/gtest.h>

#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transport/epoll_loop.h"
#include "transport/inproc.h"
#include "worker/completion_thread.h"

namespace byteps::worker {
namespace {

using protocol::DataHead;
using protocol::DataType;
using protocol::Handle;
using protocol::Level;

constexpr uint32_t kRank = 1;
constexpr uint32_t kServer = 2;  // node number; its reducer host has the same number
constexpr uint64_t kPartitionBytes = 4096;

// Two workers on machines of their own, and a server.
protocol::Tree make_tree() {
  std::vector<protocol::NodeInfo> nodes(3);
  for (size_t i = 0; i < nodes.size(); ++i) {
    nodes[i].machine = std::to_string(i);
    nodes[i].endpoints = {{"tcp", {"a"}}};
  }
  return {nodes, 2};
}

// The server's end of a link: records the contributions.
class Server final : public transport::Receiver {
 public:
  std::vector<DataHead> heads;               // of contributions and failures
  std::map<uint32_t, std::string> payloads;  // key: partition
  std::unique_ptr<transport::Connection> connection;

  void answer(DataHead head, std::string result) {
    head.type = DataType::kResult;
    send(head, std::move(result));
  }
  void answer_failure(DataHead head, std::string why) {
    head.type = DataType::kFailed;
    head.code = StatusCode::kUnavailable;
    send(head, std::move(why));
  }

 private:
  void send(const DataHead& head, std::string payload) {
    sent_.push_back(std::move(payload));
    connection->send(protocol::encode(head), {as_bytes(sent_.back()), {}}, nullptr);
  }
  Result<transport::ReceiveBuffer> on_head(transport::Connection&, const transport::Arrival&) override {
    return transport::ReceiveBuffer::in_place();
  }
  Status on_frame(transport::Connection&, const transport::Arrival& arrival, Bytes payload) override {
    const DataHead head = *protocol::decode_data(arrival.head);
    if (head.type == DataType::kHello) return Status::ok();
    heads.push_back(head);
    payloads[head.key.partition] = as_text(payload);
    return Status::ok();
  }
  void on_closed(transport::Connection&, const Status&) override {}

  std::list<std::string> sent_;  // passed by reference
};

class WorkerTest : public testing::Test, public WorkerEvents {
 protected:
  WorkerTest() : loop_(std::move(*transport::EpollLoop::create("worker-test"))) {
    const protocol::Tree tree = make_tree();
    worker_ =
        std::make_unique<Worker>(WorkerOptions{.rank = kRank, .credit_bytes = 1 << 20}, tree,
                                 protocol::PartitionRule(tree.reducer_hosts(), kPartitionBytes), metrics_,
                                 *loop_, std::make_unique<CompletionThread>(), staging_, *this);
    add_links(worker_->links(), Level::kCluster, sums_);
    add_links(worker_->parameter_store_links(), Level::kRanks, store_);
  }
  // Not in the destructor: until here the loop calls virtual functions of this object.
  void TearDown() override {
    worker_->fail(unavailable("the test is over"));
    drain();
    loop_->stop();
    sums_.connection.reset();
    store_.connection.reset();
    worker_.reset();
  }

  // Runs all posted tasks, and those that they post.
  void drain() {
    for (int i = 0; i < 10; ++i) loop_->run_and_wait([] {});
  }
  void on_loop(UniqueFunction<void()> task) {
    loop_->run_and_wait(std::move(task));
    drain();
  }
  Handle push_pull(std::string& tensor, const std::string& name = "x", ReduceOp op = ReduceOp::kSum) {
    auto* const data = reinterpret_cast<std::byte*>(tensor.data());
    const auto handle = worker_->push_pull(
        {.name = name, .dtype = DType::kInt8, .bytes = tensor.size(), .op = op}, {data, data});
    EXPECT_TRUE(handle.is_ok()) << handle.status();
    drain();
    return *handle;
  }
  void place(const std::string& name, size_t partitions) {
    const std::vector<protocol::RootLocation> locations(partitions, {kServer, 0});
    EXPECT_TRUE(worker_->on_placed({.name = name, .tensor = ++last_tensor_, .locations = locations}).is_ok());
    drain();
  }
  bool is_done(Handle handle) { return *worker_->handles().poll(handle); }
  Status outcome(Handle handle) {
    bool interrupted = false;
    return worker_->handles().wait(handle, now_us() + 10'000'000, interrupted);
  }

  // WorkerEvents
  void send_to_scheduler(protocol::Control message) override { told_.push_back(std::move(message)); }
  void on_link_lost(uint32_t service, const Status&) override { lost_.push_back(service); }
  void on_credit(uint64_t credit_bytes) override { credits_.push_back(credit_bytes); }
  Status explain(const Status& failure) const override { return failure; }

  Metrics metrics_;
  DeviceStaging staging_{[] { return unimplemented("no device"); }, 0, {}, metrics_};
  protocol::Outbox outbox_{1 << 20};
  std::unique_ptr<transport::EventLoop> loop_;
  Server sums_;   // the server's end of the link for sums
  Server store_;  // the same for stored tensors
  std::unique_ptr<Worker> worker_;
  uint32_t last_tensor_ = 0;
  std::vector<protocol::Control> told_;  // messages to the scheduler
  std::vector<uint32_t> lost_;
  std::vector<uint64_t> credits_;

 private:
  void add_links(ShardLinks& links, Level level, Server& server) {
    links.add_service({});
    links.add_service({});
    LinkOptions options{
        .rank = kRank, .epoch = 1, .level = level, .service = kServer, .service_text = "server 2"};
    auto connector = [this, &server](transport::ConnectCallback done) {
      auto [mine, other] = transport::make_inproc_pair(*loop_);
      server.connection = std::move(other);
      server.connection->start(&server);
      done(std::move(mine));
    };
    std::vector<ShardLink> of_server;
    of_server.push_back({loop_.get(), std::make_unique<Link>(std::move(options), std::move(connector),
                                                             outbox_, metrics_, *worker_)});
    links.add_service(std::move(of_server));
  }
};

TEST_F(WorkerTest, PartitionsAreReadFromTheirPlaceInTheTensorAndResultsWrittenThere) {
  std::string tensor(2 * kPartitionBytes + 100, 'a');
  for (size_t i = 0; i < tensor.size(); ++i) tensor[i] = static_cast<char>('a' + i % 23);
  const std::string input = tensor;
  const Handle handle = push_pull(tensor);
  place("x", 3);
  ASSERT_EQ(sums_.heads.size(), 3u);
  const uint64_t sizes[] = {kPartitionBytes, kPartitionBytes, 100};
  std::vector<std::string> results;
  for (uint32_t partition = 0; partition < 3; ++partition) {
    EXPECT_EQ(sums_.payloads[partition], input.substr(partition * kPartitionBytes, sizes[partition]));
    results.emplace_back(sizes[partition], static_cast<char>('A' + partition));
  }
  on_loop([&] {
    for (const DataHead& head : sums_.heads) sums_.answer(head, results[head.key.partition]);
  });
  EXPECT_TRUE(outcome(handle).is_ok());
  EXPECT_EQ(tensor, results[0] + results[1] + results[2]);
}

TEST_F(WorkerTest, AHandleIsDoneAfterItsLastPartition) {
  std::string tensor(2 * kPartitionBytes, 'a');
  const std::string result(kPartitionBytes, 'A');
  const Handle handle = push_pull(tensor);
  place("x", 2);
  on_loop([&] { sums_.answer(sums_.heads[1], result); });
  EXPECT_FALSE(is_done(handle));
  on_loop([&] { sums_.answer(sums_.heads[0], result); });
  EXPECT_TRUE(is_done(handle));
}

TEST_F(WorkerTest, AFailedPartitionIsReportedToTheSchedulerWhileOthersWait) {
  std::string tensor(2 * kPartitionBytes, 'a');
  const Handle handle = push_pull(tensor);
  place("x", 2);
  told_.clear();
  on_loop([&] { sums_.answer_failure(sums_.heads[0], "rank 0 has another shape"); });
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_EQ(std::get<protocol::RoundFailed>(told_[0]),
            (protocol::RoundFailed{"x", 1, false, StatusCode::kUnavailable, "rank 0 has another shape"}));
  EXPECT_FALSE(is_done(handle)) << "the other partition still uses the tensor";
  on_loop([&] { sums_.answer_failure(sums_.heads[1], "rank 0 has another shape"); });
  EXPECT_EQ(outcome(handle).code(), StatusCode::kUnavailable);
}

// A push_pull is in flight on each of the two links.
class TwoLinksTest : public WorkerTest {
 protected:
  void SetUp() override {
    handles_ = {push_pull(summed_, "summed"), push_pull(stored_, "stored", ReduceOp::kSeed)};
    place("summed", 1);
    place("stored", 1);
    ASSERT_EQ(sums_.heads.size(), 1u);
    ASSERT_EQ(store_.heads.size(), 1u);
  }
  void expect_failed(const std::string& why) {
    for (const Handle handle : handles_) {
      ASSERT_TRUE(is_done(handle));
      EXPECT_NE(outcome(handle).message().find(why), std::string::npos);
    }
    EXPECT_TRUE(lost_.empty());
  }

 private:
  std::string summed_ = std::string(8, 'a');
  std::string stored_ = std::string(8, 'a');
  std::vector<Handle> handles_;
};

TEST_F(TwoLinksTest, AFailureOfTheJobEndsPushPullsOnAllLinks) {
  worker_->fail(unavailable("rank 0 is dead"));
  drain();
  expect_failed("rank 0 is dead");
}

TEST_F(TwoLinksTest, AServiceThatHasLeftEndsPushPullsOnBothOfItsLinks) {
  worker_->peer_left(kServer);
  on_loop([this] {
    sums_.connection->close();
    store_.connection->close();
  });
  expect_failed("server 2 has left the job");
}

TEST_F(WorkerTest, ALinkThatBreaksIsReportedAndTheVerdictAwaited) {
  std::string tensor(8, 'a');
  const Handle handle = push_pull(tensor);
  place("x", 1);
  on_loop([this] { sums_.connection->close(); });
  EXPECT_EQ(lost_, std::vector<uint32_t>{kServer});
  EXPECT_FALSE(is_done(handle));
}

TEST_F(WorkerTest, TheNextPushPullOfATensorTakesUpThePlanOfTheAnswer) {
  std::string tensor(8, 'a');
  const Handle first = push_pull(tensor);
  place("x", 1);
  on_loop([this] {
    DataHead head = sums_.heads[0];
    head.plan.credit = 9;
    sums_.answer(head, "AAAAAAAA");
  });
  EXPECT_TRUE(outcome(first).is_ok());
  EXPECT_TRUE(credits_.empty()) << "other ranks may not have the answer yet";
  push_pull(tensor);
  EXPECT_EQ(credits_, std::vector<uint64_t>{protocol::credit_of_code(9)});
}

TEST_F(WorkerTest, ARequestedPlacementIsInEveryPlanAndMovesAreCountedOnce) {
  std::string tensor(8, 'a');
  worker_->request_placement(3);
  worker_->request_plan({.partition_scale = 0, .credit = 9});
  const Handle first = push_pull(tensor);
  place("x", 1);
  EXPECT_EQ(sums_.heads.at(0).plan, (protocol::Plan{.credit = 9, .placement = 3}));
  on_loop([this] { sums_.answer(sums_.heads[0], "AAAAAAAA"); });
  EXPECT_TRUE(outcome(first).is_ok());
  EXPECT_EQ(metrics_.placement_moves, 0u);
  const protocol::Declare declare = std::get<protocol::Declare>(told_.back());
  EXPECT_EQ(declare.placement, 3u);
  EXPECT_TRUE(
      worker_->on_placed({.name = "x", .tensor = 1, .locations = {{kServer, 0}}, .placement = 3}).is_ok());
  for (int i = 1; i < 3; ++i) {
    const Handle next = push_pull(tensor);
    on_loop([this, i] { sums_.answer(sums_.heads.at(static_cast<size_t>(i)), "AAAAAAAA"); });
    EXPECT_TRUE(outcome(next).is_ok());
  }
  EXPECT_EQ(metrics_.placement_moves, 1u);
  EXPECT_EQ(metrics_.plan_changes, 1u) << "of the credit";
}

TEST_F(WorkerTest, APushPullThatCannotStartTellsItsCallback) {
  std::string tensor(8, 'a');
  auto* const data = reinterpret_cast<std::byte*>(tensor.data());
  Status told;
  worker_->push_pull({.name = "", .dtype = DType::kInt8, .bytes = 8}, {data, data},
                     [&told](const Status& status) { told = status; });
  EXPECT_EQ(told.code(), StatusCode::kInvalidArgument);
}

// The rank also tells the service of the first partition, which then knows the cause first.
TEST_F(WorkerTest, ARefusedCallIsReportedToTheSchedulerAndToTheService) {
  std::string tensor(8, 'a');
  const Handle first = push_pull(tensor);
  place("x", 1);
  on_loop([this] { sums_.answer(sums_.heads[0], "AAAAAAAA"); });
  EXPECT_TRUE(outcome(first).is_ok());
  told_.clear();
  worker_->refuse("x", 0, invalid_argument("not a number"));
  drain();
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_EQ(std::get<protocol::RoundFailed>(told_[0]).round, 2u);
  ASSERT_EQ(sums_.heads.size(), 2u);
  EXPECT_EQ(sums_.heads[1].type, DataType::kFailed);
  EXPECT_EQ(sums_.heads[1].round, 2u);
}

}  // namespace
}  // namespace byteps::worker
