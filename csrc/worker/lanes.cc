#include "worker/lanes.h"

#include <atomic>

#include "base/event_flag.h"

namespace byteps::worker {

template <typename F>
void Lanes::for_each(F&& f) {
  for (std::vector<Lane>& lanes : services_) {
    for (Lane& lane : lanes) f(lane);
  }
}

void Lanes::peer_left(uint32_t service) {
  for (Lane& lane : services_[service]) {
    lane.loop->post([link = lane.link.get()] { link->peer_left(); });
  }
}

void Lanes::fail(const Status& why) {
  for_each([&why](Lane& lane) { lane.loop->post([link = lane.link.get(), why] { link->fail(why); }); });
}

void Lanes::leave(std::initializer_list<Lanes*> all, const Status& why, Patience patience) {
  struct Pending {
    std::atomic<size_t> lanes{1};
    EventFlag none_left;
  };
  const auto pending = std::make_shared<Pending>();  // shared: a lane may report after the deadline
  const auto done = [pending] {
    if (pending->lanes.fetch_sub(1) == 1) pending->none_left.set();
  };
  for (Lanes* const lanes : all) {
    lanes->for_each([&](Lane& lane) {
      pending->lanes.fetch_add(1);
      lane.loop->post([link = lane.link.get(), why, patience, done] { link->leave(why, patience, done); });
    });
  }
  done();
  while (pending->none_left.wait(patience.outer_deadline_us()) == EventFlag::Wake::kInterrupted) {
  }
}

}  // namespace byteps::worker
