#include "protocol/partition.h"

#include <algorithm>
#include <string>

#include "protocol/message.h"
#include "protocol/plan.h"
#include "protocol/tree.h"

namespace byteps::protocol {
namespace {

uint64_t divide_up(uint64_t value, uint64_t divisor) { return (value + divisor - 1) / divisor; }

// Rounds up to pages: at least one, even for a tensor without elements.
uint64_t whole_pages(uint64_t bytes) { return std::max<uint64_t>(kPageBytes, round_up(bytes, kPageBytes)); }

constexpr uint64_t kPartitionsPerHost = 128;
constexpr uint64_t kLeastBytes = 128 << 10;
constexpr uint64_t kMostBytes = 1 << 20;
constexpr uint64_t kLeastBytesUnknown = 256 << 10;  // if the speed of the network is unknown
// On one machine: 256 KiB, which fit into every second-level cache; more for large tensors, which do
// not stay in a cache anyway, so that they have fewer messages. With 4 ranks on 2 cores, 8 MiB took
// 6.9 ms in partitions of 256 KiB and 5.9 in these, 64 MiB 54 and 47 ms; on an H200 1 GiB 20.2 and
// 21.3 GB/s.
constexpr uint64_t kLeastBytesOnOneMachine = 256 << 10;
constexpr uint64_t kPartitionsOnOneMachine = 16;
constexpr uint64_t kMostLeastBytes = 512 << 10;
constexpr double kLeastUs = 200;  // sending a partition should take at least this long
// The last sum of a tensor travels alone. On a slow link that takes longer than the work of smaller
// messages: 16 MiB between two workers at 200 Mbit/s took 721 ms with partitions of 128 KiB, and 715
// with these, and 735 and 718 where 0.1 % of the packets were lost.
constexpr uint64_t kLeastBytesOfSlow = 32 << 10;
constexpr double kLeastUsOfSlow = 1000;
// A root answers when it has a partition from every machine. Of a thousand machines, or on
// connections that each have a part of the card, that takes as long as for these bytes on the whole
// card; nothing comes back before. Predictions of `byteps plan` for 1.3 GB and 100 Gbit/s, over the
// bound, with partitions of 512 KiB and with these: 3.60 and 1.05 on 1,024 machines and 512
// servers (one rank each), 1.52 and 1.08 on 8 machines of 8 ranks, and 4 servers.
constexpr uint64_t kMostBytesAtRoot = 16 << 20;
constexpr uint64_t kLeastBytesOfMany = 16 << 10;

}  // namespace

uint32_t Partitioning::count() const {
  return bytes == 0 ? 1 : static_cast<uint32_t>(divide_up(bytes, partition_bytes));
}

uint64_t Partitioning::offset(uint32_t partition) const { return partition * partition_bytes; }

uint64_t Partitioning::size(uint32_t partition) const {
  return std::min(partition_bytes, bytes - offset(partition));
}

Status check_tensor_bytes(uint64_t bytes, DType dtype) {
  if (bytes % size_of(dtype) != 0) {
    return invalid_argument("size: expected a multiple of the element size of " +
                            std::string(to_string(dtype)) + ", got " + std::to_string(bytes) + " bytes");
  }
  if (bytes > kMaxTensorBytes) {
    return invalid_argument("size: expected at most " + std::to_string(kMaxTensorBytes) + " bytes, got " +
                            std::to_string(bytes));
  }
  return Status::ok();
}

std::string describe_elements(uint64_t bytes, DType dtype) {
  return std::to_string(bytes / size_of(dtype)) + " elements of " + std::string(to_string(dtype));
}

Partitioning cut_evenly(uint64_t bytes, uint64_t wanted_bytes) {
  const uint64_t least_bytes = divide_up(bytes, kMaxPartitions);
  const uint64_t most_bytes = whole_pages(std::clamp(wanted_bytes, least_bytes, kMaxTensorBytes));
  const uint64_t count = std::max<uint64_t>(1, divide_up(bytes, most_bytes));
  return Partitioning{bytes, whole_pages(divide_up(bytes, count))};
}

PartitionRule::PartitionRule(const std::vector<ReducerHost>& reducer_hosts, uint64_t fixed_bytes,
                             uint64_t connections)
    : fixed_bytes_(fixed_bytes),
      num_hosts_(std::max<uint64_t>(1, reducer_hosts.size())),
      least_bytes_(kLeastBytesUnknown) {
  if (reducer_hosts.size() < 2) return;
  const double slowest_mbps = std::ranges::min_element(reducer_hosts, {}, &ReducerHost::nic_mbps)->nic_mbps;
  if (slowest_mbps > 0) {
    const double bytes_per_us = slowest_mbps / 8;
    const uint64_t least_bytes =
        std::clamp(static_cast<uint64_t>(bytes_per_us * kLeastUsOfSlow), kLeastBytesOfSlow, kLeastBytes);
    least_bytes_ = std::clamp(static_cast<uint64_t>(bytes_per_us * kLeastUs), least_bytes, kMostLeastBytes);
  }
  const auto machines =
      static_cast<uint64_t>(std::ranges::count(reducer_hosts, false, &ReducerHost::is_server));
  const uint64_t most_bytes = kMostBytesAtRoot / std::max<uint64_t>(1, machines * connections);
  least_bytes_ = std::min(least_bytes_, std::max(kLeastBytesOfMany, most_bytes));
}

PartitionRule::PartitionRule(const Tree& tree, uint64_t fixed_bytes)
    : PartitionRule(tree.reducer_hosts(), fixed_bytes, tree.most_connections()) {}

uint64_t PartitionRule::wanted_bytes(uint64_t tensor_bytes) const {
  if (fixed_bytes_ > 0) return fixed_bytes_;
  if (num_hosts_ == 1)
    return std::clamp(tensor_bytes / kPartitionsOnOneMachine, kLeastBytesOnOneMachine, kMostBytes);
  return std::clamp(tensor_bytes / (kPartitionsPerHost * num_hosts_), least_bytes_, kMostBytes);
}

Partitioning PartitionRule::partition(uint64_t tensor_bytes, uint8_t partition_scale) const {
  const Partitioning first = cut_evenly(tensor_bytes, wanted_bytes(tensor_bytes));
  return partition_scale == 0
             ? first
             : cut_evenly(tensor_bytes, scaled_partition_bytes(partition_scale, first.partition_bytes));
}

}  // namespace byteps::protocol
