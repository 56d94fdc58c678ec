// The stored tensors of one shard: values of partitions that persist between push_pulls, and to
// which all ranks contribute directly. In asynchronous training these are the weights.
//
// protocol/staleness_tracker.h decides when a contribution is added and answered; this class does
// it. Every answer is a consistent state of its partition: while a value is being sent it does not
// change, and the next value is written to another buffer.
#pragma once

#include <memory>
#include <unordered_map>

#include "protocol/staleness_tracker.h"
#include "summation/collector.h"

namespace byteps::summation {

class ParameterStore final : public Collector {
 public:
  // `ranks`: from protocol::each_rank.
  ParameterStore(Environment environment, protocol::Children ranks, protocol::WaitLimits limits);

  int32_t child_of_rank(uint32_t rank) const override;
  Result<Verdict> admit(const protocol::DataHead& head, uint32_t child,
                        uint64_t payload_bytes) const override;
  void contribute(uint32_t child, const protocol::DataHead& head, Contribution contribution) override;
  // Never called, because `admit` accepts no failures.
  void contribute_failure(uint32_t child, const protocol::DataHead& head, const Status& why) override;
  void child_gone(uint32_t child, const Status& why) override;
  void fail_tensor(uint32_t number, uint64_t last_round, const Status& why) override;
  void fail(const Status& why) override;

 private:
  struct StoredValue {
    Slots slots;                                // contributions without an answer
    std::shared_ptr<BufferPool::Buffer> value;  // null: none yet; shared with answers being sent
  };

  void for_each_slot_of(uint32_t child, const std::function<void(Contribution&)>& f) override;
  TimeUs next_tick_us() const override { return tracker_.next_tick_us(); }
  void on_tick() override;

  void apply();
  void apply(const protocol::StoreFirstValue& first);
  void apply(const protocol::Answer& answer);
  // Adds the contributions of `answer` to the value, and writes the result to their reply spaces as
  // well.
  void add_up(const protocol::Answer& answer, StoredValue& stored);
  void send(const protocol::DataHead& head, StoredValue& stored);

  protocol::StalenessTracker tracker_;
  std::unordered_map<protocol::Key, StoredValue, protocol::KeyHash> values_;
  protocol::StalenessActions actions_;  // empty between calls
};

}  // namespace byteps::summation
