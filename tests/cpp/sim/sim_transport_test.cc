// The simulated transport passes the suite of all transports: with loops that a thread drives at
// the pace of the system's clock, as the suite waits for loops as for real ones.
#include "sim/sim_network.h"

#include "transport/conformance.h"

namespace byteps::transport {
namespace {

struct World {
  ~World() { EXPECT_EQ(network.violations(), std::vector<std::string>()); }
  sim::VirtualTime time{1};
  sim::SimNetwork network{time, {}};
  sim::VirtualTime::Driver driver{time};
};

World& world_of(std::shared_ptr<void>& context) {
  if (!context) context = std::make_shared<World>();
  return *static_cast<World*>(context.get());
}

// Memory is lent between processes of one machine only.
TransportCase simulated(const char* name, bool two_loops, size_t arena_bytes = 0) {
  return {.name = name,
          .two_loops = two_loops,
          .address = "10.0.0.2",
          .make =
              [arena_bytes](int side, std::shared_ptr<void>& context) {
                const bool is_remote = side == 0 && arena_bytes == 0;
                return sim::make_sim_transport(world_of(context).network,
                                               {.ip = is_remote ? "10.0.0.1" : "10.0.0.2",
                                                .credentials = test_credentials(),
                                                .arena_bytes = arena_bytes});
              },
          .loop = [](std::shared_ptr<void>& context) -> std::unique_ptr<EventLoop> {
            return world_of(context).time.make_loop("conformance");
          },
          .lends = arena_bytes > 0,
          .shares_reply_space = arena_bytes > 0};
}

INSTANTIATE_TEST_SUITE_P(Simulated, Conformance,
                         testing::Values(simulated("TwoLoops", true), simulated("OneLoop", false),
                                         simulated("Lending", true, 2 << 20),
                                         simulated("LendingOneLoop", false, 2 << 20),
                                         simulated("LendingLittle", true, 256 << 10)),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace byteps::transport
