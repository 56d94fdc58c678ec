#include "transport/address.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <set>

#include "base/unique_fd.h"

namespace byteps::transport {
namespace {

using AddrinfoList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// Calls getaddrinfo for stream sockets. On failure returns an empty list and sets `error`.
AddrinfoList lookup(const std::string& host, int flags, std::string* error) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int failure = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (failure != 0) *error = failure == EAI_SYSTEM ? strerror(errno) : gai_strerror(failure);
  return {failure == 0 ? found : nullptr, &freeaddrinfo};
}

SocketAddress copy_of(const sockaddr* address, socklen_t length) {
  SocketAddress copy;
  std::memcpy(&copy.storage, address, length);
  copy.length = length;
  return copy;
}

void set_port(SocketAddress& address, uint16_t port) {
  // set_port relies on the port having the same offset in both structures.
  static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));
  reinterpret_cast<sockaddr_in*>(address.get())->sin_port = htons(port);
}

std::optional<uint16_t> parse_port(std::string_view text) {
  uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return port;
}

Status not_an_address(const std::string& text) {
  return invalid_argument(
      "address \"" + text +
      "\": expected a numeric address and a port, like 10.0.0.2:9000 or [::1]:9000, or @name");
}

// The name of an abstract socket follows a zero byte and is not terminated; its length comes with
// the address.
constexpr size_t kUnixNameOffset = offsetof(sockaddr_un, sun_path) + 1;

Result<SocketAddress> to_unix_address(std::string_view name) {
  const bool printable =
      std::all_of(name.begin(), name.end(), [](unsigned char c) { return c > ' ' && c < 0x7f; });
  if (name.empty() || kUnixNameOffset + name.size() > sizeof(sockaddr_un) || !printable) {
    return invalid_argument("Unix socket \"@" + std::string(name) +
                            "\": expected 1 to 107 printable characters after the @");
  }
  SocketAddress result;
  result.storage.ss_family = AF_UNIX;
  std::memcpy(reinterpret_cast<char*>(&result.storage) + kUnixNameOffset, name.data(), name.size());
  result.length = static_cast<socklen_t>(kUnixNameOffset + name.size());
  return result;
}

std::string name_of_unix_address(const SocketAddress& address) {
  if (address.length <= kUnixNameOffset) return "";
  return {reinterpret_cast<const char*>(&address.storage) + kUnixNameOffset,
          address.length - kUnixNameOffset};
}

}  // namespace

std::string Address::to_string() const {
  // The peer disconnected before its address was queried.
  if (ip.empty()) return "a peer that has already disconnected";
  if (is_unix()) return ip;
  const bool is_v6 = ip.find(':') != std::string::npos;
  return (is_v6 ? "[" + ip + "]" : ip) + ":" + std::to_string(port);
}

bool Address::is_loopback() const {
  const auto address = to_socket_address(*this);
  if (!address || is_unix()) return false;
  if (address->family() == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address->get());
    return ntohl(v4->sin_addr.s_addr) >> 24 == 127;
  }
  const in6_addr& v6 = reinterpret_cast<const sockaddr_in6*>(address->get())->sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
}

Result<Address> parse_address(const std::string& text) {
  if (Address unix_address{text, 0}; unix_address.is_unix()) {
    return to_socket_address(unix_address) ? Result<Address>(std::move(unix_address)) : not_an_address(text);
  }
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return not_an_address(text);
  std::string ip = text.substr(0, colon);
  const bool bracketed = ip.size() > 2 && ip.front() == '[' && ip.back() == ']';
  if (bracketed) ip = ip.substr(1, ip.size() - 2);
  const auto port = parse_port(std::string_view(text).substr(colon + 1));
  if (!port || bracketed != (ip.find(':') != std::string::npos)) return not_an_address(text);
  Address address{std::move(ip), *port};
  if (!to_socket_address(address)) return not_an_address(text);
  return address;
}

Result<std::vector<Address>> resolve(const std::string& host, uint16_t port) {
  std::string error;
  const AddrinfoList list = lookup(host, 0, &error);
  if (!list) {
    return unavailable("host \"" + host + "\" cannot be resolved: " + error +
                       ": check its spelling, DNS and /etc/hosts");
  }
  std::vector<Address> addresses;
  for (const addrinfo* entry = list.get(); entry; entry = entry->ai_next) {
    Address address = from_socket_address(copy_of(entry->ai_addr, entry->ai_addrlen));
    address.port = port;
    if (std::find(addresses.begin(), addresses.end(), address) == addresses.end())
      addresses.push_back(address);
  }
  return addresses;
}

Result<std::string> interface_of_address(const std::string& ip) {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return from_errno("interface of " + ip + ": getifaddrs", errno);
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(first, &freeifaddrs);
  for (const ifaddrs* entry = first; entry; entry = entry->ifa_next) {
    if (!entry->ifa_addr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (from_socket_address(copy_of(entry->ifa_addr, length)).ip == ip) return std::string(entry->ifa_name);
  }
  return invalid_argument("no interface of this machine has the address " + ip);
}

Result<std::string> address_of_interface(const std::string& name) {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return from_errno("interface \"" + name + "\": getifaddrs", errno);
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(first, &freeifaddrs);
  std::string found;
  int found_family = AF_UNSPEC;
  std::set<std::string> names;
  for (const ifaddrs* entry = first; entry; entry = entry->ifa_next) {
    names.insert(entry->ifa_name);
    if (!entry->ifa_addr || name != entry->ifa_name) continue;
    const int candidate = entry->ifa_addr->sa_family;
    if (candidate != AF_INET && candidate != AF_INET6) continue;
    if (!found.empty() && (found_family == AF_INET || candidate == AF_INET6)) continue;
    const socklen_t length = candidate == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    found = from_socket_address(copy_of(entry->ifa_addr, length)).ip;
    found_family = candidate;
  }
  if (!found.empty()) return found;
  std::string known;
  for (const std::string& each : names) known += (known.empty() ? "" : ", ") + each;
  const char* what = names.count(name) ? "has no address" : "does not exist";
  return invalid_argument("interface \"" + name + "\" " + what + ": this machine has " + known);
}

Result<std::string> address_by_route(const Address& remote) {
  auto to = to_socket_address(remote);
  if (!to) return to.status();
  if (remote.port == 0) set_port(*to, 9);  // the route lookup accepts any port but 0
  const UniqueFd socket_fd(socket(to->family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket_fd.valid() || connect(socket_fd.get(), to->get(), to->length) != 0) {
    return from_errno("route to " + remote.ip, errno);
  }
  SocketAddress from;
  from.length = sizeof from.storage;
  if (getsockname(socket_fd.get(), from.get(), &from.length) != 0)
    return from_errno("route to " + remote.ip, errno);
  return from_socket_address(from).ip;
}

Result<SocketAddress> to_socket_address(const Address& address) {
  if (address.is_unix()) return to_unix_address(address.ip.substr(1));
  std::string error;
  const AddrinfoList list = lookup(address.ip, AI_NUMERICHOST, &error);
  if (!list || address.ip.empty()) {
    return invalid_argument("address \"" + address.ip + "\": expected a numeric IPv4 or IPv6 address");
  }
  SocketAddress result = copy_of(list->ai_addr, list->ai_addrlen);
  set_port(result, address.port);
  return result;
}

Address from_socket_address(const SocketAddress& address) {
  if (address.family() == AF_UNIX) return {"@" + name_of_unix_address(address), 0};
  char host[NI_MAXHOST];
  const int failure =
      getnameinfo(address.get(), address.length, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  if (failure != 0) return {};
  return {host, ntohs(reinterpret_cast<const sockaddr_in*>(address.get())->sin_port)};
}

}  // namespace byteps::transport
