// The RDMA transport: InfiniBand and RoCE. Contract: transport.h.
//
// Its addresses are TCP's, as connections start with TCP (connection.h). Design: docs/rdma.md.
#pragma once

#include <memory>
#include <vector>

#include "transport/rdma/connection.h"
#include "transport/stream/stream.h"

namespace byteps::transport {

struct RdmaOptions {
  StreamOptions stream = {};
  TimeUs spin_us = 0;  // see rdma::ConnectionOptions
  // Time limit to establish that RDMA works between the two ends.
  TimeUs introduction_timeout_us = 10'000'000;
  TimeUs renewal_limit_us = 0;  // see rdma::ConnectionOptions
};

// `nics`: those to use, in the order in which connections get them, or the reason for none. `tcp`:
// for the TCP connections; null: one without anything special. Both ends must have the same kind.
std::unique_ptr<Transport> make_rdma_transport(RdmaOptions options,
                                               Result<std::vector<std::unique_ptr<rdma::Nic>>> nics,
                                               std::unique_ptr<Transport> tcp = nullptr);

// Sum of the memory registrations of the transport's NICs.
rdma::RegistrationCounts registration_counts(const Transport& rdma);

}  // namespace byteps::transport
