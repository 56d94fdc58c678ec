// The stored tensors of one shard: values of partitions that persist between push_pulls, and to
// which all ranks contribute directly. In asynchronous training these are the weights.
//
// protocol/staleness_tracker.h decides when a contribution is added and answered. Every answer is a
// consistent state of its partition: a value does not change while it is being sent, as the next
// one is written to another buffer.
#pragma once

#include <memory>
#include <unordered_map>

#include "protocol/staleness_tracker.h"
#include "summation/collector.h"

namespace byteps::summation {

class ParameterStore final : public CollectorBy<protocol::StalenessTracker> {
 public:
  // The children: from protocol::each_rank.
  using CollectorBy::CollectorBy;

  Result<Verdict> admit(const protocol::DataHead& head, uint32_t child,
                        uint64_t payload_bytes) const override;
  void contribute(uint32_t child, const protocol::DataHead& head, Contribution contribution) override;
  // Stored tensors stay for the whole job.
  void forget(const protocol::ForgottenKeys&) override {}
  // Never called, because `admit` accepts no failures.
  void contribute_failure(uint32_t child, const protocol::DataHead& head, const Status& why) override;

 private:
  using Value = std::shared_ptr<BufferPool::Buffer>;  // shared with answers being sent

  void apply() override;
  void apply(const protocol::StoreFirstValue& first);
  void apply(const protocol::Answer& answer);
  // Adds the contributions of `answer` to `stored`, and writes the result to their reply spaces as
  // well.
  void add_up(const protocol::Answer& answer, Value& stored);

  std::unordered_map<protocol::Key, Value, protocol::KeyHash> values_;
};

}  // namespace byteps::summation
