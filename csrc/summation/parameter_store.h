// The stored tensors of one shard: values of partitions that persist between push_pulls, and to
// which all ranks contribute directly. In asynchronous training these are the weights.
//
// protocol/staleness_tracker.h decides when a contribution is added and answered. Every answer is a
// consistent state of its partition: a value does not change while it is being sent, as the next
// one is written to another buffer.
//
// If the service may be lost, a message before each answer says what the answer contains, and the
// ranks hold both. protocol/stored_takeover.h says how the successor gets the value from them.
#pragma once

#include <memory>
#include <span>
#include <unordered_map>

#include "protocol/staleness_tracker.h"
#include "protocol/stored_takeover.h"
#include "summation/collector.h"

namespace byteps::summation {

class ParameterStore final : public CollectorBy<protocol::StalenessTracker> {
 public:
  // The children: from protocol::each_rank.
  ParameterStore(Environment environment, protocol::Children ranks, protocol::WaitLimits limits);

  Result<Verdict> admit(const protocol::DataHead& head, uint32_t child,
                        uint64_t payload_bytes) const override;
  void contribute(uint32_t child, const protocol::DataHead& head, Contribution contribution) override;
  // Stored tensors stay for the whole job.
  void forget(const protocol::ForgottenKeys&) override {}
  // Never called, because `admit` accepts no failures.
  void contribute_failure(uint32_t child, const protocol::DataHead& head, const Status& why) override;
  void child_gone(uint32_t child, const Status& why) override;
  // It still has values that may be fetched.
  void child_lingers(uint32_t child, const Status& why) override;
  void restart_waits() override;
  void fail_tensor(uint64_t number, uint64_t last_round, const Status& why) override;
  void fail(const Status& why) override;
  void forget(const Child& connection) override;
  size_t holds_bytes() const override;
  void on_holds(const protocol::DataHead& head, Bytes payload, Child& from) override;
  void on_stated(uint32_t child, uint64_t losses) override;
  bool expects_held(const protocol::DataHead& head) const override { return takeover_.expects(head); }
  void on_held(const protocol::DataHead& head, Result<BufferPool::Buffer> values) override;

 private:
  using Value = std::shared_ptr<BufferPool::Buffer>;  // shared with answers being sent

  void apply() override;
  void apply(const protocol::StoreFirstValue& first);
  void apply(const protocol::Answer& answer);
  void apply_takeover();
  TimeUs next_tick_us() const override;
  void on_tick() override;
  void decide(std::span<const protocol::DataHead> heads);
  void fail_all(std::span<const protocol::DataHead> heads, const Status& why);
  // Tells the ranks what the next answer contains.
  void say_included(const protocol::Answer& answer);
  // Adds the contributions of `answer` to `stored`, and writes the result to their reply spaces as
  // well.
  void add_up(const protocol::Answer& answer, Value& stored);

  std::unordered_map<protocol::Key, Value, protocol::KeyHash> values_;
  protocol::StoredTakeover takeover_;
  protocol::StoredTakeover::Actions takeover_actions_;  // empty between calls
};

}  // namespace byteps::summation
