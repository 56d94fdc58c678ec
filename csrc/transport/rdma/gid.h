// GIDs: the addresses of RDMA ports, and the choice of one for each port.
//
// Pure; thread-safe. A RoCE port has one or two GIDs per IP address of its interfaces: RoCE v1 uses
// Ethernet frames of its own, v2 UDP packets, which can be routed. Both ends must use the same
// version. Source: InfiniBand Architecture Specification, volume 1, annexes A16 and A17.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "base/status.h"
#include "transport/rdma/nic.h"

namespace byteps::transport::rdma {

enum class GidType { kV1, kV2 };  // kV1: also all GIDs of InfiniBand

// An entry of a port's GID table.
struct GidEntry {
  int index = 0;
  Gid gid{};
  GidType type = GidType::kV1;
  std::string interface;  // RoCE: the interface with the address, such as "eth0"
};

// Parses eight groups of hexadecimal digits, as in sysfs, or any other form of an IPv6 address.
std::optional<Gid> parse_gid(const std::string& text);
// "::ffff:10.0.0.2", "fe80::1"
std::string to_text(const Gid& gid);
// The GID that RoCE derives from an IP address ("10.0.0.2", "fe80::1%eth0"); nullopt if it is none.
std::optional<Gid> gid_of_ip(const std::string& ip);
// "::ffff:10.0.0.2 (RoCE v2, index 1)"; for InfiniBand without the version.
std::string to_text(const GidEntry& entry, bool is_ethernet);

struct GidPreference {
  bool is_ethernet = true;
  int index = -1;           // -1: the best one
  std::string ip{};         // address that peers use for this machine, or empty
  std::string interface{};  // interface with that address, or empty
};
// The best entry of `table`. With an index in `preference`, that entry; on InfiniBand, the first;
// on RoCE by these criteria: the preferred address, its interface, v2 before v1, IPv4 before global
// IPv6 before link-local, first in the table. kInvalidArgument: no such index; kUnavailable: the
// table is empty.
Result<GidEntry> choose_gid(std::span<const GidEntry> table, const GidPreference& preference);

}  // namespace byteps::transport::rdma
