// Queue of frames to be written to a stream. Pure: says which bytes come next and is told how many
// were written.
//
// Heads are copied, payloads are not: see Payload in transport.h.
#pragma once

#include <sys/uio.h>

#include <array>
#include <deque>
#include <span>

#include "transport/frame.h"
#include "transport/transport.h"

namespace byteps::transport {

class SendQueue {
 public:
  using OnSent = UniqueFunction<void(const Status&)>;
  struct Gathered {
    int count = 0;  // number of ranges
    size_t bytes = 0;
  };

  bool empty() const { return frames_.empty(); }
  void push(Bytes head, Bytes payload, OnSent on_sent);
  // The next bytes of the stream: as many frames as `out` and `limit_bytes` hold.
  Gathered gather(std::span<iovec> out, size_t limit_bytes) const;
  // The first `bytes` of them have been written. Calls on_sent(ok) of all completed frames. A
  // callback may push frames or fail the rest.
  void advance(size_t bytes);
  // Empties the queue, then calls on_sent(why) of all its frames.
  void fail(const Status& why);

 private:
  struct Frame {
    std::array<std::byte, kFramePrefixBytes + kMaxStreamHeadBytes> front;  // prefix and head
    size_t front_bytes;
    Bytes payload;
    OnSent on_sent;
  };
  std::deque<Frame> frames_;
  size_t written_bytes_ = 0;  // bytes of the first frame that were written
};

}  // namespace byteps::transport
