// An elastic job in one process: a real coordinator, and members with real nodes, each with a thread
// that trains: it sums tensors in steps, and commits after each.
//
// In each step member k contributes 2^k to every element, so a sum tells who has contributed.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "elastic/async_elastic_node.h"
#include "elastic/coordinator_host.h"

namespace byteps::elastic {

struct MembersOptions {
  uint32_t initial = 3;
  uint32_t least = 1;
  uint32_t most = 0;
  int per_machine = 0;  // members on one machine; 0: all are on one
  double timeout_s = 5;
};

// A result: its first element's sum; other parts of a large tensor may be of another generation.
struct Sum {
  int64_t first = 0;
  size_t hash = 0;  // of all elements
  auto operator<=>(const Sum&) const = default;
};

// The results that members have got: by step and tensor, all must get the same.
class Sums {
 public:
  void note(int64_t step, size_t tensor, const Sum& sum);
  // The results of this tensor, by step.
  std::map<int64_t, std::set<Sum>> of(size_t tensor);

 private:
  Mutex mutex_;
  std::map<std::pair<int64_t, size_t>, std::set<Sum>> sums_ BPS_GUARDED_BY(mutex_);
};

class Member {
 public:
  // Comes to the job, and trains until step `last`; then it leaves. `number`: k above.
  Member(const NodeConfig& config, int number, int64_t last, Sums& sums);
  ~Member();  // ends at once, as a process that is killed

  // What the thread has ended with: ok when it has left in order. Blocks until then.
  Status outcome();
  int64_t step() const { return step_; }
  int rank() const { return node_->rank(); }
  int size() const { return node_->size(); }
  bool has_started() { return node_->started().is_reached(); }
  bool has_state() const { return has_state_; }  // of the training, and all know it: it has made a step
  int64_t num_entered() const { return entered_; }
  AsyncElasticNode& node() { return *node_; }
  // The thread stops after this step until the next call.
  void pause_at(int64_t step) { pause_at_ = step; }
  // It ends at once, without leaving, before its next step.
  void kill() { killed_ = true; }
  void leave_after(int64_t step) { leave_after_ = step; }

 private:
  static constexpr std::array<size_t, 3> kElements = {1, 1000, 60'000};  // the last one has parts

  Status train(int64_t last);
  Status make_step();
  Status get_state();
  Status wait(protocol::Handle handle);
  Result<Change> commit();

  const int number_;
  Sums& sums_;
  std::unique_ptr<AsyncElasticNode> node_;
  std::array<std::vector<int64_t>, kElements.size()> tensors_;
  std::vector<int64_t> state_{0};
  std::atomic<int64_t> step_ = 0;
  std::atomic<int64_t> entered_ = 0;
  std::atomic<bool> has_state_ = false;
  std::atomic<int64_t> pause_at_ = INT64_MAX;
  std::atomic<int64_t> leave_after_ = INT64_MAX;
  std::atomic<bool> killed_ = false;
  Status outcome_;
  std::thread thread_;
};

class MembersTest : public testing::Test {
 protected:
  void start(const MembersOptions& options);
  // One more member, which trains until step `last`.
  Member& come(int64_t last);
  Member& member(size_t number) { return *members_[number]; }
  void kill(size_t number) { members_[number].reset(); }
  // Waits until the member has made this step.
  void await_step(size_t number, int64_t step);
  // All members that are left end in order. Every sum is the same on all of them, contains the
  // contribution of each that got it, and those of members that are there only.
  void expect_that_all_end_well();

  MembersOptions options_;
  NodeConfig config_;
  std::unique_ptr<CoordinatorHost> coordinator_;
  Sums sums_;
  std::vector<std::unique_ptr<Member>> members_;  // null: killed
};

}  // namespace byteps::elastic
