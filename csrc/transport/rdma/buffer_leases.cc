#include "transport/rdma/buffer_leases.h"

namespace byteps::transport::rdma {

LeaseId BufferLeases::next() {
  do {
    ++last_;
  } while (last_ == kNoLease || remote_buffers_.contains(last_) || granted_.contains(last_));
  return last_;
}

LeaseId BufferLeases::reserve(uint64_t reuse_key, uint64_t bytes) {
  if (const LeaseId known = find_free(reuse_key, bytes); known != kNoLease) return known;
  const LeaseId lease = next();
  remote_buffers_[lease] = {
      .capacity_bytes = bytes, .reuse_key = reuse_key, .busy = true, .answered = false, .target = {}};
  if (reuse_key != 0) reusable_[reuse_key] = lease;
  controls_.push_back({.type = RecordType::kReserve, .lease = lease, .payload_bytes = bytes});
  return lease;
}

LeaseId BufferLeases::find_free(uint64_t& reuse_key, uint64_t bytes) {
  const auto known = reusable_.find(reuse_key);
  if (known == reusable_.end()) return kNoLease;
  const LeaseId lease = known->second;
  RemoteBuffer& receive_buffer = remote_buffers_.at(lease);
  if (receive_buffer.busy) {
    reuse_key = 0;  // the caller breaks the rule of reuse_key; this frame gets a buffer of its own
    return kNoLease;
  }
  if (receive_buffer.capacity_bytes < bytes) {
    release(lease);
    return kNoLease;
  }
  receive_buffer.busy = true;
  return lease;
}

Status BufferLeases::on_reserved(const Record& reserved) {
  const auto receive_buffer = remote_buffers_.find(reserved.lease);
  if (receive_buffer == remote_buffers_.end() || receive_buffer->second.answered) {
    return data_loss(peer_ + ": a receive buffer for lease " + std::to_string(reserved.lease) +
                     ", which was not requested");
  }
  receive_buffer->second.answered = true;
  receive_buffer->second.target = {reserved.address, reserved.key, receive_buffer->second.capacity_bytes};
  return Status::ok();
}

void BufferLeases::release(LeaseId lease) {
  const auto receive_buffer = remote_buffers_.find(lease);
  if (receive_buffer->second.reuse_key != 0) reusable_.erase(receive_buffer->second.reuse_key);
  if (receive_buffer->second.target.address != 0) {
    controls_.push_back({.type = RecordType::kRelease, .lease = lease});
  }
  remote_buffers_.erase(receive_buffer);
}

Result<MutableBytes> BufferLeases::reply_space(LeaseId lease, uint64_t bytes) const {
  const auto found = granted_.find(lease);
  if (found == granted_.end() || bytes > found->second.reply_space.size() || !found->second.registration) {
    return data_loss(peer_ + ": an answer of " + std::to_string(bytes) + " bytes in lease " +
                     std::to_string(lease) + ", which has less or no reply space");
  }
  return found->second.reply_space.first(bytes);
}

Status BufferLeases::take_back(LeaseId lease) {
  if (granted_.erase(lease) == 0) {
    return data_loss(peer_ + ": lease " + std::to_string(lease) + " was returned, but is not in use");
  }
  const auto receive_buffer = remote_buffers_.find(lease);
  if (receive_buffer == remote_buffers_.end()) return Status::ok();
  receive_buffer->second.busy = false;
  if (receive_buffer->second.reuse_key == 0) release(lease);
  return Status::ok();
}

void BufferLeases::clear() {
  remote_buffers_.clear();
  reusable_.clear();
  granted_.clear();
}

}  // namespace byteps::transport::rdma
