#include "transport/rdma/verbs_library.h"

#include <dlfcn.h>
#include <sys/utsname.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "base/log.h"

namespace byteps::transport::rdma {
namespace {

constexpr char kFile[] = "libibverbs.so.1";

// Finds the library's functions. Returns the names of those that are missing, but must exist.
std::string find_functions(void* handle, VerbsLibrary* verbs) {
  std::string missing;
  const auto optional = [&]<typename Function>(const char* name, Function** into) {
    *into = reinterpret_cast<Function*>(::dlsym(handle, name));
  };
  const auto required = [&](const char* name, auto** into) {
    optional(name, into);
    if (!*into) missing += std::string(missing.empty() ? "" : ", ") + name;
  };
  required("ibv_get_device_list", &verbs->get_device_list);
  required("ibv_free_device_list", &verbs->free_device_list);
  required("ibv_get_device_name", &verbs->get_device_name);
  required("ibv_open_device", &verbs->open_device);
  required("ibv_close_device", &verbs->close_device);
  required("ibv_query_device", &verbs->query_device);
  required("ibv_query_port", &verbs->query_port);
  required("ibv_get_async_event", &verbs->get_async_event);
  required("ibv_ack_async_event", &verbs->ack_async_event);
  required("ibv_fork_init", &verbs->fork_init);
  required("ibv_alloc_pd", &verbs->alloc_pd);
  required("ibv_dealloc_pd", &verbs->dealloc_pd);
  required("ibv_reg_mr", &verbs->reg_mr);
  optional("ibv_reg_mr_iova2", &verbs->reg_mr_iova2);
  optional("ibv_reg_dmabuf_mr", &verbs->reg_dmabuf_mr);
  required("ibv_dereg_mr", &verbs->dereg_mr);
  required("ibv_create_comp_channel", &verbs->create_comp_channel);
  required("ibv_destroy_comp_channel", &verbs->destroy_comp_channel);
  required("ibv_create_cq", &verbs->create_cq);
  required("ibv_destroy_cq", &verbs->destroy_cq);
  required("ibv_get_cq_event", &verbs->get_cq_event);
  required("ibv_ack_cq_events", &verbs->ack_cq_events);
  required("ibv_create_qp", &verbs->create_qp);
  required("ibv_modify_qp", &verbs->modify_qp);
  required("ibv_destroy_qp", &verbs->destroy_qp);
  required("ibv_wc_status_str", &verbs->wc_status_str);
  return missing;
}

// Must be called before the process's first registration. Newer libraries ask the kernel and do
// nothing if it copies pinned pages.
void make_forks_safe(const VerbsLibrary& verbs) {
  utsname kernel{};
  if (::uname(&kernel) != 0 || !fork_moves_pinned_pages(kernel.release)) return;
  if (const int error = verbs.fork_init(); error != 0) {
    BPS_LOG(kWarning)
        << "rdma: ibv_fork_init: " << std::strerror(error) << " (errno " << error
        << "): memory was registered before byteps was loaded: do not fork while a push_pull is in flight";
  }
}

Result<const VerbsLibrary*> load() {
  void* handle = ::dlopen(kFile, RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    return unimplemented("RDMA: " + std::string(::dlerror()) +
                         ": to install it: apt-get install libibverbs1 ibverbs-providers (Debian, Ubuntu), "
                         "dnf install libibverbs (Fedora, RHEL)");
  }
  static VerbsLibrary verbs{};
  if (const std::string missing = find_functions(handle, &verbs); !missing.empty()) {
    return unimplemented(
        "RDMA: " + std::string(kFile) + " has no " + missing +
        ": expected the one of rdma-core: update libibverbs1 (Debian, Ubuntu) or libibverbs");
  }
  make_forks_safe(verbs);
  return &verbs;
}

}  // namespace

bool fork_moves_pinned_pages(const char* kernel_release) {
  int major = 0, minor = 0;
  if (std::sscanf(kernel_release, "%d.%d", &major, &minor) != 2) return true;
  return major < 5 || (major == 5 && minor < 12);
}

Result<const VerbsLibrary*> verbs_library() {
  static const Result<const VerbsLibrary*> loaded = load();
  return loaded;
}

}  // namespace byteps::transport::rdma
