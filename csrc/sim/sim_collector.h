// What a shard does with the contributions of one level, as summation/collector is.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "protocol/aggregation.h"
#include "sim/world.h"

namespace byteps::sim {

class ShardEvents;
class SimChild;

struct Contribution {
  View data;
  View reply_space;
  LeaseId lease = kNoLease;
  SimChild* from = nullptr;  // null: none, or the child is gone
  bool lent = false;         // the data is not the service's own
  bool present = false;
};

class SimCollector {
 public:
  struct Environment {
    World& world;
    VirtualProcess& process;
    ShardEvents& events;
    uint32_t epoch;
    uint32_t num_workers;
  };
  using Verdict = protocol::Aggregator::Verdict;

  virtual ~SimCollector() = default;

  virtual int32_t child_of_rank(uint32_t rank) const = 0;
  virtual Result<Verdict> admit(const protocol::DataHead& head, uint32_t child,
                                uint64_t payload_bytes) const = 0;
  virtual void contribute(uint32_t child, const protocol::DataHead& head, Contribution contribution) = 0;
  virtual void contribute_failure(uint32_t child, const protocol::DataHead& head, const Status& why) = 0;
  // What a service would do that does not recognise repeats.
  virtual void add_repeat(uint32_t child, const protocol::DataHead& head, const View& payload) = 0;
  virtual void child_gone(uint32_t child, const Status& why) = 0;
  virtual void fail_tensor(uint32_t number, uint64_t last_round, const Status& why) = 0;
  virtual void fail(const Status& why) = 0;
  // Reports contributions that wait or are kept.
  virtual void check_drained() = 0;

  void forget(const SimChild& connection);
  void reclaim(SimChild& connection);

 protected:
  using Slots = std::vector<Contribution>;  // by child

  explicit SimCollector(Environment environment) : environment_(environment) {}

  virtual void for_each_slot(const std::function<void(Contribution&)>& f) = 0;
  virtual TimeUs next_tick_us() const = 0;
  virtual void on_tick() = 0;

  World& world() const { return environment_.world; }
  VirtualProcess& process() const { return environment_.process; }
  void place(Slots& slots, uint32_t child, Contribution contribution) const;
  void schedule_tick();
  void answer_failure(const protocol::DataHead& head, Contribution& slot, const Status& why);
  void check_empty();
  void note(const protocol::DataHead& head, const std::string& what) const;

  Environment environment_;

 private:
  void own(Contribution& contribution);
  void give_loans_back();

  TimeUs tick_us_ = kNever;  // when the next one is set for
  std::vector<SimChild*> starving_;
  bool relief_is_due_ = false;
};

}  // namespace byteps::sim
