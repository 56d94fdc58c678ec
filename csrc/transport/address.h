// Addresses of listeners, and which of this machine's addresses to advertise.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace byteps::transport {

// A numeric IPv4 or IPv6 address (never a host name) with a TCP port, or the name of an abstract
// Unix socket (unix(7)), which is not in a file system, is visible in its network namespace only
// and disappears with its last descriptor.
struct Address {
  std::string ip;  // "10.0.0.2", "fe80::1%eth0", or "@name" for a Unix socket
  uint16_t port = 0;

  // "10.0.0.2:9000", "[::1]:9000" or "@name".
  std::string to_string() const;
  bool is_unix() const { return ip.starts_with('@'); }
  bool is_loopback() const;  // for IP addresses
  bool operator==(const Address&) const = default;
};

// Parses what to_string() returns. The message of kInvalidArgument says what was expected.
Result<Address> parse_address(const std::string& text);

// All numeric addresses of `host`, a name or number. Blocks in the resolver. kUnavailable names the
// host.
Result<std::vector<Address>> resolve(const std::string& host, uint16_t port);

// Address of the network interface `name`, IPv4 preferred. kInvalidArgument lists the existing
// interfaces.
Result<std::string> address_of_interface(const std::string& name);

// Name of the network interface that has the address `ip`; kInvalidArgument if there is none.
Result<std::string> interface_of_address(const std::string& ip);

// The address that this machine uses to reach `remote`: the source address of the route, found with
// a connected UDP socket (nothing is sent). Never taken from /etc/hosts.
Result<std::string> address_by_route(const Address& remote);

// An address in the form that system calls take.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
};

// Returns kInvalidArgument unless `address.ip` is a numeric address or an @ followed by 1 to 107
// printable characters.
Result<SocketAddress> to_socket_address(const Address& address);
// "@" for an unnamed Unix socket.
Address from_socket_address(const SocketAddress& address);

}  // namespace byteps::transport
