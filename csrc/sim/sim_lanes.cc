#include "sim/sim_lanes.h"

#include <utility>

namespace byteps::sim {

template <typename F>
void SimLanes::for_each(F&& f) {
  for (const auto& links : services_) {
    for (const auto& link : links) f(*link);
  }
}

void SimLanes::peer_left(uint32_t service) {
  for (const auto& link : services_.at(service)) link->peer_left();
}

void SimLanes::fail(const Status& why) {
  for_each([&why](SimLink& link) { link.fail(why); });
}

void SimLanes::leave(const Status& why, GracePeriod grace_period, UniqueFunction<void()> done) {
  struct Pending {
    size_t links = 1;
    UniqueFunction<void()> done;
  };
  const auto pending = std::make_shared<Pending>();
  pending->done = std::move(done);
  const auto one_done = [pending] {
    if (--pending->links == 0) pending->done();
  };
  for_each([&](SimLink& link) {
    ++pending->links;
    link.leave(why, grace_period, one_done);
  });
  one_done();
}

}  // namespace byteps::sim
