// A port of a device of libibverbs as a Nic (nic.h).
#pragma once

#include <memory>
#include <string>

#include "transport/rdma/nic.h"
#include "transport/rdma/verbs_options.h"

namespace byteps::transport::rdma {

struct PortChoice {
  std::string device;  // "mlx5_0"; the name of one that there is
  int port = 1;
  // That others reach this machine by: its GID is preferred, then those of its interface. Or empty.
  std::string ip{};
};

// Cost: some milliseconds. kUnimplemented: no libibverbs. kInvalidArgument: no such device, port or GID, or an option out
// of its range. kUnavailable: the port cannot be used, with the remedy.
Result<std::unique_ptr<Nic>> open_verbs_nic(const PortChoice& choice, const VerbsOptions& options);

}  // namespace byteps::transport::rdma
