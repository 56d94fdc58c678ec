// Control messages over an endpoint, as cluster/control_channel does it.
#pragma once

#include "protocol/message.h"
#include "sim/world.h"

namespace byteps::sim {

void send_control(World& world, Endpoint& endpoint, const protocol::Control& message);
Result<protocol::Control> read_control(const Frame& frame);

}  // namespace byteps::sim
