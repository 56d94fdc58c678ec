// Implements Nic (nic.h) for a port of a libibverbs device.
#pragma once

#include <memory>
#include <string>

#include "transport/rdma/nic.h"
#include "transport/rdma/verbs_device.h"

namespace byteps::transport::rdma {

struct PortChoice {
  std::string device;  // name of an existing device, such as "mlx5_0"
  int port = 1;
  // Address that peers use for this machine, or empty. Its GID is preferred, then those of its
  // interface.
  std::string ip{};
};

// Takes some milliseconds. kUnimplemented: no libibverbs; kInvalidArgument: no such device, port or
// GID, or an option out of range; kUnavailable: the port cannot be used, with the remedy.
Result<std::unique_ptr<Nic>> open_verbs_nic(const PortChoice& choice, const VerbsOptions& options);

}  // namespace byteps::transport::rdma
