// Connections within an event loop. Payloads are passed by reference, without a copy.
#pragma once

#include <memory>
#include <utility>

#include "transport/transport.h"

namespace byteps::transport {

// Creates the two ends of a connection on `loop`, which must outlive both. Frames are delivered in
// turns of the loop, never inside send(). ReceiveBuffer::at gets a copy, unless the payload is
// already there. Leases have no numbers (kNoLease), as the memory belongs to this process; see
// Payload. on_sent is called when the receiver has the frame (it may still use the payload) or is
// gone. Any thread may call this; the ends belong to `loop`.
std::pair<std::unique_ptr<Connection>, std::unique_ptr<Connection>> make_inproc_pair(EventLoop& loop);

}  // namespace byteps::transport
