// GIDs: the addresses of RDMA ports, and which of a port's to use.
//
// Pure, and any thread. A RoCE port has one or two GIDs for every IP address of its interfaces: RoCE v1 travels in Ethernet
// frames of its own, v2 in UDP packets, which routers know. Both ends must use the same version.
// Source: InfiniBand Architecture Specification, volume 1, annexes A16 and A17.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "base/status.h"
#include "transport/rdma/nic.h"

namespace byteps::transport::rdma {

enum class GidType { kV1, kV2 };  // kV1: also every one of InfiniBand

// An entry of a port's table.
struct GidEntry {
  int index = 0;
  Gid gid{};
  GidType type = GidType::kV1;
  std::string interface;  // of RoCE: whose address it is, "eth0"
};

// Eight groups of hexadecimal digits, as in sysfs, or any other form of an IPv6 address.
std::optional<Gid> parse_gid(const std::string& text);
// "::ffff:10.0.0.2", "fe80::1"
std::string to_text(const Gid& gid);
// What RoCE makes of an IP address ("10.0.0.2", "fe80::1%eth0"); nothing if it is none.
std::optional<Gid> gid_of_ip(const std::string& ip);
// "::ffff:10.0.0.2 (RoCE v2, index 1)"; of InfiniBand without the version.
std::string to_text(const GidEntry& entry, bool is_ethernet);

struct GidPreference {
  bool is_ethernet = true;
  int index = -1;           // -1: whichever is best
  std::string ip{};         // the address that others reach this machine by; or empty
  std::string interface{};  // that carries it; or empty
};
// The best of `table`: the wanted index; InfiniBand: the first; RoCE: of the wanted address, then of its interface, then
// v2 before v1, IPv4 before global IPv6 before link-local, and the first of equals. kInvalidArgument: no such index;
// kUnavailable: the table is empty.
Result<GidEntry> choose_gid(std::span<const GidEntry> table, const GidPreference& preference);

}  // namespace byteps::transport::rdma
