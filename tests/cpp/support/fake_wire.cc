#include "support/fake_wire.h"

#include <cstring>
#include <functional>
#include <string_view>

namespace byteps::transport::rdma::fake {
namespace {

constexpr uint64_t kPageBytes = 4096;

size_t hash_of(const std::byte* data, size_t bytes) {
  return std::hash<std::string_view>{}({reinterpret_cast<const char*>(data), bytes});
}

uint64_t address_of(Bytes data) { return reinterpret_cast<uintptr_t>(data.data()); }

}  // namespace

std::pair<const Card*, const Card*> between(const Card& one, const Card& other) {
  return std::minmax<const Card*>(&one, &other, std::less<>{});
}

CompletionQueue::~CompletionQueue() {
  channel_.remove_if([this](const ChannelEvent& event) { return event.queue == this; });
}

void CompletionQueue::push(const Done& done) {
  MutexLock lock(mutex_);
  done_.push_back(done);
  if (std::exchange(is_armed_, false)) channel_.push({this, tag_});
}

std::optional<Done> CompletionQueue::pop() {
  MutexLock lock(mutex_);
  if (done_.empty()) return std::nullopt;
  const Done done = done_.front();
  done_.pop_front();
  return done;
}

void CompletionQueue::arm() {
  MutexLock lock(mutex_);
  is_armed_ = true;
}

std::byte* Region::find(uint64_t at, uint64_t bytes) const {
  if (at < address || bytes > memory.size() || at - address > memory.size() - bytes) return nullptr;
  return memory.data() + (at - address);
}

uint64_t Region::pages() const {
  if (is_dmabuf) return 0;
  return (address + memory.size() - 1) / kPageBytes - address / kPageBytes + 1;
}

void Wire::remove(Card& card) {
  BPS_CHECK(card.statistics.live_regions == 0) << card.info.to_string() << " has memory registered still";
  BPS_CHECK(card.statistics.live_queue_pairs == 0) << card.info.to_string() << " has queue pairs still";
  cards_.erase(&card);
  std::erase_if(cuts_, [&](const auto& cut) { return cut.first == &card || cut.second == &card; });
}

void Wire::be_gone(Card& card) {
  card.is_gone = true;
  card.events.push(NicEvent::kGone);
  for (auto& [number, end] : ends_) {
    if (end->card == &card) fail(*end);
  }
}

Result<MemoryKey> Wire::add_region(Region region) {
  Card& card = *region.card;
  FakeNicStatistics& counts = card.statistics;
  if (card.is_gone) return unavailable(card.info.to_string() + " is gone");
  if (!card.registration_failures.empty()) {
    Status why = std::move(card.registration_failures.front());
    card.registration_failures.pop_front();
    return why;
  }
  const uint64_t pages = region.pages();
  if (!card.info.on_demand_paging && (counts.live_pages + pages) * kPageBytes > card.options.memlock_bytes) {
    return unavailable("registering " + std::to_string(region.memory.size()) + " bytes at " +
                       card.info.to_string() + ": more than the limit of locked memory, " +
                       std::to_string(card.options.memlock_bytes) + " bytes: raise it (ulimit -l)");
  }
  region.key = {next_key_, next_key_ + 1};
  next_key_ += 2;
  ++counts.registrations;
  counts.registered_pages += pages;
  ++counts.live_regions;
  counts.live_pages += pages;
  counts.live_bytes += region.memory.size();
  regions_.emplace(region.key.local, region);
  return region.key;
}

void Wire::remove_region(const MemoryKey& key) {
  const Region& region = regions_.at(key.local);
  --region.card->statistics.live_regions;
  region.card->statistics.live_pages -= region.pages();
  region.card->statistics.live_bytes -= region.memory.size();
  freed_keys_.insert({key.local, key.remote});
  regions_.erase(key.local);
}

Result<End*> Wire::add_end(Card& card, CompletionQueue& completions) {
  if (card.is_gone) return unavailable(card.info.to_string() + " is gone");
  if (!card.queue_pair_failures.empty()) {
    Status why = std::move(card.queue_pair_failures.front());
    card.queue_pair_failures.pop_front();
    return why;
  }
  auto end = std::make_unique<End>();
  const uint32_t number = next_number_++;
  end->card = &card;
  end->completions = &completions;
  end->address = {.number = number,
                  .packet_sequence = (number * 0x9e3779) & 0xffffff,
                  .lid = card.info.lid,
                  .gid = card.info.gid,
                  .mtu_bytes = card.info.mtu_bytes};
  ++card.statistics.live_queue_pairs;
  return (ends_[number] = std::move(end)).get();
}

void Wire::remove_end(const End& end) {
  --end.card->statistics.live_queue_pairs;
  ends_.erase(end.address.number);
}

void Wire::post(End& end, std::vector<PostedWrite> writes) {
  for (PostedWrite& posted : writes) {
    const std::byte* source = find_source(end, posted);
    if (source != nullptr && !posted.is_inlined) posted.hash = hash_of(source, posted.write.data.size());
    end.writes.push_back(std::move(posted));
  }
  if (end.has_failed) flush(end);
}

void Wire::post_arrivals(End& end, uint32_t count) {
  end.arrivals += count;
  if (end.has_failed) flush(end);
}

void Wire::fail(End& end) {
  end.has_failed = true;
  flush(end);
}

TimeUs Wire::step(TimeUs now) {
  TimeUs next = kNever;
  for (auto& [number, end] : ends_) next = std::min(next, advance(*end, now));
  return next;
}

// Returns `now` if something was done, else the time of the next attempt.
TimeUs Wire::advance(End& end, TimeUs now) {
  if (end.writes.empty()) return kNever;
  if (end.front_since_us == kNever) end.front_since_us = now;
  if (const TimeUs due = later(end.front_since_us, options.delay_us); due > now) return due;
  const PostedWrite& posted = end.writes.front();
  if (const int status = check_source(end, posted); status != 0) {
    fail_front(end, status);
    return now;
  }
  End* to = nullptr;
  if (const Obstacle obstacle = find_other(end, to); obstacle != Obstacle::kNone) {
    return hinder(end, obstacle, now);
  }
  std::byte* target = find_target(*to, posted.write);
  if (target == nullptr && !posted.write.data.empty()) {
    fail_front(end, kRemoteAccessError);
    fail(*to);
    return now;
  }
  if (posted.write.immediate && to->arrivals == 0) return hinder(end, Obstacle::kReceiverNotReady, now);
  apply(end, *to, target);
  return now;
}

TimeUs Wire::hinder(End& end, Obstacle obstacle, TimeUs now) {
  const bool is_not_ready = obstacle == Obstacle::kReceiverNotReady;
  if (std::exchange(end.obstacle, obstacle) != obstacle) {
    end.hindered_since_us = now;
    statistics.receiver_not_ready += is_not_ready;
  }
  const TimeUs retry_us = is_not_ready                    ? options.receiver_not_ready_retry_us
                          : obstacle == Obstacle::kAbsent ? options.absent_retry_us
                                                          : options.unreachable_retry_us;
  const TimeUs limit_us = later(end.hindered_since_us, retry_us);
  if (limit_us > now) return limit_us;
  fail_front(end, is_not_ready ? kReceiverNotReadyExceeded : kRetryExceeded);
  return now;
}

// Both ends must know each other, as packets with a wrong queue pair number or sequence are dropped
// silently.
Obstacle Wire::find_other(const End& from, End*& to) const {
  const auto card = std::find_if(cards_.begin(), cards_.end(), [&](const Card* each) {
    return each->info.is_ethernet ? each->info.gid == from.other->gid : each->info.lid == from.other->lid;
  });
  if (card == cards_.end() || (*card)->is_gone) return Obstacle::kAbsent;
  const bool is_cut = cuts_.contains(between(*from.card, **card));
  if (is_cut || !from.card->is_up || !(*card)->is_up) return Obstacle::kUnreachable;
  const auto found = ends_.find(from.other->number);
  if (found == ends_.end() || found->second->card != *card || found->second->has_failed)
    return Obstacle::kAbsent;
  to = found->second.get();
  if (!to->other) return Obstacle::kUnreachable;
  const bool is_known = to->other->number == from.address.number && to->other->gid == from.address.gid &&
                        to->other->packet_sequence == from.address.packet_sequence &&
                        from.other->packet_sequence == to->address.packet_sequence;
  return is_known ? Obstacle::kNone : Obstacle::kAbsent;
}

const Region* Wire::find_region(const Card& card, uint32_t MemoryKey::* which, uint32_t key) const {
  for (const auto& [local, region] : regions_) {
    if (region.key.*which == key && region.card == &card) return &region;
  }
  return nullptr;
}

// Returns null if the sender's NIC may not read the data.
const std::byte* Wire::find_source(const End& end, const PostedWrite& posted) const {
  if (posted.is_inlined) return posted.inlined.data();
  const Region* region = find_region(*end.card, &MemoryKey::local, posted.write.local_key);
  return region ? region->find(address_of(posted.write.data), posted.write.data.size()) : nullptr;
}

int Wire::check_source(const End& end, const PostedWrite& posted) {
  const Write& write = posted.write;
  if (write.data.empty()) return 0;
  if (write.data.size() > end.card->info.max_message_bytes) return kLocalLengthError;
  if (find_source(end, posted) != nullptr) return 0;
  ++statistics.local_protection_errors;
  statistics.writes_from_freed_regions += freed_keys_.contains(write.local_key);
  return kLocalProtectionError;
}

// Returns null if the peer may not write there. NICs ignore the key of an empty write.
std::byte* Wire::find_target(const End& to, const Write& write) {
  if (write.data.empty()) return nullptr;
  const Region* region = find_region(*to.card, &MemoryKey::remote, write.to_key);
  std::byte* target = nullptr;
  if (region && region->access == Access::kRemoteWrite)
    target = region->find(write.to_address, write.data.size());
  statistics.remote_access_errors += target == nullptr;
  statistics.writes_into_freed_regions += freed_keys_.contains(write.to_key);
  return target;
}

void Wire::apply(End& from, End& to, std::byte* target) {
  const PostedWrite& posted = from.writes.front();
  const size_t bytes = posted.write.data.size();
  if (bytes > 0) {
    const std::byte* source = find_source(from, posted);
    statistics.changed_while_posted += posted.hash && *posted.hash != hash_of(source, bytes);
    std::memmove(target, source, bytes);
  }
  ++statistics.writes;
  statistics.bytes += bytes;
  if (posted.write.immediate) {
    ++statistics.immediates;
    --to.arrivals;
    to.completions->push({{.kind = Completion::Kind::kArrived, .immediate = *posted.write.immediate}, 0});
  }
  complete_front(from, 0);
}

void Wire::complete_front(End& end, int status) {
  const Write& write = end.writes.front().write;
  const Done done{{.kind = Completion::Kind::kWritten, .status = status, .id = write.id}, ++end.writes_left};
  const bool is_told = write.completes || status != 0;
  end.writes.pop_front();
  end.front_since_us = kNever;
  end.obstacle = Obstacle::kNone;
  if (is_told) end.completions->push(done);
}

void Wire::fail_front(End& end, int status) {
  complete_front(end, status);
  fail(end);
}

void Wire::flush(End& end) {
  while (!end.writes.empty()) complete_front(end, kFlushed);
  // The kind of a failed completion is not valid; it is wrong on purpose.
  for (; end.arrivals > 0; --end.arrivals) {
    end.completions->push({{.kind = Completion::Kind::kWritten, .status = kFlushed, .id = 0}, 0});
  }
}

}  // namespace byteps::transport::rdma::fake
