#include "protocol/message.h"

#include <algorithm>

namespace byteps::protocol {

std::string describe(const Key& key) {
  return "tensor " + std::to_string(key.tensor) + ", " + describe_partition(key);
}

std::string describe_partition(const Key& key) { return "partition " + std::to_string(key.partition); }

std::string describe(const TensorMode& mode) {
  if (!mode.stored) return "reduces it";
  if (mode.staleness == kUnboundedStaleness) return "stores it with unbounded staleness";
  return "stores it with staleness " + std::to_string(mode.staleness);
}

std::string Stalled::describe() const {
  return "tensor " + (name.empty() ? "number " + std::to_string(tensor) : "'" + name + "'") + ": " + text;
}

std::span<const std::string> NodeInfo::addresses(std::string_view name) const {
  const auto found = std::ranges::find(endpoints, name, &Endpoint::transport);
  return found == endpoints.end() ? std::span<const std::string>() : found->addresses;
}

std::string NodeInfo::describe() const {
  std::string text = role == Role::kWorker ? (rank < 0 ? "worker" : "rank") : "server";
  if (rank >= 0) text += " " + std::to_string(rank);
  return text + " (host " + host + ", pid " + std::to_string(pid) + ")";
}

}  // namespace byteps::protocol
