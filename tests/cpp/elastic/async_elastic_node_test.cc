#include "elastic/async_elastic_node.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <random>
#include <string_view>

#include "base/event_flag.h"
#include "elastic/members.h"
#include "node/environment.h"

namespace byteps::elastic {
namespace {

constexpr TimeUs kTestUs = 60'000'000;
bool never_interrupted() { return true; }

testing::AssertionResult is_ok(const Status& status) {
  return status.is_ok() ? testing::AssertionSuccess() : testing::AssertionFailure() << status;
}

void pause_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

Sum sum_of(const std::vector<int64_t>& result) {
  const std::string_view bytes(reinterpret_cast<const char*>(result.data()), result.size() * sizeof(int64_t));
  return {result[0], std::hash<std::string_view>()(bytes)};
}

template <typename Condition>
[[nodiscard]] bool eventually(Condition&& condition) {
  const TimeUs deadline_us = now_us() + kTestUs;
  while (!condition()) {
    if (now_us() > deadline_us) return false;
    pause_ms(1);
  }
  return true;
}

}  // namespace

void Sums::note(int64_t step, size_t tensor, const Sum& sum) {
  MutexLock lock(mutex_);
  sums_[{step, tensor}].insert(sum);
}

std::map<int64_t, std::set<Sum>> Sums::of(size_t tensor) {
  MutexLock lock(mutex_);
  std::map<int64_t, std::set<Sum>> of_tensor;
  for (const auto& [key, sums] : sums_)
    if (key.second == tensor) of_tensor[key.first] = sums;
  return of_tensor;
}

Member::Member(const NodeConfig& config, int number, int64_t last, Sums& sums)
    : number_(number),
      sums_(sums),
      node_(std::make_unique<AsyncElasticNode>(config, [] { return node::make_host_environment(); })) {
  for (size_t i = 0; i < kElements.size(); ++i) tensors_[i].resize(kElements[i]);
  const transport::Address coordinator{config.scheduler_host,
                                       static_cast<uint16_t>(config.scheduler_ports[0])};
  EXPECT_TRUE(node_->start({coordinator}, now_us() + kTestUs).is_ok());
  thread_ = std::thread([this, last] { outcome_ = train(last); });
}

Member::~Member() {
  killed_ = true;
  if (thread_.joinable()) thread_.join();
  node_->stop();
}

Status Member::outcome() {
  thread_.join();
  return outcome_;
}

Status Member::wait(protocol::Handle handle) {
  while (!killed_) {
    bool interrupted = false;
    const Status status = node_->handles().wait(handle, now_us() + 5'000, interrupted);
    if (status.code() != StatusCode::kDeadlineExceeded || !node_->handles().poll(handle)) return status;
  }
  return aborted("killed");
}

Status Member::make_step() {
  std::array<protocol::Handle, kElements.size()> handles;
  for (size_t i = 0; i < kElements.size(); ++i) {
    std::ranges::fill(tensors_[i], int64_t{1} << number_);
    auto* const data = reinterpret_cast<std::byte*>(tensors_[i].data());
    const auto handle = node_->push_pull({.name = "tensor " + std::to_string(i),
                                          .dtype = DType::kInt64,
                                          .bytes = kElements[i] * sizeof(int64_t),
                                          .step = static_cast<uint64_t>(step_) + 1},
                                         {.input = data, .output = data});
    if (!handle) return handle.status();
    handles[i] = *handle;
  }
  for (size_t i = 0; i < kElements.size(); ++i) {
    BPS_RETURN_IF_ERROR(wait(handles[i]));
    const bool has_parts = i == kElements.size() - 1;
    for (const int64_t each : tensors_[i]) {
      if (!has_parts && each != tensors_[i][0]) return data_loss("a sum of several rounds");
      if ((each >> number_ & 1) == 0) return data_loss("a sum without the own contribution");
    }
  }
  return Status::ok();
}

// If its root is lost, ranks are numbered anew, and another one is the root.
Status Member::get_state() {
  while (true) {
    state_[0] = step_;
    auto* const data = reinterpret_cast<std::byte*>(state_.data());
    const auto handle = node_->push_pull(
        {.name = "state", .dtype = DType::kInt64, .bytes = sizeof(int64_t), .op = ReduceOp::kBroadcast},
        {.input = data, .output = data});
    const Status status = handle ? wait(*handle) : handle.status();
    if (status.is_ok()) break;
    if (status.code() != StatusCode::kUnavailable || !node_->failure().is_ok()) return status;
    Result<Change> change = Change();
    do {
      change = commit();
      if (!change) return change.status();
    } while (!change->is_entered);
  }
  step_ = state_[0];
  node_->note_state();
  return Status::ok();
}

Result<Change> Member::commit() {
  struct Answer {
    EventFlag done;
    std::optional<Result<Change>> change;
  };
  const auto answer = std::make_shared<Answer>();
  node_->commit([answer](Result<Change> change) {
    answer->change = std::move(change);
    answer->done.set();
  });
  while (!killed_) {
    if (answer->done.wait(now_us() + 5'000) == EventFlag::Wake::kSet) return *answer->change;
  }
  return aborted("killed");
}

Status Member::train(int64_t last) {
  while (!killed_ && !node_->started().is_reached()) pause_ms(1);
  if (!killed_ && node_->failure().is_ok()) BPS_RETURN_IF_ERROR(get_state());
  while (!killed_ && step_ < last && step_ < leave_after_) {
    BPS_RETURN_IF_ERROR(node_->failure());
    if (step_ >= pause_at_) {
      pause_ms(1);
      continue;
    }
    BPS_RETURN_IF_ERROR(make_step());
    const auto change = commit();
    if (!change) return change.status();
    has_state_ = true;
    // Only now: of its last step, one that is lost may have a result that nobody else has got.
    for (size_t i = 0; i < kElements.size(); ++i) sums_.note(step_, i, sum_of(tensors_[i]));
    ++step_;
    if (change->is_entered) ++entered_;
    if (change->has_newcomers) BPS_RETURN_IF_ERROR(get_state());
  }
  if (killed_) return aborted("killed");
  BPS_RETURN_IF_ERROR(node_->failure());
  node_->leave("", step_ >= leave_after_);
  EXPECT_TRUE(is_ok(wait_for(node_->left().flag(), now_us() + kTestUs, never_interrupted)));
  return Status::ok();
}

void MembersTest::start(const MembersOptions& options) {
  options_ = options;
  config_ = {.role = "worker",
             .scheduler_ports = {0},
             .secret = "a secret of the test, long enough",
             .loopback_only = true,
             .job_id = "elastic test",
             .version = "1",
             .start_timeout_s = 60,
             .timeout_s = options.timeout_s,
             .log_level = std::getenv("BPS_TEST_LOG") ? std::getenv("BPS_TEST_LOG") : "error"};
  auto host = CoordinatorHost::create(config_, {.min_workers = options.least,
                                                .max_workers = options.most,
                                                .initial_workers = options.initial,
                                                .shortage_timeout_us = kTestUs,
                                                .gather_us = 1'000,
                                                .version = {}});
  ASSERT_TRUE(host) << host.status();
  coordinator_ = std::move(*host);
  config_.scheduler_ports = {coordinator_->address().port};
}

Member& MembersTest::come(int64_t last) {
  NodeConfig config = config_;
  const auto number = static_cast<int>(members_.size());
  config.machine = "m" + std::to_string(options_.per_machine > 0 ? number / options_.per_machine : 0);
  members_.push_back(std::make_unique<Member>(config, number, last, sums_));
  return *members_.back();
}

void MembersTest::await_step(size_t number, int64_t step) {
  ASSERT_TRUE(eventually([&] { return member(number).step() >= step; })) << member(number).node().failure();
}

void MembersTest::expect_that_all_end_well() {
  for (const auto& each : members_) {
    if (each) {
      EXPECT_TRUE(is_ok(each->outcome()));
    }
  }
  for (size_t tensor = 0; tensor < 3; ++tensor) {
    for (const auto& [step, sums] : sums_.of(tensor)) {
      EXPECT_EQ(sums.size(), 1u) << "tensor " << tensor << " in step " << step;
      EXPECT_LT(sums.begin()->first, int64_t{1} << members_.size());
    }
  }
  if (HasFailure()) members_.clear();  // else the coordinator waits for them
  EXPECT_TRUE(is_ok(coordinator_->wait(never_interrupted)));
}

class LossTest : public MembersTest, public testing::WithParamInterface<std::pair<size_t, int>> {};

TEST_P(LossTest, TheOthersLoseNoStep) {
  const auto [lost, per_machine] = GetParam();
  start({.initial = 4, .per_machine = per_machine});
  for (int i = 0; i < 4; ++i) come(60);
  await_step(lost, 20);
  kill(lost);
  expect_that_all_end_well();
  for (size_t i = 0; i < members_.size(); ++i) {
    if (!members_[i]) continue;
    EXPECT_EQ(member(i).size(), 3);
    EXPECT_EQ(member(i).num_entered(), 1);
  }
  EXPECT_EQ(sums_.of(0).size(), 60u);
  EXPECT_EQ(sums_.of(0)[59].begin()->first, 15 - (1 << lost));
}

INSTANTIATE_TEST_SUITE_P(All, LossTest,
                         testing::Values(std::pair(0, 0), std::pair(3, 0), std::pair(0, 1), std::pair(1, 2),
                                         std::pair(2, 2)));

TEST_F(MembersTest, ThoseThatComeEnterAtACommit) {
  start({.initial = 2});
  come(INT64_MAX).leave_after(150);
  come(INT64_MAX).leave_after(150);
  await_step(0, 20);
  Member& newcomer = come(150);
  ASSERT_TRUE(eventually([&] { return newcomer.has_started(); }));
  EXPECT_EQ(newcomer.rank(), 2);
  EXPECT_EQ(newcomer.size(), 3);
  await_step(2, 21);
  EXPECT_TRUE(is_ok(newcomer.outcome()));
}

// A step takes a few milliseconds, a life about a hundred.
TEST_F(MembersTest, ManyAreLostAndManyCome) {
  start({.initial = 3});
  constexpr int64_t kLast = 400;
  std::mt19937 random(1);
  for (int i = 0; i < 3; ++i) come(kLast);
  for (int i = 0; i < 12; ++i) {
    pause_ms(std::uniform_int_distribution(0, 150)(random));
    std::vector<size_t> alive;
    for (size_t number = 0; number < members_.size(); ++number)
      if (members_[number] && member(number).has_state()) alive.push_back(number);
    const bool is_near_the_end =
        std::ranges::any_of(alive, [this](size_t n) { return member(n).step() > 300; });
    if (is_near_the_end) break;
    // One of those that have the state must stay.
    if (alive.size() > 2 && random() % 2 == 0)
      kill(alive[random() % alive.size()]);
    else if (members_.size() < 12)
      come(kLast);
  }
  for (size_t number = 0; number < members_.size(); ++number)
    if (members_[number] && !member(number).has_started()) kill(number);
  expect_that_all_end_well();
  EXPECT_EQ(sums_.of(0).size(), static_cast<size_t>(kLast));
}

TEST_F(MembersTest, OneThatLeavesLetsTheOthersGoOn) {
  start({.initial = 3});
  for (int i = 0; i < 3; ++i) come(60);
  member(1).leave_after(20);
  expect_that_all_end_well();
  EXPECT_EQ(sums_.of(0)[59].begin()->first, 0b101);
}

TEST_F(MembersTest, WithTooFewTheJobWaitsAtACommit) {
  start({.initial = 3, .least = 3});
  for (int i = 0; i < 3; ++i) come(80);
  await_step(1, 20);
  kill(1);
  pause_ms(300);
  EXPECT_LT(member(0).step(), 80);
  come(80);
  expect_that_all_end_well();
  EXPECT_EQ(sums_.of(0)[79].begin()->first, 0b1101);
}

TEST_F(MembersTest, MoreThanTheLargestNumberWait) {
  start({.initial = 2, .most = 2});
  come(INT64_MAX);
  come(INT64_MAX);
  await_step(0, 10);
  Member& third = come(INT64_MAX);
  pause_ms(100);
  EXPECT_FALSE(third.has_started());
  kill(0);
  EXPECT_TRUE(eventually([&] { return third.has_started(); }));
}

TEST_F(MembersTest, WhenTheCoordinatorIsLostTrainingGoesOnUntilAnotherLoss) {
  start({.initial = 3});
  for (int i = 0; i < 3; ++i) come(INT64_MAX);
  await_step(0, 10);
  coordinator_.reset();
  const int64_t step = member(0).step();
  await_step(0, step + 20);
  kill(2);
  const Status status = member(0).outcome();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("the coordinator (tcp 127.0.0.1"), std::string::npos) << status;
}

TEST_F(MembersTest, TheCoordinatorEndsTheJob) {
  start({.initial = 2});
  come(INT64_MAX);
  come(INT64_MAX);
  await_step(0, 10);
  coordinator_->shutdown("the operator has ended it");
  EXPECT_EQ(member(0).outcome().message(), "the operator has ended it");
  EXPECT_EQ(member(1).outcome().message(), "the operator has ended it");
}

TEST_F(MembersTest, ACommitWithPushPullsInFlightIsAnError) {
  start({.initial = 2});
  come(INT64_MAX).pause_at(5);
  come(INT64_MAX).pause_at(5);
  await_step(0, 5);
  await_step(1, 5);
  std::vector<int64_t> tensor(8);
  auto* const data = reinterpret_cast<std::byte*>(tensor.data());
  ASSERT_TRUE(member(0).node().push_pull({.name = "x", .dtype = DType::kInt64, .bytes = 64},
                                         {.input = data, .output = data}));
  EventFlag done;
  Status status;
  member(0).node().commit([&](const Result<Change>& change) {
    status = change.status();
    done.set();
  });
  ASSERT_EQ(done.wait(now_us() + kTestUs), EventFlag::Wake::kSet);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("'x'"), std::string::npos) << status;
  members_.clear();
}

TEST_F(MembersTest, ABroadcastFromALostRankFails) {
  start({.initial = 3});
  for (int i = 0; i < 3; ++i) come(INT64_MAX).pause_at(5);
  for (size_t i = 0; i < 3; ++i) await_step(i, 5);
  int root = -1;
  for (size_t i = 0; i < 3; ++i)
    if (i == 1) root = member(i).rank();
  const auto broadcast = [&](size_t i, std::vector<int64_t>& tensor) {
    auto* const data = reinterpret_cast<std::byte*>(tensor.data());
    return member(i).node().push_pull({.name = "weights",
                                       .dtype = DType::kInt64,
                                       .bytes = 64,
                                       .op = ReduceOp::kBroadcast,
                                       .root = static_cast<uint32_t>(root)},
                                      {.input = data, .output = data});
  };
  std::vector<int64_t> first(8), third(8);
  const auto handle = broadcast(0, first);
  ASSERT_TRUE(handle);
  kill(1);
  bool interrupted = false;
  Status status = member(0).node().handles().wait(*handle, now_us() + kTestUs, interrupted);
  EXPECT_NE(status.message().find("its root is lost"), std::string::npos) << status;
  const auto late = broadcast(2, third);
  status = late ? member(2).node().handles().wait(*late, now_us() + kTestUs, interrupted) : late.status();
  EXPECT_NE(status.message().find("its root is lost"), std::string::npos) << status;
  members_.clear();
}

TEST_F(MembersTest, ARefusedCallFailsOnAllAndTheNextOneWorks) {
  start({.initial = 2});
  come(INT64_MAX).pause_at(5);
  come(INT64_MAX).pause_at(5);
  await_step(0, 5);
  await_step(1, 5);
  std::vector<int64_t> first(8, 1), second(8, 2);
  const auto push_pull = [&](size_t i, std::vector<int64_t>& tensor) {
    auto* const data = reinterpret_cast<std::byte*>(tensor.data());
    return member(i).node().push_pull({.name = "x", .dtype = DType::kInt64, .bytes = 64},
                                      {.input = data, .output = data});
  };
  bool interrupted = false;
  member(1).node().refuse("x", 0, invalid_argument("a bad tensor"));
  const auto refused = push_pull(0, first);  // it may hear of the refusal before it returns
  const Status status =
      refused ? member(0).node().handles().wait(*refused, now_us() + kTestUs, interrupted) : refused.status();
  EXPECT_NE(status.message().find("a bad tensor"), std::string::npos) << status;
  const auto one = push_pull(0, first);
  const auto other = push_pull(1, second);
  EXPECT_TRUE(is_ok(member(0).node().handles().wait(one.value(), now_us() + kTestUs, interrupted)));
  EXPECT_TRUE(is_ok(member(1).node().handles().wait(other.value(), now_us() + kTestUs, interrupted)));
  EXPECT_EQ(first[0], 3);
  members_.clear();
}

}  // namespace byteps::elastic
