// Splits the bytes of a stream into frames and calls the Receiver. Pure: no socket.
//
// Note: [where payloads are read to] A payload is read directly into its receive buffer. In
// addition a window of the read-ahead buffer is offered, after the payload and at the start of a
// frame, so that one system call can read the end of a frame and the start of the next, or many
// small frames. Payload bytes read into the window are copied. The window grows while reads fill
// it, and falls back to kMinWindowBytes at every payload of kLargePayloadBytes or more. So in a
// stream of large payloads at most kMinWindowBytes of each are copied; of a large payload after
// small frames about twice the size of those frames, but never more than kMaxWindowBytes.
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

  // Where the next bytes of the stream have to be read to, in order.
  struct Space {
    std::array<iovec, 2> parts;
    int count;
    size_t bytes;
  };

  FrameReader(Connection& connection, const FrameLimits& limits);

  // Space for at most `limit_bytes` of payload, and a window. Valid until the next call of
  // advance().
  Space space(size_t limit_bytes);
  // The first `bytes` of space() have been filled. Returns kDataLoss if they are not a frame, or
  // the receiver's error.
  Status advance(size_t bytes, Receiver& receiver);
  // Call from inside a callback. No further callback is called, and no receive buffer is written
  // to.
  void stop() { stopped_ = true; }
  // Missing bytes of the current payload.
  size_t missing_bytes() const { return payload_left_bytes_; }
  // Whether an end of the stream here would be in the middle of a frame.
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

  std::unique_ptr<std::byte[]> buffer_;  // bytes from begin_ to end_ are not parsed yet
  size_t begin_ = 0;
  size_t end_ = 0;
  size_t window_bytes_ = kMinWindowBytes;

  // The current frame.
  std::array<std::byte, kMaxStreamHeadBytes> head_;
  Arrival arrival_{};
  bool discard_ = false;
  MutableBytes receive_buffer_;    // empty if discarded
  size_t payload_left_bytes_ = 0;  // while > 0, the buffer is empty outside of advance()
};

}  // namespace byteps::transport
