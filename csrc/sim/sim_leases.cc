#include "sim/sim_leases.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/check.h"
#include "base/copy.h"

namespace byteps::sim {

using transport::LeaseId;
using transport::Payload;

namespace {

size_t room_for(const Payload& payload) { return std::max(payload.data.size(), payload.reply_space.size()); }

// Offset of `part` in `whole`, or nullopt if it does not begin there.
std::optional<size_t> offset_in(Bytes whole, Bytes part) {
  const std::less<> before;
  if (part.empty() || before(part.data(), whole.data())) return std::nullopt;
  if (!before(part.data(), whole.data() + whole.size())) return std::nullopt;
  return static_cast<size_t>(part.data() - whole.data());
}

}  // namespace

SimLeases::SimLeases(SimNetwork& network, size_t arena_bytes, std::string name)
    : network_(network),
      arena_bytes_(arena_bytes / transport::Slots::kAlignBytes * transport::Slots::kAlignBytes),
      name_(std::move(name)),
      slots_(arena_bytes_) {}

bool SimLeases::may_lend(const Payload& payload) const {
  const size_t bytes = room_for(payload);
  return bytes > 0 && bytes <= arena_bytes_;
}

LeaseId SimLeases::lend(const Payload& payload) {
  const size_t bytes = room_for(payload);
  const std::optional<size_t> offset = slots_.take(bytes);
  if (!offset) return transport::kNoLease;
  LentBlock block(bytes);
  copy_bytes(block.bytes(), payload.data);
  lent_.emplace(++last_lease_, Room{*offset, bytes});
  held_.emplace(last_lease_, Held{payload.data.size(), payload.reply_space.size(), std::move(block)});
  return last_lease_;
}

void SimLeases::take_back(LeaseId lease) {
  const auto found = lent_.find(lease);
  BPS_CHECK(found != lent_.end()) << name_of(lease) << " is not lent";
  slots_.put_back(found->second.offset, found->second.bytes);
  lent_.erase(found);
}

SimLeases::Leased SimLeases::leased(LeaseId lease) const {
  const Held& held = held_.at(lease);
  if (!held.block) return {};
  const MutableBytes memory = held.block->bytes();
  return {memory.first(held.data_bytes), memory.first(held.reply_bytes)};
}

SimLeases::Returned SimLeases::give_back(LeaseId lease, Bytes answer) {
  const auto found = held_.find(lease);
  if (found == held_.end()) {
    network_.report(name_of(lease) + " was returned, but is not held");
    return {};
  }
  Held held = std::move(found->second);
  held_.erase(found);
  Returned returned{lease, std::nullopt};
  if (!held.block) return returned;
  if (auto copy = copy_of_answer(name_of(lease), held, answer)) returned.answer.emplace(std::move(*copy));
  retire(lease, std::move(*held.block));
  return returned;
}

std::optional<LentBlock> SimLeases::copy_of_answer(const std::string& name, const Held& held, Bytes answer) {
  const Bytes memory = held.block->bytes();
  const std::optional<size_t> offset = offset_in(memory, answer);
  if (!offset) return std::nullopt;
  if (*offset != 0 || answer.size() > held.reply_bytes) {
    network_.report(name + ": its answer of " + std::to_string(answer.size()) + " bytes at byte " +
                    std::to_string(*offset) + " is not in its reply space of " +
                    std::to_string(held.reply_bytes) + " bytes");
  }
  const Bytes readable = memory.subspan(*offset);
  LentBlock copy(std::min(answer.size(), readable.size()));
  copy_bytes(copy.bytes(), readable.first(copy.bytes().size()));
  return copy;
}

void SimLeases::revoke() {
  for (auto& [lease, held] : held_) {
    if (!held.block) continue;
    retire(lease, std::move(*held.block));
    held.block.reset();
  }
}

void SimLeases::retire(LeaseId lease, LentBlock block) {
  network_.quarantine(name_of(lease), std::move(block));
}

std::string SimLeases::name_of(LeaseId lease) const {
  return "lease " + std::to_string(lease) + " of " + name_;
}

}  // namespace byteps::sim
