// Owns a file descriptor and closes it on destruction.
#pragma once

#include <unistd.h>

#include <utility>

namespace byteps {

// Records every descriptor that a UniqueFd owns, so that a forked child can close its copies: a
// connection that a child held open would hide the death of this process from the peer.
void note_descriptor(int fd);
void forget_descriptor(int fd);
// Call in a child right after fork(). The objects that own the descriptors must not be used or
// destroyed in the child afterwards.
void close_descriptors_in_child();

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) { note_descriptor(fd_); }
  UniqueFd(UniqueFd&& other) noexcept : UniqueFd(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release() {
    forget_descriptor(fd_);
    return std::exchange(fd_, -1);
  }
  void reset(int fd = -1) {
    forget_descriptor(fd_);
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
    note_descriptor(fd_);
  }

 private:
  int fd_ = -1;
};

}  // namespace byteps
