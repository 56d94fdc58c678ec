#include "sim/kept_values.h"

#include <utility>

#include "base/numbers.h"
#include "protocol/message.h"
#include "sim/random.h"

namespace byteps::sim {
namespace {

constexpr unsigned kDigitBits = 6;  // enough for the contributions of one rank
constexpr unsigned kSeedBits = 12;  // above the digits of eight ranks

uint64_t seed_of(size_t tensor, size_t element) {
  return mix((uint64_t{tensor} << 32) ^ element) % (1u << kSeedBits) << (8 * kDigitBits);
}

uint64_t load(Bytes bytes, size_t element) {
  return load_number<uint64_t>(&bytes[element * sizeof(uint64_t)]);
}

uint64_t digit(uint64_t counts, size_t rank) {
  return counts >> (rank * kDigitBits) & ((1u << kDigitBits) - 1);
}

std::string count_text(size_t rank, uint64_t count, const std::string& expected) {
  return std::to_string(count) + " contributions of rank " + std::to_string(rank) + " are in it: expected " +
         expected;
}

}  // namespace

KeptValues::Members& KeptValues::members_of(size_t tensor) {
  Members& members = members_[tensor];
  members.resize(scenario_.num_workers);
  return members;
}

protocol::Partitioning KeptValues::cut_of(const TensorPlan& tensor) const {
  return protocol::cut_evenly(tensor.bytes(), scenario_.partition_bytes);
}

void KeptValues::begin(size_t tensor, uint32_t rank, ReduceOp op, MutableBytes out) {
  Member& member = members_of(tensor)[rank];
  member.contributes = op == ReduceOp::kAccumulate;
  member.begun.push_back(member.begun.back() + (member.contributes ? 1 : 0));
  for (size_t i = 0; i < out.size() / sizeof(uint64_t); ++i) {
    const uint64_t value = member.contributes ? uint64_t{1} << (rank * kDigitBits) : seed_of(tensor, i);
    store_number(&out[i * sizeof(value)], value);
  }
}

void KeptValues::fail(size_t tensor, uint32_t rank, const Status& why) {
  Member& member = members_of(tensor)[rank];
  if (!member.contributes) return;
  ++member.failed;
  const bool is_whole = cut_of(scenario_.tensors[tensor]).count() == 1;
  if (is_whole && why.code() == StatusCode::kDeadlineExceeded) ++member.timed_out;
}

std::string KeptValues::check(size_t tensor_index, uint32_t rank, Bytes answer, bool at_end) {
  const TensorPlan& tensor = scenario_.tensors[tensor_index];
  // This rank uses another size than the others, and was answered before any other rank came.
  if (answer.size() != tensor.bytes()) return "";
  const protocol::Partitioning cut = cut_of(tensor);
  Members& members = members_of(tensor_index);
  std::vector<Counts>& seen = members[rank].seen;
  seen.resize(cut.count(), Counts(members.size()));
  for (uint32_t p = 0; p < cut.count() && cut.size(p) > 0; ++p) {
    const size_t first = cut.offset(p) / sizeof(uint64_t);
    const uint64_t state = load(answer, first) - seed_of(tensor_index, first);
    for (size_t i = first; i < first + cut.size(p) / sizeof(uint64_t); ++i) {
      if (load(answer, i) - seed_of(tensor_index, i) != state) return "wrong result, or a mixture of two";
    }
    if (state >> (8 * kDigitBits) != 0) return "wrong result";
    Counts counts;
    for (size_t each = 0; each < members.size(); ++each) counts.push_back(digit(state, each));
    const std::string wrong = check_counts(tensor, members, rank, counts, seen[p], at_end);
    if (!wrong.empty()) return wrong;
    seen[p] = std::move(counts);
  }
  return "";
}

std::string KeptValues::check_counts(const TensorPlan& tensor, const Members& members, uint32_t rank,
                                     const Counts& counts, const Counts& seen, bool at_end) const {
  const size_t round = members[rank].begun.size() - 1;
  // With such a fault, rounds fail on some ranks only, and the staleness is not bounded.
  const Fault* const fault = scenario_.program_fault();
  const bool none_fails_alone =
      fault == nullptr || !(concerns_one_tensor(fault->kind) || fault->kind == FaultKind::kHangs);
  const bool bounded = tensor.staleness != protocol::kUnboundedStaleness && none_fails_alone;
  const size_t due_round = bounded && round > tensor.staleness ? round - tensor.staleness : 0;
  for (size_t each = 0; each < members.size(); ++each) {
    const std::vector<uint32_t>& begun = members[each].begun;
    const uint64_t most = begun.back() - members[each].timed_out;
    if (counts[each] > most) return count_text(each, counts[each], "at most " + std::to_string(most));
    if (counts[each] < seen[each])
      return count_text(each, counts[each], std::to_string(seen[each]) + " as before");
    if (due_round >= begun.size()) {
      return "lacks round " + std::to_string(due_round) + " of rank " + std::to_string(each);
    }
    const uint64_t least = each == rank ? begun.back() - members[each].failed : begun[due_round];
    if (counts[each] < least)
      return "lacks a round: " + count_text(each, counts[each], "at least " + std::to_string(least));
    if (at_end && counts[each] != begun.back())
      return count_text(each, counts[each], "all " + std::to_string(begun.back()));
  }
  return "";
}

}  // namespace byteps::sim
