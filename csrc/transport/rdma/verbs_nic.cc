#include "transport/rdma/verbs_nic.h"

#include "base/log.h"
#include "transport/address.h"
#include "transport/rdma/port_report.h"
#include "transport/rdma/verbs_queue_pair.h"

namespace byteps::transport::rdma {
namespace {

class VerbsNic final : public Nic {
 public:
  VerbsNic(std::unique_ptr<VerbsDevice> device, NicInfo info, const VerbsOptions& options)
      : device_(std::move(device)), info_(std::move(info)), options_(options) {}

  const NicInfo& info() const override { return info_; }

  Result<std::unique_ptr<MemoryRegion>> register_memory(MutableBytes memory, Access access) override {
    return rdma::register_memory(*device_, memory, access, info_.on_demand_paging);
  }
  Result<std::unique_ptr<MemoryRegion>> register_dmabuf(int fd, uint64_t offset, uint64_t bytes,
                                                        uint64_t address, Access access) override {
    return rdma::register_dmabuf(*device_, fd, offset, bytes, address, access);
  }
  Result<std::unique_ptr<CompletionChannel>> make_channel() override { return VerbsChannel::make(*device_); }
  Result<std::unique_ptr<QueuePair>> make_queue_pair(CompletionChannel& channel, void* tag,
                                                     const QueuePairOptions& options) override {
    return VerbsQueuePair::make(*device_, info_, options_, static_cast<VerbsChannel&>(channel), tag, options);
  }
  int event_fd() const override { return device_->context->async_fd; }
  NicEvent next_event() override { return next_event_of(*device_, info_.port); }

 private:
  const std::unique_ptr<VerbsDevice> device_;
  const NicInfo info_;
  const VerbsOptions options_;
};

Status check_range(const char* what, int value, int least, int most) {
  if (value >= least && value <= most) return Status::ok();
  return invalid_argument("RDMA: " + std::string(what) + " " + std::to_string(value) + ": expected " +
                          std::to_string(least) + " to " + std::to_string(most));
}

Status check_options(const VerbsOptions& options) {
  BPS_RETURN_IF_ERROR(check_range("GID index", options.gid_index, -1, 255));
  BPS_RETURN_IF_ERROR(check_range("traffic class", options.traffic_class, 0, 255));
  BPS_RETURN_IF_ERROR(check_range("service level", options.service_level, 0, 15));
  BPS_RETURN_IF_ERROR(check_range("timeout exponent", options.timeout, 0, 31));
  return check_range("retries", options.retries, 0, 7);
}

Status no_such_port(const PortChoice& choice) {
  std::string known;
  for (const PortReport& report : report_ports()) known += (known.empty() ? "" : ", ") + report.to_string();
  return invalid_argument("no RDMA device \"" + choice.device + "\" with a port " +
                          std::to_string(choice.port) + ": this machine has " +
                          (known.empty() ? "none" : known));
}

Result<PortReport> open_port_of(const PortChoice& choice) {
  for (PortReport& report : report_ports(choice.device)) {
    if (report.device != choice.device || report.port != choice.port) continue;
    if (!report.usable()) return unavailable("RDMA: " + report.why_not);
    return std::move(report);
  }
  return no_such_port(choice);
}

Result<GidEntry> find_gid(const PortReport& port, const PortChoice& choice, const VerbsOptions& options) {
  GidPreference preference{
      .is_ethernet = port.is_ethernet, .index = options.gid_index, .ip = choice.ip, .interface = ""};
  if (!choice.ip.empty()) {
    // The address may belong to another device; then no entry of this table matches the interface.
    if (const auto interface = interface_of_address(choice.ip)) preference.interface = *interface;
  }
  auto gid = choose_gid(port.gids, preference);
  if (!gid) return gid.status().with_context(port.to_string());
  return gid;
}

Result<NicInfo> describe_port(const VerbsDevice& device, const PortReport& port, const GidEntry& gid) {
  abi::PortAttr attr{};
  const int error = device.verbs.query_port(device.context.get(), static_cast<uint8_t>(port.port), &attr);
  if (error != 0) return refusal("ibv_query_port of " + port.to_string(), error);
  NicInfo info;
  info.device = port.device;
  info.port = port.port;
  info.is_ethernet = port.is_ethernet;
  info.interface = gid.interface.empty() ? port.interface : gid.interface;
  info.mtu_bytes = mtu_bytes_of(attr.active_mtu);
  info.lid = attr.lid;
  info.gid_index = gid.index;
  info.gid = gid.gid;
  info.gid_text = to_text(gid, port.is_ethernet);
  info.max_message_bytes = attr.max_message_bytes;
  if (info.mtu_bytes == 0 || info.max_message_bytes == 0) {
    return unavailable(port.to_string() + ": expected a packet size and a largest message, got code " +
                       std::to_string(attr.active_mtu) + " and " + std::to_string(attr.max_message_bytes));
  }
  return info;
}

}  // namespace

Result<std::unique_ptr<Nic>> open_verbs_nic(const PortChoice& choice, const VerbsOptions& options) {
  BPS_RETURN_IF_ERROR(check_options(options));
  const auto verbs = verbs_library();
  if (!verbs) return verbs.status();
  const auto port = open_port_of(choice);
  if (!port) return port.status();
  const auto gid = find_gid(*port, choice, options);
  if (!gid) return gid.status();
  auto device = open_verbs_device(**verbs, choice.device);
  if (!device) return device.status();
  auto info = describe_port(**device, *port, *gid);
  if (!info) return info.status();
  info->on_demand_paging = on_demand_paging_works(**device);
  BPS_LOG(kInfo) << "rdma: " << info->to_string() << ": " << info->gid_text << ", MTU " << info->mtu_bytes
                 << (info->on_demand_paging ? ", pages on demand" : "");
  return std::unique_ptr<Nic>(std::make_unique<VerbsNic>(std::move(*device), std::move(*info), options));
}

}  // namespace byteps::transport::rdma
