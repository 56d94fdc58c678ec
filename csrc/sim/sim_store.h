// What one shard keeps from one push_pull to the next, as summation/parameter_store is.
#pragma once

#include <map>

#include "protocol/staleness_tracker.h"
#include "sim/sim_collector.h"

namespace byteps::sim {

class SimStore final : public SimCollector {
 public:
  SimStore(Environment environment, protocol::Children ranks, protocol::WaitLimits limits);

  int32_t child_of_rank(uint32_t rank) const override;
  Result<Verdict> admit(const protocol::DataHead& head, uint32_t child,
                        uint64_t payload_bytes) const override;
  void contribute(uint32_t child, const protocol::DataHead& head, Contribution contribution) override;
  void contribute_failure(uint32_t child, const protocol::DataHead& head, const Status& why) override;
  void add_repeat(uint32_t child, const protocol::DataHead& head, const View& payload) override;
  void child_gone(uint32_t child, const Status& why) override;
  void fail_tensor(uint32_t number, uint64_t last_round, const Status& why) override;
  void fail(const Status& why) override;
  void check_drained() override;

 private:
  struct Kept {
    Slots slots;
    View value;  // shared with answers on their way
    bool has_value = false;
  };

  void for_each_slot(const std::function<void(Contribution&)>& f) override;
  TimeUs next_tick_us() const override { return tracker_.next_tick_us(); }
  void on_tick() override;

  void apply();
  void apply(const protocol::StoreFirstValue& keep);
  void apply(const protocol::Answer& answer);
  void apply(const protocol::Fail& fail);
  void add_up(const protocol::Answer& answer, Kept& kept);
  void send(const protocol::DataHead& head, Kept& kept);

  protocol::StalenessTracker tracker_;
  std::map<protocol::Key, Kept> kept_;
  protocol::StalenessActions actions_;
};

}  // namespace byteps::sim
