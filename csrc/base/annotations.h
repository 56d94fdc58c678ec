// Macros for clang's thread-safety analysis (-Wthread-safety). Other compilers ignore them.
#pragma once

#include <mutex>

#if defined(__clang__)
#define BPS_ATTRIBUTE(x) __attribute__((x))
#else
#define BPS_ATTRIBUTE(x)
#endif
#define BPS_GUARDED_BY(mutex) BPS_ATTRIBUTE(guarded_by(mutex))
#define BPS_REQUIRES(mutex) BPS_ATTRIBUTE(requires_capability(mutex))
#define BPS_EXCLUDES(mutex) BPS_ATTRIBUTE(locks_excluded(mutex))

namespace byteps {

class BPS_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  void lock() BPS_ATTRIBUTE(acquire_capability()) { mutex_.lock(); }
  void unlock() BPS_ATTRIBUTE(release_capability()) { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

class BPS_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) BPS_ATTRIBUTE(acquire_capability(mutex)) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() BPS_ATTRIBUTE(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace byteps
