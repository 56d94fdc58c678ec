// The system calls around stream sockets. All sockets are non-blocking and closed by exec.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "transport/address.h"

namespace byteps::transport {

Result<UniqueFd> open_stream_socket(int family);

// Bound to `address` (port 0: the kernel chooses) and listening. kUnavailable names the address.
Result<UniqueFd> open_listening_socket(const Address& address);

// Takes over a listening TCP socket made elsewhere: its address. kInvalidArgument if it is no such socket.
Result<Address> adopt_listening_socket(int fd);

// What every TCP connection of byteps wants of the kernel; where it refuses, the connection works all the same.
//  - Frames are written whole, so nothing is gained by waiting for more bytes (RFC 896 would, for an answer's time).
//  - Bytes that the kernel has taken but not sent cannot be overtaken any more: it shall take few (TCP_NOTSENT_LOWAT).
void tune_tcp(int fd);

// TCP: the kernel spreads what it sends to so many bytes per second; 0: no limit. Takes a connection that was once held
// from a congestion control that measures the rate (BBR) to one that does not (reno).
void pace_tcp(int fd, uint64_t bytes_per_s);

// TCP: the connection breaks (ETIMEDOUT) when the machine at the other end has acknowledged nothing for so long though it
// was asked, or has had no room for what is to be written. Nothing happens where nobody writes and all is well.
void limit_tcp_silence(int fd, TimeUs limit_us);

// TCP: the socket counts as readable when so many bytes are there, at least 1, or the peer cannot send more (SO_RCVLOWAT).
void wake_at(int fd, int bytes);

// That were written and not yet taken by the other end: by its kernel, or, of a Unix socket, by its process. Of the latter
// more is counted than bytes.
uint64_t untaken_bytes(int fd);

Address local_address(int fd);
Address peer_address(int fd);
// The outcome of a connect() that was in progress: 0 or an errno.
int take_socket_error(int fd);

}  // namespace byteps::transport
