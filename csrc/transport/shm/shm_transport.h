// The transport between processes of one machine, one network namespace and one user: shared memory
// for payloads, a Unix socket for heads and wake-ups. Nothing is created in a file system, and
// nothing remains when processes die.
#pragma once

#include <memory>

#include "transport/shm/shared_pool.h"
#include "transport/stream/stream.h"

namespace byteps::transport {

struct ShmOptions {
  StreamOptions stream = {};  // the secret may be empty: the kernel identifies the peer
  // Bytes of shared memory per connection, which is also the largest leased payload. Small, so that
  // it stays in cache: it has to cover one partition's round trip, not all data in flight.
  size_t arena_bytes = 2 << 20;
  // Where arenas are, and what is lent without a copy; null: each connection has its own segment.
  std::shared_ptr<SharedPool> pool = nullptr;
};

// listen() takes "@name", or "@" for a random name; connect() takes the Listener's address().
std::unique_ptr<Transport> make_shm_transport(ShmOptions options);

}  // namespace byteps::transport
