// The simulated transport passes the suite of all transports: with loops that a thread drives at the pace of the
// system's clock, as the suite waits for loops as for real ones.
#include "sim/sim_transport.h"

#include "transport/conformance.h"

namespace byteps::transport {
namespace {

struct World {
  sim::VirtualTime time{1};
  sim::SimNetwork network{time, {}};
  sim::VirtualTime::Driver driver{time};
};

World& world_of(std::shared_ptr<void>& context) {
  if (!context) context = std::make_shared<World>();
  return *static_cast<World*>(context.get());
}

TransportCase simulated(const char* name, bool two_loops) {
  return {.name = name,
          .two_loops = two_loops,
          .address = "10.0.0.2",
          .make =
              [](int side, std::shared_ptr<void>& context) {
                return sim::make_sim_transport(
                    world_of(context).network,
                    {.ip = side == 0 ? "10.0.0.1" : "10.0.0.2", .credentials = test_credentials()});
              },
          .loop = [](std::shared_ptr<void>& context) -> std::unique_ptr<EventLoop> {
            return world_of(context).time.make_loop("conformance");
          }};
}

INSTANTIATE_TEST_SUITE_P(Simulated, Conformance,
                         testing::Values(simulated("TwoLoops", true), simulated("OneLoop", false)),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace byteps::transport
