// The transport between processes of one machine that run in one network namespace and as one user: shared memory,
// and a Unix socket for heads and wake-ups. Nothing has a name in a file system; nothing remains, whatever dies when.
#pragma once

#include <memory>

#include "transport/stream/stream.h"

namespace byteps::transport {

struct ShmOptions {
  StreamOptions stream = {};  // the secret may be empty: the kernel says who is at the other end
  // Lent by one connection at a time, and the largest payload that is lent. Small, so that it stays in cache: it has
  // to hold what one partition's way there and back takes, not all that is under way.
  size_t lend_bytes = 2 << 20;
};

// listen() takes "@name", or "@" for a name that is drawn at random; connect() takes what Listener::address() says.
std::unique_ptr<Transport> make_shm_transport(ShmOptions options);

}  // namespace byteps::transport
