// The conformance tests over RDMA between two devices of this machine.
#include <arpa/inet.h>

#include <algorithm>

#include "rdma_device/device_pair.h"
#include "transport/conformance.h"
#include "transport/rdma/rdma_transport.h"

namespace byteps::transport {
namespace {

// A long retransmission timeout: on an emulated processor packets are slow, and retransmission
// makes them slower.
constexpr rdma::VerbsOptions kSlowDevices{.timeout = 20};

// Side 0, which listens, uses the first device.
std::unique_ptr<Transport> make(int side, TimeUs spin_us) {
  std::vector<std::unique_ptr<rdma::Nic>> nics;
  std::vector<rdma::PortReport> ports = rdma::report_ports();
  std::erase_if(ports, [](const rdma::PortReport& port) { return !port.usable(); });
  if (ports.size() < 2) {
    return make_rdma_transport({},
                               unavailable("expected two RDMA devices, got " + std::to_string(ports.size())));
  }
  const rdma::PortReport& port = ports[side == Conformance::kA ? 1 : 0];
  auto nic = rdma::open_verbs_nic({.device = port.device, .port = port.port}, kSlowDevices);
  if (!nic) return make_rdma_transport({}, nic.status());
  nics.push_back(std::move(*nic));
  return make_rdma_transport({.stream = {.credentials = test_credentials()}, .spin_us = spin_us},
                             std::move(nics));
}

TransportCase rdma_case(const char* name, bool two_loops, TimeUs spin_us) {
  return {.name = name,
          .two_loops = two_loops,
          .address = "127.0.0.1",  // connections begin with TCP; the data goes through the devices
          .make = [spin_us](int side, std::shared_ptr<void>&) { return make(side, spin_us); },
          .lends = true,
          .many = 200};
}

INSTANTIATE_TEST_SUITE_P(Devices, Conformance,
                         testing::Values(rdma_case("Rdma", true, 0), rdma_case("RdmaSpinning", true, 100)),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace byteps::transport
