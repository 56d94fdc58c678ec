// Connections within a process. Payloads are passed by reference, without a copy.
#pragma once

#include <memory>
#include <utility>

#include "transport/transport.h"

namespace byteps::transport {

// Creates the two ends of a connection, each on its own loop (which may be the same). A frame is
// delivered by a task posted to the other end's loop. ReceiveBuffer::at gets a copy, unless the
// payload is already there. Leases have no numbers (kNoLease), as the memory belongs to this
// process; see Payload. on_sent is called when the receiver has the frame (it may still use the
// payload) or is gone. Both loops must outlive both ends. Any thread.
std::pair<std::unique_ptr<Connection>, std::unique_ptr<Connection>> make_inproc_pair(EventLoop& first,
                                                                                     EventLoop& second);

}  // namespace byteps::transport
