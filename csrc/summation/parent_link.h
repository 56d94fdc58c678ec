// The interface that sends the sums of a machine to the roots. node/parent_link.h implements it
// with links of the worker. Thread-safe.
#pragma once

#include "base/bytes.h"
#include "base/status.h"
#include "base/unique_function.h"
#include "protocol/message.h"
#include "transport/event_loop.h"

namespace byteps::summation {

class ParentLink {
 public:
  virtual ~ParentLink() = default;

  // Whether this service may contribute to the service of node `root_node`.
  virtual bool reaches(uint32_t root_node) const = 0;
  // Contributes `partial`, the sum of this machine, to the root. `partial` is empty in a broadcast
  // whose root rank is on another machine. The result is written to `result` (head.bytes bytes),
  // which may be the same memory. Both must stay valid until `done`, which is called on `loop`, the
  // caller's loop, with the plan of the answer or the error. Precondition: reaches(head.root_node).
  virtual void push_pull(transport::EventLoop& loop, const protocol::DataHead& head, Bytes partial,
                         MutableBytes result, UniqueFunction<void(const Result<protocol::Plan>&)> done) = 0;
  // Tells the root that the round has failed on this machine, which will not contribute to it.
  virtual void fail_round(const protocol::DataHead& head, const Status& why) = 0;
};

}  // namespace byteps::summation
