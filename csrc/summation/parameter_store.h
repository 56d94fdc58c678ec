// What one shard keeps from one push_pull to the next: the values of its partitions of some tensors, to which all ranks
// contribute directly. In asynchronous training these are the weights.
//
// What is decided (may it be added and answered yet?) is protocol/staleness_tracker's; this carries it out. An answer is one state
// of a partition, never a mixture: a value that is still on its way to somebody is left alone, and the next one
// is made beside it.
#pragma once

#include <memory>
#include <unordered_map>

#include "protocol/staleness_tracker.h"
#include "summation/collector.h"

namespace byteps::summation {

class ParameterStore final : public Collector {
 public:
  // `ranks`: of protocol::each_rank.
  ParameterStore(Environment environment, protocol::Children ranks, protocol::WaitLimits limits);

  int32_t child_of_rank(uint32_t rank) const override;
  Result<Verdict> admit(const protocol::DataHead& head, uint32_t child,
                        uint64_t payload_bytes) const override;
  void contribute(uint32_t child, const protocol::DataHead& head, Contribution contribution) override;
  // Never: `admit` takes no failures.
  void contribute_failure(uint32_t child, const protocol::DataHead& head, const Status& why) override;
  void child_gone(uint32_t child, const Status& why) override;
  void fail_tensor(uint32_t number, uint64_t last_round, const Status& why) override;
  void fail(const Status& why) override;

 private:
  struct StoredValue {
    Slots slots;                                // of those who wait for an answer
    std::shared_ptr<BufferPool::Buffer> value;  // null: none yet; shared with answers on their way
  };

  void for_each_slot_of(uint32_t child, const std::function<void(Contribution&)>& f) override;
  TimeUs next_tick_us() const override { return tracker_.next_tick_us(); }
  void on_tick() override;

  void apply();
  void apply(const protocol::StoreFirstValue& first);
  void apply(const protocol::Answer& answer);
  // The value as it is with the contributions of `answer`, which is written to their reply spaces, too.
  void add_up(const protocol::Answer& answer, StoredValue& stored);
  void send(const protocol::DataHead& head, StoredValue& stored);

  protocol::StalenessTracker tracker_;
  std::unordered_map<protocol::Key, StoredValue, protocol::KeyHash> values_;
  protocol::StalenessActions actions_;  // reused
};

}  // namespace byteps::summation
