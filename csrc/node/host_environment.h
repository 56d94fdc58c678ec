// The environment of a node in a process of its own: threads, sockets, and the facts of this host.
#pragma once

#include <memory>

#include "node/environment.h"

namespace byteps::node {

// The first one of a process names the log; others that exist at the same time do not.
std::unique_ptr<Environment> make_host_environment();

}  // namespace byteps::node
