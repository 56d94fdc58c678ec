#include "base/metrics.h"

namespace byteps {

void add_metrics(Metrics& sums, const Metrics& more) {
  const auto add_one = [](auto& sum, const auto& value) { sum.store(sum.load() + value.load()); };
#define BPS_ADD(type, name, meaning) add_one(sums.name, more.name);
  BPS_METRICS(BPS_ADD)
#undef BPS_ADD
  sums.partition_factor = more.partition_factor.load();
  sums.credit_bytes = more.credit_bytes.load();
}

}  // namespace byteps
