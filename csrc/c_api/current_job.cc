#include "c_api/current_job.h"

#include <atomic>
#include <cstring>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/annotations.h"

namespace byteps::c_api {
namespace {

struct Membership {
  std::shared_ptr<node::JobNode> node;  // set in a job of several ranks
  std::shared_ptr<Metrics> alone;       // set in a job of one rank
  std::string absence = "byteps is not initialized: call byteps.init() first";
};

class Slot {
 public:
  explicit Slot(const Slot* before) : before_(before) {}
  void set(Membership membership) {
    {
      MutexLock lock(mutex_);
      std::swap(membership_, membership);
      steps_.clear();
    }
    // Releases the last reference to a node without holding the lock.
  }
  uint64_t next_step(const std::string& label) {
    MutexLock lock(mutex_);
    return ++steps_[label];
  }
  Membership get() {
    MutexLock lock(mutex_);
    return membership_;
  }

 private:
  [[maybe_unused]] const Slot* const before_;  // the abandoned slot, reachable for leak checkers
  Mutex mutex_;
  Membership membership_ BPS_GUARDED_BY(mutex_);
  std::unordered_map<std::string, uint64_t> steps_ BPS_GUARDED_BY(mutex_);  // key: label
};

// Never destroyed: threads of a framework may still call while the process exits.
std::atomic<Slot*> current_slot = new Slot(nullptr);

Result<protocol::PushPull> parse(const BpsPushPull& request) {
  auto dtype = dtype_from(request.dtype);
  if (!dtype) return dtype.status();
  auto op = reduce_op_from(request.op);
  if (!op) return op.status();
  auto shape = request.dims == nullptr ? Result<protocol::Shape>(protocol::Shape())
                                       : protocol::Shape::of({request.dims, request.num_dims});
  if (!shape) return shape.status();
  return protocol::PushPull{.name = std::string(request.name, request.name_bytes),
                            .dtype = *dtype,
                            .bytes = request.bytes,
                            .op = *op,
                            .root = request.root,
                            .priority = request.priority,
                            .staleness = request.staleness,
                            .shape = *shape,
                            .step = request.step};
}

// Copies the input to the output: the result of a job of one rank.
void copy(const BpsPushPull& request, Metrics& metrics) {
  if (request.input != request.output) std::memcpy(request.output, request.input, request.bytes);
  add(metrics.push_pulls, 1);
  add(metrics.push_pull_bytes, request.bytes);
}

void push_pull(const BpsPushPull* request) {
  const auto done = [on_done = request->on_done, context = request->context](const Status& status) {
    on_done(context, static_cast<int>(status.code()), status.message().c_str());
  };
  const Membership membership = current_slot.load()->get();
  if (!membership.node && !membership.alone) return done(failed_precondition(membership.absence));
  auto parsed = parse(*request);
  if (!parsed) {
    if (membership.node)
      membership.node->refuse({request->name, request->name_bytes}, request->step, parsed.status());
    return done(parsed.status());
  }
  if (membership.alone) {
    if (is_stored(parsed->op))
      return done(invalid_argument("seed and accumulate: not supported in a job of one rank"));
    copy(*request, *membership.alone);
    return done(Status::ok());
  }
  membership.node->push_pull(
      *parsed, {static_cast<const std::byte*>(request->input), static_cast<std::byte*>(request->output)},
      done);
}

void refuse(const char* name, size_t name_bytes, uint64_t step, const char* why) {
  const Membership membership = current_slot.load()->get();
  if (membership.node) membership.node->refuse({name, name_bytes}, step, invalid_argument(why));
}

uint64_t next_step(const char* label, size_t label_bytes) {
  return current_slot.load()->next_step({label, label_bytes});
}

}  // namespace

const BpsCApi& table() {
  static constexpr BpsCApi kTable{
      .version = BPS_C_API_VERSION, .push_pull = &push_pull, .refuse = &refuse, .next_step = &next_step};
  return kTable;
}

void enter_job(std::shared_ptr<node::JobNode> node) {
  current_slot.load()->set({.node = std::move(node), .alone = nullptr, .absence = {}});
}

std::shared_ptr<Metrics> enter_job_alone() {
  auto alone = std::make_shared<Metrics>();
  current_slot.load()->set({.node = nullptr, .alone = alone, .absence = {}});
  return alone;
}

void leave_job(std::string why) {
  current_slot.load()->set({.node = nullptr, .alone = nullptr, .absence = std::move(why)});
}

void abandon_job(std::string why) {
  current_slot = new Slot(current_slot);
  leave_job(std::move(why));
}

}  // namespace byteps::c_api
