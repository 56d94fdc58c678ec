#include "transport/rdma/verbs_queue_pair.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <random>

#include "transport/rdma/gid.h"

namespace byteps::transport::rdma {
namespace {

constexpr int kOperationFailed = 2;  // IBV_WC_LOC_QP_OP_ERR; Soft-RoCE's if there is no route
constexpr int kFlushed = 5;          // IBV_WC_WR_FLUSH_ERR
constexpr int kRetryExceeded = 12;   // IBV_WC_RETRY_EXC_ERR

constexpr size_t kBatch = 32;      // number of requests built on the stack at a time
constexpr uint8_t kHopLimit = 64;  // of RoCE v2's IP packets
// 0.64 ms: delay of a sender's retry when this end is not ready
constexpr uint8_t kMinRnrTimer = 12;
constexpr uint32_t k24Bits = 0xffffff;
// One RDMA read: reads are never used, but some drivers do not accept 0.
constexpr uint8_t kMaxReads = 1;
constexpr Gid kNoGid{};

Status check_limit(const std::string& what, uint64_t wanted, int most) {
  if (wanted <= static_cast<uint64_t>(std::max(most, 0))) return Status::ok();
  return invalid_argument(what + ": " + std::to_string(wanted) + " requested, expected at most " +
                          std::to_string(most));
}

Status check_limits(const VerbsDevice& device, const QueuePairOptions& options) {
  const uint64_t both = uint64_t{options.max_writes} + options.max_arrivals;
  const std::string& name = device.name;
  BPS_RETURN_IF_ERROR(
      check_limit(name + ": writes of a queue pair", options.max_writes, device.attr.max_qp_wr));
  BPS_RETURN_IF_ERROR(
      check_limit(name + ": arrivals of a queue pair", options.max_arrivals, device.attr.max_qp_wr));
  return check_limit(name + ": writes and arrivals of a queue pair", both, device.attr.max_cqe);
}

Completion to_completion(const abi::Wc& wc) {
  Completion completion;
  completion.status = wc.status;
  completion.id = wc.id;
  if (wc.status == abi::kWcSuccess && wc.opcode == abi::kWcReceiveRdmaWithImmediate) {
    completion.kind = Completion::Kind::kArrived;
    completion.immediate = ntohl(wc.immediate);
  }
  return completion;
}

// `sge` is filled in only if there is data.
abi::SendWr to_request(const Write& write, abi::Sge* sge) {
  abi::SendWr request{};
  request.id = write.id;
  if (!write.data.empty()) {
    *sge = {reinterpret_cast<uint64_t>(write.data.data()), static_cast<uint32_t>(write.data.size()),
            write.local_key};
    request.sges = sge;
    request.sge_count = 1;
    if (write.local_key == 0) request.flags |= abi::kSendInline;
  }
  request.opcode = write.immediate ? abi::kWrRdmaWriteWithImmediate : abi::kWrRdmaWrite;
  request.immediate = htonl(write.immediate.value_or(0));
  if (write.completes) request.flags |= abi::kSendSignaled;
  request.rdma.remote_address = write.to_address;
  request.rdma.remote_key = write.to_key;
  return request;
}

}  // namespace

std::optional<int32_t> to_mtu_code(int bytes) {
  for (int32_t code = abi::kMtu256; code <= abi::kMtu4096; ++code) {
    if (mtu_bytes_of(code) == bytes) return code;
  }
  return std::nullopt;
}

int mtu_bytes_of(int32_t code) { return code < abi::kMtu256 || code > abi::kMtu4096 ? 0 : 128 << code; }

Result<std::unique_ptr<CompletionChannel>> VerbsChannel::make(const VerbsDevice& device) {
  Owned<abi::CompletionChannel> channel(device.verbs.create_comp_channel(device.context.get()),
                                        device.verbs.destroy_comp_channel);
  if (!channel) return refusal("ibv_create_comp_channel of " + device.name, errno);
  BPS_RETURN_IF_ERROR(make_nonblocking(channel->fd));
  return std::unique_ptr<CompletionChannel>(new VerbsChannel(device, std::move(channel)));
}

void* VerbsChannel::next() {
  abi::Cq* cq = nullptr;
  void* tag = nullptr;
  if (device_.verbs.get_cq_event(channel_.get(), &cq, &tag) != 0) return nullptr;
  // Acknowledged at once, as destroying an object waits for the acknowledgement of its events.
  device_.verbs.ack_cq_events(cq, 1);
  return tag;
}

Result<std::unique_ptr<QueuePair>> VerbsQueuePair::make(const VerbsDevice& device, const NicInfo& info,
                                                        const VerbsOptions& verbs_options,
                                                        VerbsChannel& channel, void* tag,
                                                        const QueuePairOptions& options) {
  BPS_RETURN_IF_ERROR(check_limits(device, options));
  const auto entries = static_cast<int>(std::max<uint32_t>(options.max_writes + options.max_arrivals, 1));
  Owned<abi::Cq> cq(device.verbs.create_cq(device.context.get(), entries, tag, channel.get(), 0),
                    device.verbs.destroy_cq);
  if (!cq) return refusal(device.name + ": completion queue of " + std::to_string(entries), errno);
  std::unique_ptr<VerbsQueuePair> made(new VerbsQueuePair(device, info, verbs_options, std::move(cq)));
  BPS_RETURN_IF_ERROR(made->create(options));
  BPS_RETURN_IF_ERROR(made->prepare());
  return std::unique_ptr<QueuePair>(std::move(made));
}

Status VerbsQueuePair::create(const QueuePairOptions& options) {
  abi::QpInitAttr attr{};
  // The device does not tell its limit of inline bytes: smaller sizes are tried until one will do.
  for (uint32_t inline_bytes = options.max_inline_bytes;; inline_bytes /= 2) {
    attr = {};
    attr.send_cq = attr.receive_cq = cq_.get();
    attr.capacity = {std::max(options.max_writes, 1u), std::max(options.max_arrivals, 1u), 1, 1,
                     inline_bytes};
    attr.type = abi::kQpReliableConnection;
    qp_ = {device_.verbs.create_qp(device_.pd.get(), &attr), device_.verbs.destroy_qp};
    if (qp_) break;
    if (inline_bytes == 0) return refusal(device_.name + ": ibv_create_qp", errno);
  }
  max_inline_bytes_ = attr.capacity.max_inline_bytes;
  std::random_device random;
  address_ = {qp_->number & k24Bits, static_cast<uint32_t>(random()) & k24Bits, info_.lid, info_.gid,
              info_.mtu_bytes};
  return Status::ok();
}

Status VerbsQueuePair::prepare() {
  abi::QpAttr attr{};
  attr.state = abi::kQpInit;
  attr.port = static_cast<uint8_t>(info_.port);
  attr.access_flags = abi::kAccessLocalWrite | abi::kAccessRemoteWrite;
  return modify(attr, abi::kQpState | abi::kQpPkeyIndex | abi::kQpPort | abi::kQpAccessFlags, "INIT");
}

Status VerbsQueuePair::connect(const QueuePairAddress& other) {
  const auto path_mtu = to_mtu_code(std::min(other.mtu_bytes, info_.mtu_bytes));
  if (!path_mtu) {
    return data_loss(name() + ": the other end's packets carry " + std::to_string(other.mtu_bytes) +
                     " bytes: expected 256, 512, 1024, 2048 or 4096");
  }
  const Status ready = make_ready_to_receive(other, *path_mtu);
  // This step resolves the route; without one, the kernel reports only that an argument is invalid.
  if (!ready.is_ok() && info_.is_ethernet) {
    return unavailable(ready.message() + ": check that there is a route from " + to_text(info_.gid) + " to " +
                       to_text(other.gid) +
                       ": the same network, GIDs of the same kind (BYTEPS_RDMA_GID_INDEX)");
  }
  BPS_RETURN_IF_ERROR(ready);
  return make_ready_to_send();
}

Status VerbsQueuePair::make_ready_to_receive(const QueuePairAddress& other, int32_t path_mtu) {
  abi::QpAttr attr{};
  attr.state = abi::kQpReadyToReceive;
  attr.path_mtu = path_mtu;
  attr.dest_number = other.number & k24Bits;
  attr.receive_psn = other.packet_sequence & k24Bits;
  attr.max_dest_read_atomic = kMaxReads;
  attr.min_rnr_timer = kMinRnrTimer;
  abi::AddressVector& to = attr.address_vector;
  to.port = static_cast<uint8_t>(info_.port);
  to.service_level = static_cast<uint8_t>(options_.service_level);
  to.lid = other.lid;
  // Within an InfiniBand subnet GIDs could be omitted, which would save 40 bytes per packet, but
  // virtual functions share a LID and need them.
  to.is_global = other.gid != kNoGid;
  std::ranges::copy(other.gid, to.global.destination);
  to.global.source_index = static_cast<uint8_t>(info_.gid_index);
  to.global.hop_limit = kHopLimit;
  to.global.traffic_class = static_cast<uint8_t>(options_.traffic_class);
  return modify(attr,
                abi::kQpState | abi::kQpAddressVector | abi::kQpPathMtu | abi::kQpDestNumber |
                    abi::kQpReceivePsn | abi::kQpMaxDestReadAtomic | abi::kQpMinRnrTimer,
                "RTR");
}

Status VerbsQueuePair::make_ready_to_send() {
  abi::QpAttr attr{};
  attr.state = abi::kQpReadyToSend;
  attr.timeout = static_cast<uint8_t>(options_.timeout);
  attr.retry_count = static_cast<uint8_t>(options_.retries);
  // Number of retries when the peer is not ready to receive; 7: unlimited. As no write is sent
  // without a posted receive request, not-ready replies indicate a bug, which 6 makes visible. But
  // NICs with on-demand paging, which the peer's probably uses if this one does, also reply so
  // while they fetch a page, which takes arbitrarily long.
  attr.rnr_retry = info_.on_demand_paging ? 7 : 6;
  attr.send_psn = address_.packet_sequence;
  attr.max_read_atomic = kMaxReads;
  return modify(attr,
                abi::kQpState | abi::kQpTimeout | abi::kQpRetryCount | abi::kQpRnrRetry | abi::kQpSendPsn |
                    abi::kQpMaxReadAtomic,
                "RTS");
}

Status VerbsQueuePair::modify(abi::QpAttr attr, int mask, const char* to) {
  const int error = device_.verbs.modify_qp(qp_.get(), &attr, mask);
  return error == 0 ? Status::ok() : refusal(name() + " to state " + to, error);
}

Status VerbsQueuePair::check(const Write& write) const {
  if (write.data.size() > info_.max_message_bytes) {
    return internal(name() + ": a write of " + std::to_string(write.data.size()) +
                    " bytes: expected at most " + std::to_string(info_.max_message_bytes));
  }
  if (write.local_key == 0 && write.data.size() > max_inline_bytes_) {
    return internal(name() + ": an inline write of " + std::to_string(write.data.size()) +
                    " bytes: expected at most " + std::to_string(max_inline_bytes_));
  }
  return Status::ok();
}

Status VerbsQueuePair::post(std::span<const Write> writes) {
  for (const Write& write : writes) BPS_RETURN_IF_ERROR(check(write));
  while (!writes.empty()) {
    const size_t count = std::min(writes.size(), kBatch);
    BPS_RETURN_IF_ERROR(post_some(writes.first(count)));
    writes = writes.subspan(count);
  }
  return Status::ok();
}

Status VerbsQueuePair::post_some(std::span<const Write> writes) {
  std::array<abi::SendWr, kBatch> requests;
  std::array<abi::Sge, kBatch> sges;
  for (size_t i = 0; i < writes.size(); ++i) {
    requests[i] = to_request(writes[i], &sges[i]);
    if (i > 0) requests[i - 1].next = &requests[i];
  }
  abi::SendWr* bad = nullptr;
  const int error = qp_->context->ops.post_send(qp_.get(), requests.data(), &bad);
  return error == 0 ? Status::ok() : from_errno(name() + ": posting writes", error);
}

Status VerbsQueuePair::post_arrivals(uint32_t count) {
  std::array<abi::ReceiveWr, kBatch> requests{};
  while (count > 0) {
    const auto now = std::min<size_t>(count, kBatch);
    for (size_t i = 0; i < now; ++i) requests[i].next = i + 1 < now ? &requests[i + 1] : nullptr;
    abi::ReceiveWr* bad = nullptr;
    const int error = qp_->context->ops.post_receive(qp_.get(), requests.data(), &bad);
    if (error != 0) return from_errno(name() + ": posting arrivals", error);
    count -= static_cast<uint32_t>(now);
  }
  return Status::ok();
}

Result<size_t> VerbsQueuePair::poll(std::span<Completion> into) {
  std::array<abi::Wc, kBatch> batch;
  size_t count = 0;
  while (count < into.size()) {
    const size_t room = std::min(into.size() - count, kBatch);
    const int got = cq_->context->ops.poll_cq(cq_.get(), static_cast<int>(room), batch.data());
    if (got < 0)
      return unavailable(name() + ": polling for completions failed: the device may have been removed");
    for (int i = 0; i < got; ++i) into[count++] = to_completion(batch[static_cast<size_t>(i)]);
    if (static_cast<size_t>(got) < room) break;
  }
  return count;
}

Status VerbsQueuePair::arm() {
  const int error = cq_->context->ops.request_notify_cq(cq_.get(), 0);
  return error == 0 ? Status::ok() : from_errno(name() + ": ibv_req_notify_cq", error);
}

std::string VerbsQueuePair::describe(int status) const {
  const std::string text =
      std::string(device_.verbs.wc_status_str(status)) + " (" + std::to_string(status) + ")";
  if (status != kRetryExceeded) return text;
  return text + ": the other machine, its card or the network between them does not answer";
}

bool VerbsQueuePair::is_path_failure(int status) const {
  return status == kRetryExceeded || status == kFlushed || status == kOperationFailed;
}

void VerbsQueuePair::fail() {
  abi::QpAttr attr{};
  attr.state = abi::kQpError;
  device_.verbs.modify_qp(qp_.get(), &attr, abi::kQpState);
}

std::string VerbsQueuePair::name() const {
  return device_.name + ": queue pair " + std::to_string(qp_->number);
}

}  // namespace byteps::transport::rdma
