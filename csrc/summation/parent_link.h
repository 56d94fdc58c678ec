// How a machine's partial sums reach the roots. node/ makes it out of worker links; summation/ knows only this.
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

  // Whether `top` is a node whose service this one may contribute to.
  virtual bool reaches(uint32_t root_node) const = 0;
  // Contributes `partial` for the whole machine to the root (head.root_node, which is reached); empty: a broadcast whose root is elsewhere. The
  // result lands in `result`, [head.bytes], which may be the same memory; both are used until `done`, which is called
  // on `loop`, the caller's, with the answer's plan or why it failed.
  virtual void push_pull(transport::EventLoop& loop, const protocol::DataHead& head, Bytes partial,
                         MutableBytes result, UniqueFunction<void(const Result<protocol::Plan>&)> done) = 0;
  // The round has failed on this machine and will not be contributed to.
  virtual void fail_round(const protocol::DataHead& head, const Status& why) = 0;
};

}  // namespace byteps::summation
