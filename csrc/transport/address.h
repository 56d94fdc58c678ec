// Where a listener can be reached, and which of this machine's addresses to hand out.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace byteps::transport {

// A numeric IPv4 or IPv6 address (never a host name) and a TCP port; or the name of a Unix socket, of the kind that
// lies in no file system, is seen within its network namespace, and goes with its last descriptor (unix(7), abstract).
struct Address {
  std::string ip;  // "10.0.0.2", "fe80::1%eth0"; "@name" of a Unix socket
  uint16_t port = 0;

  // "10.0.0.2:9000", "[::1]:9000", "@name".
  std::string to_string() const;
  bool is_unix() const { return ip.starts_with('@'); }
  bool is_loopback() const;  // of an IP address
  bool operator==(const Address&) const = default;
};

// What to_string() writes; kInvalidArgument with what was expected otherwise.
Result<Address> parse_address(const std::string& text);

// All numeric addresses of `host` (name or number). Blocks in the resolver. kUnavailable names the host.
Result<std::vector<Address>> resolve(const std::string& host, uint16_t port);

// The address of the interface called `name`, IPv4 before IPv6. kInvalidArgument lists the interfaces there are.
Result<std::string> address_of_interface(const std::string& name);

// The name of the interface that carries `ip`; kInvalidArgument if none does.
Result<std::string> interface_of_address(const std::string& ip);

// The address that this machine uses to reach `remote`: the source address of the route (a connected UDP
// socket; nothing is sent). Never taken from /etc/hosts.
Result<std::string> address_by_route(const Address& remote);

// An address as the system calls take it.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
};

// kInvalidArgument if `address.ip` is no numeric address and no name of 1 to 107 printable characters behind an @.
Result<SocketAddress> to_socket_address(const Address& address);
// "@" for a Unix socket without a name.
Address from_socket_address(const SocketAddress& address);

}  // namespace byteps::transport
