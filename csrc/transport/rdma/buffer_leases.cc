#include "transport/rdma/buffer_leases.h"

namespace byteps::transport::rdma {
namespace {

// Spreads keys, whose lower bits are the numbers of partitions.
uint64_t hash_of(uint64_t reuse_key) { return (reuse_key * 0x9E3779B97F4A7C15ull) ^ (reuse_key >> 20); }

}  // namespace

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
  if (reuse_key != 0) {
    reusable_[reuse_key] = lease;
    kept_bytes_ += bytes;
    note_busy(bytes);
    if (dropped_.take(hash_of(reuse_key))) limit_bytes_ = std::max(limit_bytes_, kept_bytes_);
    drop_idle();
  }
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
    drop(lease);  // and not too large for the limit: it is used again
    return kNoLease;
  }
  idle_.erase(receive_buffer.idle);
  receive_buffer.busy = true;
  note_busy(receive_buffer.capacity_bytes);
  return lease;
}

// What was needed at one time may be needed again.
void BufferLeases::note_busy(uint64_t bytes) {
  busy_bytes_ += bytes;
  limit_bytes_ = std::max(limit_bytes_, busy_bytes_);
}

void BufferLeases::drop(LeaseId idle_buffer) {
  dropped_.add(hash_of(remote_buffers_.at(idle_buffer).reuse_key));
  release(idle_buffer);
}

void BufferLeases::drop_idle() {
  while (kept_bytes_ > limit_bytes_ && !idle_.empty()) drop(idle_.front());
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
  if (receive_buffer->second.reuse_key != 0) {
    reusable_.erase(receive_buffer->second.reuse_key);
    kept_bytes_ -= receive_buffer->second.capacity_bytes;
    if (receive_buffer->second.busy) {
      busy_bytes_ -= receive_buffer->second.capacity_bytes;
    } else {
      idle_.erase(receive_buffer->second.idle);
    }
  }
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
  if (receive_buffer->second.reuse_key == 0) {
    release(lease);
    return Status::ok();
  }
  receive_buffer->second.busy = false;
  busy_bytes_ -= receive_buffer->second.capacity_bytes;
  receive_buffer->second.idle = idle_.insert(idle_.end(), lease);
  drop_idle();
  return Status::ok();
}

void BufferLeases::clear() {
  remote_buffers_.clear();
  reusable_.clear();
  idle_.clear();
  kept_bytes_ = busy_bytes_ = 0;
  granted_.clear();
}

}  // namespace byteps::transport::rdma
