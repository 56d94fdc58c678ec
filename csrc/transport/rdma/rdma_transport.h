// The RDMA transport: InfiniBand and RoCE, for machines whose cards can reach each other. Contract: transport.h.
//
// Addresses are those of TCP, where connections begin (connection.h). What it carries and why so: docs/rdma.md.
#pragma once

#include <memory>
#include <vector>

#include "transport/rdma/connection.h"
#include "transport/stream/stream.h"

namespace byteps::transport {

struct RdmaOptions {
  StreamOptions stream = {};
  TimeUs spin_us = 0;                           // rdma::ConnectionOptions
  TimeUs introduction_timeout_us = 10'000'000;  // for two ends to find that RDMA works between them
};

// `nics`: the cards to use, in the order in which connections are spread over them; or why there is none.
std::unique_ptr<Transport> make_rdma_transport(RdmaOptions options,
                                               Result<std::vector<std::unique_ptr<rdma::Nic>>> nics);

// What the cards of such a transport know of memory, summed.
rdma::RegistrationCounts registration_counts(const Transport& rdma);

}  // namespace byteps::transport
