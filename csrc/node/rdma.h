// The RDMA transport of a process, as its configuration wants it.
#pragma once

#include <memory>
#include <string>

#include "base/config.h"
#include "base/status.h"
#include "transport/transport.h"

namespace byteps::node {

// `ip`: that this process hands out. An error says why it has to do without: kUnimplemented: nobody wants it, or the
// machine has none (BYTEPS_TRANSPORT=auto); else what is wrong and the remedy.
Result<std::unique_ptr<transport::Transport>> make_rdma(const NodeConfig& config, const std::string& ip);

}  // namespace byteps::node
