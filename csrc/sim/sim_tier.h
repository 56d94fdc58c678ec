// One level of one shard, as summation/tier is.
#pragma once

#include <map>
#include <vector>

#include "protocol/aggregation.h"
#include "sim/world.h"

namespace byteps::sim {

class SimChild;

// How a machine's partial sums reach the roots, as summation/uplink is.
class Uplink {
 public:
  virtual ~Uplink() = default;
  virtual bool reaches(uint32_t top) const = 0;
  virtual void push_pull(const protocol::DataHead& head, const View& partial, const View& result,
                         UniqueFunction<void(const Result<protocol::Plan>&)> done) = 0;
  virtual void fail_round(const protocol::DataHead& head, const Status& why) = 0;
};

struct Contribution {
  View data;
  View reply_space;
  Loan loan = kNoLoan;
  SimChild* from = nullptr;  // null: none, or the child is gone
  bool lent = false;         // the data is not the service's own
  bool present = false;
};

class SimTier {
 public:
  struct Environment {
    World& world;
    VirtualProcess& process;
    uint32_t epoch;
    uint32_t num_workers;
  };
  SimTier(Environment environment, protocol::Children children, protocol::AggregationLimits limits,
          Uplink* uplink, uint32_t num_final_tops);

  protocol::Aggregator& aggregator() { return aggregator_; }
  bool leads_to(uint32_t top) const { return !goes_up(top) || uplink_->reaches(top); }

  void contribute(uint32_t child, const protocol::DataHead& head, Contribution contribution);
  void contribute_failure(uint32_t child, const protocol::DataHead& head, const Status& why);
  // What a service would do that does not recognise repeats.
  void add_repeat(uint32_t child, const protocol::DataHead& head, const View& payload);
  void forget(const SimChild& connection);
  void relieve(SimChild& connection);
  void child_gone(uint32_t child, const Status& why);
  void fail_tensor(uint32_t tensor, const Status& why);
  void fail(const Status& why);

  // Reports rounds that wait and contributions that are kept.
  void check_drained() const;

 private:
  using Slots = std::vector<Contribution>;  // by child
  struct Round {
    Slots slots;
    View ascending;
    protocol::DataHead head;
    bool is_ascending = false;
    bool abandoned = false;
  };

  bool goes_up(uint32_t top) const { return uplink_ != nullptr && top >= num_final_tops_; }
  World& world() const { return environment_.world; }
  VirtualProcess& process() const { return environment_.process; }

  void carry_out();
  void carry_out(const protocol::Complete& complete);
  void carry_out(const protocol::Fail& fail);
  void ascend(const protocol::DataHead& head, Round& round);
  void on_result(protocol::DataHead head, const Result<protocol::Plan>& outcome);
  // Of what the slots hold; nothing if nobody has values.
  View reduce_slots(const protocol::DataHead& head, const Slots& slots) const;
  void answer(const protocol::DataHead& head, Slots& slots, const View& result);
  void answer_failure(const protocol::DataHead& head, Slots& slots, const Status& why);
  void own(Contribution& contribution);
  void give_loans_back();
  void schedule_tick();
  void note(const protocol::DataHead& head, const std::string& what) const;

  Environment environment_;
  protocol::Aggregator aggregator_;
  Uplink* const uplink_;
  const uint32_t num_final_tops_;
  std::map<protocol::Key, Round> rounds_;
  protocol::AggregationActions actions_;
  bool ticking_ = false;
  std::vector<SimChild*> starving_;
  bool relief_is_due_ = false;
  bool failed_ = false;
};

}  // namespace byteps::sim
