// Loads libibverbs on first use; it is never unloaded.
//
// Fork: kernels since 5.12 copy pinned pages for the child, so the parent keeps sharing them with
// the NIC. On older kernels, a page that the parent writes after a fork (of a data loader, say) is
// replaced by a copy that the NIC does not know, and gradients would silently be wrong. There
// ibv_fork_init keeps registered pages out of children; a child that accesses them crashes, which
// is rare and obvious.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "transport/rdma/verbs_abi.h"

namespace byteps::transport::rdma {

// The library's functions, without the prefix "ibv_". Manual: ibv_<name>(3).
struct VerbsLibrary {
  abi::Device** (*get_device_list)(int* count);
  void (*free_device_list)(abi::Device** list);
  const char* (*get_device_name)(abi::Device* device);
  abi::Context* (*open_device)(abi::Device* device);
  int (*close_device)(abi::Context* context);
  int (*query_device)(abi::Context* context, abi::DeviceAttr* into);
  int (*query_port)(abi::Context* context, uint8_t port, abi::PortAttr* into);
  int (*get_async_event)(abi::Context* context, abi::AsyncEvent* into);
  void (*ack_async_event)(abi::AsyncEvent* event);

  abi::Pd* (*alloc_pd)(abi::Context* context);
  int (*dealloc_pd)(abi::Pd* pd);
  abi::Mr* (*reg_mr)(abi::Pd* pd, void* address, size_t length, int access);
  abi::Mr* (*reg_mr_iova2)(abi::Pd* pd, void* address, size_t length, uint64_t iova,
                           unsigned access);  // may be null
  abi::Mr* (*reg_dmabuf_mr)(abi::Pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                            int access);  // may be null
  int (*dereg_mr)(abi::Mr* mr);

  abi::CompletionChannel* (*create_comp_channel)(abi::Context* context);
  int (*destroy_comp_channel)(abi::CompletionChannel* channel);
  abi::Cq* (*create_cq)(abi::Context* context, int cqe, void* cq_context, abi::CompletionChannel* channel,
                        int vector);
  int (*destroy_cq)(abi::Cq* cq);
  int (*get_cq_event)(abi::CompletionChannel* channel, abi::Cq** cq, void** cq_context);
  void (*ack_cq_events)(abi::Cq* cq, unsigned count);
  abi::QueuePair* (*create_qp)(abi::Pd* pd, abi::QpInitAttr* attr);
  int (*modify_qp)(abi::QueuePair* qp, abi::QpAttr* attr, int mask);
  int (*destroy_qp)(abi::QueuePair* qp);
  const char* (*wc_status_str)(int32_t status);
  int (*fork_init)();
};

// Thread-safe; valid for ever. kUnimplemented: not installed or too old, with the remedy.
Result<const VerbsLibrary*> verbs_library();

// Pure. Whether kernels of this release ("5.10.0-28-amd64") may replace the parent's pinned pages at a
// fork.
bool fork_moves_pinned_pages(const char* kernel_release);

}  // namespace byteps::transport::rdma
