#include "worker/handle_table.h"

#include <utility>

namespace byteps::worker {

using protocol::Handle;

namespace {

Status unknown(Handle handle) {
  return invalid_argument("handle " + std::to_string(handle) + " is unknown or was waited for already");
}

}  // namespace

Handle HandleTable::open(uint64_t bytes, OnDone on_done) {
  auto entry = std::make_shared<Entry>();
  entry->on_done = std::move(on_done);
  entry->started_us = clock_.now_us();
  entry->bytes = bytes;
  MutexLock lock(mutex_);
  if (unfinished_++ == 0) busy_since_us_ = entry->started_us;
  last_change_us_ = entry->started_us;
  entries_.emplace(next_, std::move(entry));
  return next_++;
}

OnDone HandleTable::cancel(Handle handle) {
  MutexLock lock(mutex_);
  const auto found = entries_.find(handle);
  OnDone on_done = std::move(found->second->on_done);
  entries_.erase(found);
  --unfinished_;
  return on_done;
}

void HandleTable::finish(Handle handle, Status status) {
  const std::shared_ptr<Entry> entry = find(handle);
  BPS_CHECK(entry != nullptr) << "handle " << handle << " finished twice";
  const TimeUs now = clock_.now_us();
  add(metrics_.push_pulls, 1);
  add(metrics_.push_pull_us, static_cast<uint64_t>(now - entry->started_us));
  if (status.is_ok()) add(metrics_.push_pull_bytes, entry->bytes);
  {
    MutexLock lock(mutex_);
    if (--unfinished_ == 0) add(metrics_.busy_us, static_cast<uint64_t>(now - busy_since_us_));
    last_change_us_ = now;
    if (entry->on_done) entries_.erase(handle);
  }
  if (entry->on_done) {
    completions_->post(std::move(entry->on_done), std::move(status));
    return;
  }
  entry->status = std::move(status);
  entry->done.set();
  MutexLock lock(mutex_);
  entry->finished = true;
  if (entry->announced) put_done(handle);
}

std::optional<HandleTable::Stuck> HandleTable::stuck_callback(TimeUs before_us) {
  MutexLock lock(mutex_);
  if (unfinished_ == 0 || last_change_us_ > before_us) return std::nullopt;
  Handle oldest = 0;
  for (const auto& [handle, entry] : entries_) {
    if (entry->on_done && (oldest == 0 || handle < oldest)) oldest = handle;
  }
  return oldest == 0 ? std::nullopt : std::optional(Stuck{oldest, last_change_us_});
}

Status HandleTable::announce(Handle handle) {
  MutexLock lock(mutex_);
  const auto found = entries_.find(handle);
  if (found == entries_.end()) return unknown(handle);
  Entry& entry = *found->second;
  if (entry.announced) return Status::ok();
  entry.announced = true;
  if (entry.finished) put_done(handle);
  return Status::ok();
}

std::optional<Handle> HandleTable::next_done() {
  MutexLock lock(mutex_);
  while (done_.empty() && !closed_) more_done_.wait(mutex_);
  if (done_.empty()) return std::nullopt;
  const Handle handle = done_.front();
  done_.pop_front();
  return handle;
}

void HandleTable::close() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
    more_done_.notify_all();
  }
  completions_->close();
}

void HandleTable::put_done(Handle handle) {
  done_.push_back(handle);
  more_done_.notify_one();
}

std::shared_ptr<HandleTable::Entry> HandleTable::find(Handle handle) {
  MutexLock lock(mutex_);
  const auto found = entries_.find(handle);
  return found == entries_.end() ? nullptr : found->second;
}

Result<bool> HandleTable::poll(Handle handle) {
  const std::shared_ptr<Entry> entry = find(handle);
  if (!entry) return unknown(handle);
  return entry->done.is_set();
}

Status HandleTable::wait(Handle handle, TimeUs deadline_us, bool& interrupted) {
  const std::shared_ptr<Entry> entry = find(handle);
  if (!entry) return unknown(handle);
  switch (entry->done.wait(deadline_us)) {
    case EventFlag::Wake::kTimeout:
      return deadline_exceeded("handle " + std::to_string(handle) + " is not done yet");
    case EventFlag::Wake::kInterrupted: interrupted = true; return Status::ok();
    case EventFlag::Wake::kSet: break;
  }
  {
    MutexLock lock(mutex_);
    entries_.erase(handle);
  }
  return entry->status;
}

}  // namespace byteps::worker
