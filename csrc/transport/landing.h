// For transports that lend: a payload that is in memory already is brought where its receiver wants it.
#pragma once

#include "transport/transport.h"

namespace byteps::transport {

// Where `lent` is now, as on_frame wants it. Copies for Landing::into, unless the landing is that very memory.
Bytes land(const Landing& landing, Bytes lent);

}  // namespace byteps::transport
