// The transports that work on any machine, and RDMA with simulated NICs (support/fake_nic.h).
#include "support/fake_nic.h"
#include "transport/conformance.h"
#include "transport/rdma/rdma_transport.h"
#include "transport/resume/resuming_transport.h"

namespace byteps::transport {
namespace {

TransportCase inproc() {
  return {.name = "Inproc", .two_loops = false, .lends = true, .shares_reply_space = true};
}

TransportCase tcp(const char* name, bool two_loops, const char* address) {
  return {.name = name, .two_loops = two_loops, .address = address, .make = [](int, std::shared_ptr<void>&) {
            return make_tcp_transport({.credentials = test_credentials()});
          }};
}

TransportCase resuming() {
  return {.name = "Resuming",
          .two_loops = true,
          .address = "127.0.0.1",
          .make =
              [](int side, std::shared_ptr<void>&) {
                return make_resuming_transport(make_tcp_transport({.credentials = test_credentials()}),
                                               {.nonce = static_cast<uint64_t>(side), .limit_us = 200'000});
              },
          .comes_again = true};
}

// `pooled`: all connections share one memory, as where there is a GPU.
TransportCase shm(const char* name, bool two_loops, size_t arena_bytes, bool pooled = false) {
  return {.name = name,
          .two_loops = two_loops,
          .address = "@",
          .make =
              [arena_bytes, pooled](int, std::shared_ptr<void>&) {
                return make_shm_transport({.stream = {.credentials = test_credentials()},
                                           .arena_bytes = arena_bytes,
                                           .pool = pooled ? *SharedPool::create(1 << 20) : nullptr});
              },
          .lends = true,
          .shares_reply_space = true};
}

TransportCase rdma(const char* name, bool two_loops, const rdma::FakeNicOptions& nic, TimeUs spin_us = 0) {
  return {.name = name,
          .two_loops = two_loops,
          .address = "127.0.0.1",
          .make =
              [nic, spin_us](int, std::shared_ptr<void>& context) {
                if (!context) context = std::make_shared<rdma::FakeFabric>();
                std::vector<std::unique_ptr<rdma::Nic>> nics;
                nics.push_back(static_cast<rdma::FakeFabric*>(context.get())->make_nic(nic));
                return make_rdma_transport(
                    {.stream = {.credentials = test_credentials()}, .spin_us = spin_us}, std::move(nics));
              },
          .lends = true};
}

INSTANTIATE_TEST_SUITE_P(
    Transports, Conformance,
    testing::Values(inproc(), tcp("TcpIPv4", true, "127.0.0.1"), tcp("TcpIPv4OneLoop", false, "127.0.0.1"),
                    tcp("TcpIPv6", true, "::1"), resuming(), shm("Shm", true, 2 << 20),
                    shm("ShmOneLoop", false, 2 << 20), shm("ShmLittleMemory", true, 256 << 10),
                    shm("ShmPooled", true, 2 << 20, true), rdma("Rdma", true, {}),
                    rdma("RdmaOneLoop", false, {}), rdma("RdmaSpinning", true, {}, 200),
                    rdma("RdmaShortMessages", true, {.max_message_bytes = 10'000, .max_inline_bytes = 0})),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace byteps::transport
