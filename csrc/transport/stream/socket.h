// System calls for stream sockets. All sockets are non-blocking and close-on-exec.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "transport/address.h"

namespace byteps::transport {

Result<UniqueFd> open_stream_socket(int family);

// Returns a socket bound to `address` (port 0: chosen by the kernel) and listening. kUnavailable
// names the address.
Result<UniqueFd> open_listening_socket(const Address& address);

// Takes over a listening TCP socket created elsewhere and returns its address. kInvalidArgument: it
// is not one.
Result<Address> adopt_listening_socket(int fd);

// Sets the options of every TCP connection of byteps. The connection also works where the kernel
// refuses them.
// - TCP_NODELAY: frames are written whole, so waiting for more bytes (RFC 896) gains nothing.
// - TCP_NOTSENT_LOWAT: limits unsent bytes in the kernel, which later urgent frames cannot
//   overtake.
// - TCP_RTO_MIN_US and TCP_DELACK_MAX_US (Linux 6.15): when the last packet before a pause is lost,
//   nothing but time tells, and all ranks wait for it. Linux lets 200 ms pass at least, because the
//   receiver may hold back an acknowledgement; our receivers do so for a shorter time.
void tune_tcp(int fd);

// TCP: breaks the connection (ETIMEDOUT) when the peer's machine has not acknowledged data or
// probes for this long, or has not had room for data to be written. An idle, healthy connection is
// not affected.
void limit_tcp_silence(int fd, TimeUs limit_us);

// TCP: reports the socket as readable when `bytes` (at least 1) have arrived or the peer cannot
// send more (SO_RCVLOWAT).
void wake_at(int fd, int bytes);

// Size of the kernel's receive buffer, which it adapts to the traffic unless the size was set.
size_t receive_buffer_bytes(int fd);

// Bytes written but not received: by the peer's kernel (TCP) or process (Unix sockets, where
// overhead counts, too).
uint64_t untaken_bytes(int fd);

Address local_address(int fd);
Address peer_address(int fd);
// The result of a connect() in progress: 0 or an errno.
int take_socket_error(int fd);

}  // namespace byteps::transport
