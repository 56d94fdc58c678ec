// A transport whose connections survive resets by the network: both ends connect again over another
// transport, the carrier, and send again what the other end has not received.
//
// Each frame carries the number of frames that its sender has received, so a sender knows what it
// may forget. A frame's payload is kept until then (Payload::keep). Frames arrive once and in order;
// a frame that was cut off in its middle begins anew (Receiver::on_head is called again).
//
// Only a reset is survived (Connection::was_reset): an end of file comes from the peer itself, and a
// silent network ends a connection after Connection::limit_silence. If no connection comes about
// within the limit, or the other end's machine refuses connections (ConnectLimits::while_it_lives), the
// connection ends with the cause of the reset.
//
// Wire format: docs/wire-format.md, "Connections that are made anew".
#pragma once

#include <cstdint>
#include <memory>

#include "transport/transport.h"

namespace byteps::transport {

struct ResumeOptions {
  // Random: distinguishes the connections of this process from those of others.
  uint64_t nonce = 0;
  TimeUs limit_us = 0;  // of the connecting end; the accepting end waits 1.25 times as long
};

// `carrier` is a transport without leases whose heads may have kMaxHeadBytes. Both ends of a
// connection must be of such a transport. All is called as on the carrier.
std::unique_ptr<Transport> make_resuming_transport(std::unique_ptr<Transport> carrier,
                                                   const ResumeOptions& options);

}  // namespace byteps::transport
