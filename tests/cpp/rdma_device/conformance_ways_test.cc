// What every transport has to do, by RDMA between two devices of this machine.
#include <arpa/inet.h>

#include <algorithm>

#include "rdma_device/device_pair.h"
#include "transport/conformance.h"
#include "transport/rdma/rdma_transport.h"

namespace byteps::transport {
namespace {

// Packets wait for a long time where a processor is emulated; sent again too early, they only make it longer.
constexpr rdma::VerbsOptions kPatient{.timeout = 20};

// The device that listens is the first.
std::unique_ptr<Transport> make(int side, TimeUs spin_us) {
  std::vector<std::unique_ptr<rdma::Nic>> nics;
  std::vector<rdma::PortReport> ports = rdma::report_ports();
  std::erase_if(ports, [](const rdma::PortReport& port) { return !port.usable(); });
  if (ports.size() < 2) {
    return make_rdma_transport({},
                               unavailable("expected two RDMA devices, got " + std::to_string(ports.size())));
  }
  const rdma::PortReport& port = ports[side == Conformance::kA ? 1 : 0];
  auto nic = rdma::open_verbs_nic({.device = port.device, .port = port.port}, kPatient);
  if (!nic) return make_rdma_transport({}, nic.status());
  nics.push_back(std::move(*nic));
  return make_rdma_transport({.stream = {.credentials = test_credentials()}, .spin_us = spin_us},
                             std::move(nics));
}

Way rdma_way(const char* name, bool two_loops, TimeUs spin_us) {
  return {.name = name,
          .two_loops = two_loops,
          .address = "127.0.0.1",  // where connections begin; what they carry goes through the devices
          .make = [spin_us](int side, std::shared_ptr<void>&) { return make(side, spin_us); },
          .lends = true};
}

INSTANTIATE_TEST_SUITE_P(Devices, Conformance,
                         testing::Values(rdma_way("Rdma", true, 0), rdma_way("RdmaSpinning", true, 100)),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace byteps::transport
