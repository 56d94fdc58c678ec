#include "transport/rdma/gid.h"

#include <arpa/inet.h>

#include <algorithm>
#include <tuple>

namespace byteps::transport::rdma {
namespace {

bool is_v4_mapped(const Gid& gid) {
  return std::all_of(gid.begin(), gid.begin() + 10, [](uint8_t byte) { return byte == 0; }) &&
         gid[10] == 0xff && gid[11] == 0xff;
}

bool is_link_local(const Gid& gid) { return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80; }

int reach(const Gid& gid) {
  if (is_link_local(gid)) return 0;
  return is_v4_mapped(gid) ? 2 : 1;
}

auto worth(const GidEntry& entry, const std::optional<Gid>& wanted, const std::string& interface) {
  return std::make_tuple(entry.gid == wanted, !interface.empty() && entry.interface == interface,
                         entry.type == GidType::kV2, reach(entry.gid), -entry.index);
}

std::string list(std::span<const GidEntry> table, bool is_ethernet) {
  std::string text;
  for (const GidEntry& entry : table) text += (text.empty() ? "" : ", ") + to_text(entry, is_ethernet);
  return text;
}

}  // namespace

std::optional<Gid> parse_gid(const std::string& text) {
  Gid gid;
  if (inet_pton(AF_INET6, text.c_str(), gid.data()) != 1) return std::nullopt;
  return gid;
}

std::string to_text(const Gid& gid) {
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(AF_INET6, gid.data(), text, sizeof text);
  return text;
}

std::optional<Gid> gid_of_ip(const std::string& ip) {
  const std::string number = ip.substr(0, ip.find('%'));
  return parse_gid(number.find(':') == std::string::npos ? "::ffff:" + number : number);
}

std::string to_text(const GidEntry& entry, bool is_ethernet) {
  const char* version = entry.type == GidType::kV2 ? "RoCE v2, " : "RoCE v1, ";
  return to_text(entry.gid) + " (" + (is_ethernet ? version : "") + "index " + std::to_string(entry.index) +
         ")";
}

Result<GidEntry> choose_gid(std::span<const GidEntry> table, const GidPreference& preference) {
  if (table.empty()) return unavailable("the table of GIDs is empty");
  if (preference.index >= 0) {
    const auto found = std::ranges::find(table, preference.index, &GidEntry::index);
    if (found != table.end()) return *found;
    return invalid_argument("no GID of index " + std::to_string(preference.index) + ": expected one of " +
                            list(table, preference.is_ethernet));
  }
  if (!preference.is_ethernet) return *std::ranges::min_element(table, {}, &GidEntry::index);
  const auto wanted = preference.ip.empty() ? std::nullopt : gid_of_ip(preference.ip);
  return *std::ranges::max_element(
      table, {}, [&](const GidEntry& entry) { return worth(entry, wanted, preference.interface); });
}

}  // namespace byteps::transport::rdma
