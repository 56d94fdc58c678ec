// Queue pairs and completion channels of libibverbs. Contract: nic.h.
#pragma once

#include <memory>

#include "transport/rdma/nic.h"
#include "transport/rdma/verbs_device.h"

namespace byteps::transport::rdma {

class VerbsChannel final : public CompletionChannel {
 public:
  static Result<std::unique_ptr<CompletionChannel>> make(const VerbsDevice& device);
  int fd() const override { return channel_->fd; }
  void* next() override;
  abi::CompletionChannel* get() const { return channel_.get(); }

 private:
  VerbsChannel(const VerbsDevice& device, Owned<abi::CompletionChannel> channel)
      : device_(device), channel_(std::move(channel)) {}

  const VerbsDevice& device_;
  const Owned<abi::CompletionChannel> channel_;
};

class VerbsQueuePair final : public QueuePair {
 public:
  // kInvalidArgument: more than the device supports. `device` and `info` must outlive it.
  static Result<std::unique_ptr<QueuePair>> make(const VerbsDevice& device, const NicInfo& info,
                                                 const VerbsOptions& verbs_options, VerbsChannel& channel,
                                                 void* tag, const QueuePairOptions& options);

  const QueuePairAddress& address() const override { return address_; }
  uint32_t max_inline_bytes() const override { return max_inline_bytes_; }
  Status connect(const QueuePairAddress& other) override;
  Status post(std::span<const Write> writes) override;
  Status post_arrivals(uint32_t count) override;
  Result<size_t> poll(std::span<Completion> into) override;
  Status arm() override;
  std::string describe(int status) const override;
  bool is_path_failure(int status) const override;
  void fail() override;

 private:
  VerbsQueuePair(const VerbsDevice& device, const NicInfo& info, const VerbsOptions& options,
                 Owned<abi::Cq> cq)
      : device_(device), info_(info), options_(options), cq_(std::move(cq)) {}

  Status create(const QueuePairOptions& options);
  Status prepare();
  Status make_ready_to_receive(const QueuePairAddress& other, int32_t path_mtu);
  Status make_ready_to_send();
  Status modify(abi::QpAttr attr, int mask, const char* to);
  Status check(const Write& write) const;
  Status post_some(std::span<const Write> writes);
  // Such as "mlx5_0: queue pair 17".
  std::string name() const;

  const VerbsDevice& device_;
  const NicInfo& info_;
  const VerbsOptions options_;
  // Used by this queue pair only and large enough for all its completions, so it never overflows.
  const Owned<abi::Cq> cq_;
  Owned<abi::QueuePair> qp_{nullptr, nullptr};
  QueuePairAddress address_;
  uint32_t max_inline_bytes_ = 0;
};

// The interface's code for a packet's payload size; only 256, 512, ... 4096 have one. Pure.
std::optional<int32_t> to_mtu_code(int bytes);
int mtu_bytes_of(int32_t code);  // 0: invalid code

}  // namespace byteps::transport::rdma
