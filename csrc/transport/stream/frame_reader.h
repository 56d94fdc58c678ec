// Cuts the bytes of a stream into frames and calls the Receiver. Pure: no socket.
//
// Note: [where payloads are read to]
// A payload is read straight into its receive_buffer. Behind it, and where a frame begins, a window of the read-ahead
// buffer is offered, so that one system call can bring the end of one frame and the beginning of the next, or
// many small frames; a payload that comes through the window is copied. The window grows while reads fill it
// and falls back to kMinWindowBytes at every payload of kLargePayloadBytes or more. So a stream of large
// payloads has at most kMinWindowBytes of each copied, and a large payload behind small frames at most about
// twice as many bytes as those frames had, never more than kMaxWindowBytes.
#pragma once

#include <sys/uio.h>

#include <array>
#include <memory>

#include "transport/frame.h"
#include "transport/transport.h"

namespace byteps::transport {

class FrameReader {
 public:
  static constexpr size_t kMaxFrontBytes = kFramePrefixBytes + kMaxStreamHeadBytes;
  static constexpr size_t kMinWindowBytes = kMaxFrontBytes;
  static constexpr size_t kMaxWindowBytes = 64 << 10;
  static constexpr size_t kLargePayloadBytes = 8 << 10;

  // Where the next bytes of the stream go, in order.
  struct Space {
    std::array<iovec, 2> parts;
    int count;
    size_t bytes;
  };

  FrameReader(Connection& connection, const FrameLimits& limits);

  // At most `limit_bytes` of payload (and a window). Valid until the next call of advance().
  Space space(size_t limit_bytes);
  // The first `bytes` of space() have been filled. kDataLoss: the bytes are no frame; or what the receiver said.
  Status advance(size_t bytes, Receiver& receiver);
  // From inside a callback: none follows, and no receive_buffer is touched any more.
  void stop() { stopped_ = true; }
  // Of the payload under way.
  size_t missing_bytes() const { return payload_left_bytes_; }
  // The stream has ended in the middle of a frame, should it end here.
  bool in_frame() const { return payload_left_bytes_ > 0 || end_ > begin_; }

 private:
  enum class Step { kMore, kNeedsBytes };

  Status parse(Receiver& receiver);
  Result<Step> read_front(Receiver& receiver);
  Status choose_buffer(Receiver& receiver);
  void copy_payload();
  Status finish(Receiver& receiver);

  Connection& connection_;
  const FrameLimits limits_;
  bool stopped_ = false;

  std::unique_ptr<std::byte[]> buffer_;  // bytes from begin_ to end_ are not looked at yet
  size_t begin_ = 0;
  size_t end_ = 0;
  size_t window_bytes_ = kMinWindowBytes;

  // The frame under way.
  std::array<std::byte, kMaxStreamHeadBytes> head_;
  Arrival arrival_{};
  bool discard_ = false;
  MutableBytes receive_buffer_;    // empty if discarded
  size_t payload_left_bytes_ = 0;  // then the buffer is empty, outside of advance()
};

}  // namespace byteps::transport
