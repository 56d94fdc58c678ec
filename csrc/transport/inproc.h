// Connections inside one process: payloads are lent, nothing is copied.
#pragma once

#include <memory>
#include <utility>

#include "transport/transport.h"

namespace byteps::transport {

// Two ends of one connection, each on its own loop (which may be the same one). A frame is delivered by a task
// posted to the other end's loop. A receiver that answers ReceiveBuffer::at gets a copy, unless that is where the payload
// lies already. BufferLeases have no numbers (kNoLease): the memory is the process's own, see Payload. on_sent comes when the
// receiver has the frame (a lent payload may still be in use), or has gone. Both loops must outlive both ends; any
// thread may make a pair.
std::pair<std::unique_ptr<Connection>, std::unique_ptr<Connection>> make_inproc_pair(EventLoop& first,
                                                                                     EventLoop& second);

}  // namespace byteps::transport
