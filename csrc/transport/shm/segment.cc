#include "transport/shm/segment.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cerrno>
#include <string>

namespace byteps::transport {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

#ifdef MFD_NOEXEC_SEAL
constexpr unsigned kNoExec = MFD_NOEXEC_SEAL;
#else
constexpr unsigned kNoExec = 0x8;  // since Linux 6.3; missing in older headers
#endif

Status not_allowed(const char* call) {
  return unimplemented(from_errno(std::string("shared memory: ") + call, errno).message());
}

// Kernels since 6.3 may require a flag about execution; older kernels do not know it.
UniqueFd create_memfd() {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  const int fd = memfd_create("byteps", kFlags | kNoExec);
  return UniqueFd(fd < 0 && errno == EINVAL ? memfd_create("byteps", kFlags) : fd);
}

// Huge pages of hugetlbfs can be sealed, too, but raise SIGBUS when the pool is empty.
bool is_plain_memory(int fd) {
  struct statfs where{};
  return fstatfs(fd, &where) == 0 && where.f_type == TMPFS_MAGIC;
}

}  // namespace

Result<UniqueFd> create_segment(size_t bytes) {
  UniqueFd fd = create_memfd();
  if (!fd.valid()) return not_allowed("memfd_create");
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return not_allowed("ftruncate");
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return not_allowed("sealing a memfd");
  return fd;
}

Result<Segment> Segment::map(int fd) {
  const int seals = fcntl(fd, F_GET_SEALS);
  struct stat about{};
  if (seals < 0 || (seals & kSeals) != kSeals || !is_plain_memory(fd) || fstat(fd, &about) != 0) {
    return data_loss("shared memory: the descriptor from the other side is not memory of a sealed size");
  }
  const auto size_bytes = static_cast<uint64_t>(about.st_size);
  if (size_bytes == 0 || size_bytes > kMaxSegmentBytes) {
    return data_loss("shared memory: " + std::to_string(size_bytes) + " bytes, expected 1 to " +
                     std::to_string(kMaxSegmentBytes));
  }
  void* memory = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return from_errno("shared memory: mmap", errno);
  // Takes effect if the administrator allows huge pages for shared memory.
  madvise(memory, size_bytes, MADV_HUGEPAGE);
  madvise(memory, size_bytes, MADV_DONTFORK);
  return Segment({static_cast<std::byte*>(memory), size_bytes});
}

Segment::~Segment() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
}

}  // namespace byteps::transport
