// For transports that lend: a payload that is in memory already is brought where its receiver wants it.
#pragma once

#include "transport/transport.h"

namespace byteps::transport {

// Where `lent` is now, as on_frame wants it. Copies for ReceiveBuffer::at, unless the receive_buffer is that very memory.
Bytes place_payload(const ReceiveBuffer& receive_buffer, Bytes lent);

}  // namespace byteps::transport
