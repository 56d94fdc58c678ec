// Moves a payload that is already in memory to where its receiver wants it.
#pragma once

#include "transport/transport.h"

namespace byteps::transport {

// Returns the payload as on_frame expects it. Copies it for ReceiveBuffer::at, unless that is the
// memory where it already is.
Bytes place_payload(const ReceiveBuffer& receive_buffer, Bytes payload);

}  // namespace byteps::transport
