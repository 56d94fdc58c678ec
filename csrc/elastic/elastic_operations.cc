// AsyncElasticNode: the push_pulls of the program, from one generation to the next.
#include <algorithm>
#include <utility>

#include "base/copy.h"
#include "elastic/async_elastic_node.h"
#include "elastic/names.h"

namespace byteps::elastic {
namespace {

using protocol::Handle;
using protocol::PushPull;

// Up to this size a result is copied as a whole, and a recovery sums it as a whole again: noting parts
// takes longer than copying.
constexpr uint64_t kWholeBytes = 64 << 10;
// Of a larger tensor, little is left in a core's cache at the end.
constexpr uint64_t kColdBytes = 4 << 20;

}  // namespace

Result<Handle> AsyncElasticNode::push_pull(const PushPull& request, const worker::TensorMemory& memory) {
  const Handle handle = handles_->open(request.bytes);
  const Status status = begin(handle, request, memory);
  if (status.is_ok()) return handle;
  handles_->cancel(handle);
  return status;
}

void AsyncElasticNode::push_pull(const PushPull& request, const worker::TensorMemory& memory,
                                 worker::OnDone on_done) {
  const Handle handle = handles_->open(request.bytes, std::move(on_done));
  const Status status = begin(handle, request, memory);
  if (!status.is_ok()) handles_->cancel(handle)(status);
}

Status AsyncElasticNode::begin(Handle handle, const PushPull& request, const worker::TensorMemory& memory) {
  if (memory.transfer || is_stored(request.op)) {
    const Status why = failed_precondition(
        "'" + request.name + "': " + (memory.transfer ? "tensors of devices" : "asynchronous training") +
        ": not supported in elastic jobs");
    refuse(request.name, request.step, why);
    return why;
  }
  {
    MutexLock lock(mutex_);
    BPS_RETURN_IF_ERROR(ended_);
    if (ops_.contains(request.name)) {
      return invalid_argument("push_pull of '" + request.name +
                              "': one of this name is in flight; call synchronize() on it first");
    }
    if (auto outcome = ledger_.start(request.name, request.step)) return *outcome;
    ops_[request.name] = {.handle = handle,
                          .request = request,
                          .memory = memory,
                          .result = ledger_.memory_for(request.name, request.bytes),
                          .order = ++last_order_,
                          .is_inside = true,
                          .failure = {}};
  }
  submit(request.name);
  MutexLock lock(mutex_);
  const auto found = ops_.find(request.name);
  if (found == ops_.end() || found->second.handle != handle) return Status::ok();  // it is done already
  found->second.is_inside = false;
  const Status failure = found->second.failure;
  if (!failure.is_ok()) ops_.erase(found);
  return failure;
}

std::optional<uint32_t> AsyncElasticNode::rank_in(const Generation& generation, uint32_t rank) const {
  if (rank >= epoch_members_.size()) return rank;  // the node refuses it
  const auto& members = generation.form.members;
  const auto found = std::ranges::find(members, epoch_members_[rank]);
  if (found == members.end()) return std::nullopt;
  return static_cast<uint32_t>(found - members.begin());
}

// All members have the same parts (Ledger::parts), so they start the same push_pulls.
std::vector<AsyncElasticNode::Attempt> AsyncElasticNode::attempts_of(const std::string& name, Op& op) {
  const auto begin = [&](const protocol::ByteRange& range, protocol::PushPull request) {
    std::byte* const result = op.result.get() + range.offset;
    return Attempt{std::move(request), {.input = op.memory.input + range.offset, .output = result}};
  };
  const protocol::ByteRanges& parts = ledger_.parts(name);
  if (parts.empty()) return {begin({0, op.request.bytes}, op.request)};
  std::vector<Attempt> attempts;
  uint32_t number = op.first_rest;
  for (const protocol::ByteRange& gap : gaps(parts, op.request.bytes)) {
    attempts.push_back(begin(gap, {.name = kRest + std::to_string(number++),
                                   .dtype = op.request.dtype,
                                   .bytes = gap.bytes,
                                   .op = op.request.op,
                                   .root = op.request.root,
                                   .priority = op.request.priority}));
  }
  return attempts;
}

void AsyncElasticNode::submit(const std::string& name) {
  GenerationPtr generation;
  std::vector<Attempt> attempts;
  PushPull request;
  Landing landing{};
  bool has_root = true;
  {
    MutexLock lock(mutex_);
    const auto found = ops_.find(name);
    if (is_frozen_ || !present_ || found == ops_.end() || found->second.at != 0) return;
    Op& op = found->second;
    generation = present_;
    request = op.request;
    landing = landing_of(op);
    attempts = attempts_of(name, op);
    op.at = generation->number();
    op.attempts = attempts.size();
    generation->attempts += attempts.size();
    if (request.op == ReduceOp::kBroadcast) {
      const auto root = rank_in(*generation, request.root);
      has_root = root.has_value();
      for (Attempt& attempt : attempts) attempt.request.root = root.value_or(0);
    }
  }
  if (!has_root) return fail_without_root(generation, request, attempts.size());
  // The node keeps the callbacks, and the generation the node.
  for (Attempt& attempt : attempts) {
    if (request.bytes > kWholeBytes)
      attempt.memory.on_part = std::make_shared<const worker::OnPart>(
          [this, its = generation.get(), name, landing](Bytes part) { on_part(*its, name, landing, part); });
    generation->node->push_pull(attempt.request, attempt.memory,
                                [this, its = generation.get(), name](const Status& status) {
                                  on_attempt_done(its->shared_from_this(), name, status);
                                });
  }
}

// The root is lost, and nobody has got all of its values: all members decide so.
void AsyncElasticNode::fail_without_root(const GenerationPtr& generation, const PushPull& request,
                                         size_t attempts) {
  const Status why = unavailable("broadcast of '" + request.name + "': its root is lost");
  generation->node->refuse(request.name, request.step, why);
  std::optional<Op> failed;
  {
    MutexLock lock(mutex_);
    generation->attempts -= attempts;
    if (is_frozen_ && generation->attempts == 0) loop_->post([this, generation] { on_drained(generation); });
    const auto found = ops_.find(request.name);
    if (found == ops_.end() || found->second.at != generation->number()) return;
    ledger_.fail(request.name, why);
    if (found->second.is_inside) {
      found->second.failure = why;
      return;
    }
    failed = std::move(found->second);
    ops_.erase(found);
  }
  finish(*failed, why);
}

AsyncElasticNode::Landing AsyncElasticNode::landing_of(const Op& op) {
  return {op.result.get(), op.memory.output, op.request.bytes >= kColdBytes};
}

void AsyncElasticNode::Landing::copy(const protocol::ByteRange& part) const {
  const MutableBytes target(to + part.offset, part.bytes);
  const Bytes source(from + part.offset, part.bytes);
  is_cold ? copy_to_cold(target, source) : copy_bytes(target, source);
}

// The part is in a core's cache now.
void AsyncElasticNode::on_part(const Generation& generation, const std::string& name, const Landing& landing,
                               Bytes part) {
  const protocol::ByteRange range{static_cast<uint64_t>(part.data() - landing.from), part.size()};
  landing.copy(range);
  MutexLock lock(mutex_);
  const auto found = ops_.find(name);
  if (found != ops_.end() && found->second.at == generation.number()) ledger_.add_part(name, range);
}

// Peers that end or leave fail what waits for them, with kUnavailable: then the generation is at its
// end, and the next one goes on with the push_pull.
void AsyncElasticNode::on_attempt_done(const GenerationPtr& generation, const std::string& name,
                                       const Status& status) {
  std::optional<Op> done;
  {
    MutexLock lock(mutex_);
    --generation->attempts;
    const bool is_drained = is_frozen_ && generation->attempts == 0;
    if (is_drained) loop_->post([this, generation] { on_drained(generation); });
    const auto found = ops_.find(name);
    if (found == ops_.end() || found->second.at != generation->number()) return;
    Op& op = found->second;
    const bool is_interrupted = !status.is_ok() && (is_frozen_ || status.code() == StatusCode::kUnavailable ||
                                                    !generation->node->failure().is_ok());
    if (is_interrupted) {
      op.is_interrupted = true;
      if (!is_frozen_)
        loop_->post([this, generation, why = status.message()] { break_off(generation, why); });
    } else if (op.failure.is_ok()) {
      op.failure = status;
    }
    if (--op.attempts > 0) return;
    if (!op.failure.is_ok()) {
      ledger_.fail(name, op.failure);
      if (op.is_inside) return;
    } else if (std::exchange(op.is_interrupted, false)) {
      op.at = 0;
      return;
    } else {
      ledger_.finish(name, op.result, op.request.bytes);
    }
    done = std::move(op);
    ops_.erase(found);
  }
  if (done->failure.is_ok() && done->request.bytes <= kWholeBytes)
    landing_of(*done).copy({0, done->request.bytes});
  finish(*done, done->failure);
}

void AsyncElasticNode::finish(const Op& op, const Status& status) { handles_->finish(op.handle, status); }

void AsyncElasticNode::resubmit_all() {
  std::vector<std::pair<uint64_t, std::string>> waiting;
  {
    MutexLock lock(mutex_);
    for (const auto& [name, op] : ops_) {
      if (op.at == 0) waiting.emplace_back(op.order, name);
    }
  }
  std::ranges::sort(waiting);
  for (const auto& [order, name] : waiting) submit(name);
}

void AsyncElasticNode::refuse(const std::string& name, uint64_t step, const Status& why) {
  GenerationPtr generation;
  {
    MutexLock lock(mutex_);
    if (!ended_.is_ok()) return;
    was_refused_ = true;
    const bool is_news = ops_.contains(name) || ledger_.refuse(name, step, why);
    if (is_news && !is_frozen_) generation = present_;
  }
  if (generation) generation->node->refuse(name, step, why);
}

Status AsyncElasticNode::declare(const std::string& name, DType dtype, uint64_t bytes) {
  GenerationPtr generation;
  {
    MutexLock lock(mutex_);
    BPS_RETURN_IF_ERROR(ended_);
    if (!is_frozen_) generation = present_;
  }
  return generation ? generation->node->declare(name, dtype, bytes) : Status::ok();
}

void AsyncElasticNode::barrier(worker::OnDone done) {
  push_pull({.name = kBarrierName, .dtype = DType::kUInt8, .bytes = sizeof(barrier_)},
            {.input = &barrier_, .output = &barrier_}, std::move(done));
}

void AsyncElasticNode::fail_all_operations() {
  std::map<std::string, Op> ops;
  Status why;
  {
    MutexLock lock(mutex_);
    why = ended_;
    for (const auto& [name, op] : ops_) {
      if (ledger_.is_in_flight(name)) ledger_.fail(name, why);
    }
    ops.swap(ops_);
  }
  for (const auto& [name, op] : ops) finish(op, why);
}

}  // namespace byteps::elastic
