#include "transport/rdma/ring.h"

#include <string>

namespace byteps::transport::rdma {
namespace {

// Number of units to skip at the end of the ring because a record at `next` would not fit.
uint32_t skipped(uint32_t next, uint32_t units) { return next + units <= kRingUnits ? 0 : kRingUnits - next; }

}  // namespace

std::optional<uint32_t> RingWriter::allocate(uint32_t units) {
  const uint32_t skip = skipped(next_, units);
  if (outstanding() + skip + units > kRingUnits) return std::nullopt;
  const uint32_t position = (next_ + skip) % kRingUnits;
  sent_ = (sent_ + skip + units) & kCountMask;
  next_ = (position + units) % kRingUnits;
  return position;
}

Status RingWriter::on_consumed(uint32_t total) {
  const uint32_t more = (total - consumed_) & kCountMask;
  if (more > outstanding()) {
    return data_loss("RDMA: the other end has consumed " + std::to_string(more) + " units of " +
                     std::to_string(outstanding()) + " that were sent");
  }
  consumed_ = total & kCountMask;
  return Status::ok();
}

Result<RingReader::Extent> RingReader::next(uint32_t units) {
  if (units == 0 || units > kRingUnits / 2) {
    return data_loss("RDMA: a record of " + std::to_string(units) + " units: expected 1 to " +
                     std::to_string(kRingUnits / 2));
  }
  const uint32_t skip = skipped(next_, units);
  const uint32_t position = (next_ + skip) % kRingUnits;
  read_ = (read_ + skip + units) & kCountMask;
  next_ = (position + units) % kRingUnits;
  return Extent{position, units, read_};
}

}  // namespace byteps::transport::rdma
