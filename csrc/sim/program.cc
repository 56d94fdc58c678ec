#include "sim/program.h"

#include <algorithm>
#include <utility>

namespace byteps::sim {
namespace {

constexpr TimeUs kPollUs = 100;
// Fills buffers whose push_pull is done. A later write is an error; a later read gets bytes that
// make wrong results.
constexpr std::byte kReleased{0xDB};

}  // namespace

Program::Program(World& world, SimProcess& process, const Scenario& scenario, uint32_t index,
                 Expectations& expectations)
    : world_(world),
      process_(process),
      scenario_(scenario),
      plan_(scenario.workers[index]),
      machine_(scenario.machines[index]),
      expectations_(expectations),
      random_(scenario.seed ^ mix(index + 1)),
      rounds_(plan_.tensors.size()),
      is_in_flight_(plan_.tensors.size()) {}

void Program::begin(const Status& started) {
  if (started.is_ok()) {
    expectations_.place(rank(), machine_);
    return advance_soon();
  }
  world_.note(process_.name(), 3, [&] { return "could not start: " + started.to_string(); });
  start_failure_ = started;
  at_end_ = true;
  process_.leave("", "");
}

void Program::advance_soon() {
  if (std::exchange(is_advancing_, true)) return;
  process_.program().post([this] {
    is_advancing_ = false;
    advance();
  });
}

void Program::advance() {
  while (!at_end_ && !is_pausing_ && !is_in_barrier_) {
    const bool gives_up = had_error_ && plan_.gives_up;
    if (next_step_ == plan_.program.size() || gives_up) {
      at_end_ = true;
      world_.note(process_.name(), 2, [&] { return gives_up ? "gives up" : "is through"; });
      on_end_();
      return process_.leave(plan_.raises ? "KeyError: 'label'" : "", gives_up ? "RuntimeError" : "");
    }
    const Step& step = plan_.program[next_step_];
    if (is_blocked_by(step)) return;
    ++next_step_;
    perform(step);
  }
}

bool Program::is_blocked_by(const Step& step) const {
  const bool needs_tensor =
      step.kind == Step::Kind::kPushPull || step.kind == Step::Kind::kPull || step.kind == Step::Kind::kWait;
  return needs_tensor && is_in_flight_[step.tensor];
}

void Program::perform(const Step& step) {
  switch (step.kind) {
    case Step::Kind::kDeclare: {
      const TensorPlan& tensor = plan_.tensors[step.tensor];
      begin_operation({.what = "declaration of " + tensor.name, .tensor = step.tensor});
      return finish(outcomes_.back(),
                    process_.node()->declare(tensor.name_in(1), tensor.dtype, tensor.bytes()));
    }
    case Step::Kind::kPushPull: return push_pull(step.tensor, false);
    case Step::Kind::kPull: return push_pull(step.tensor, true);
    case Step::Kind::kWait: return;
    case Step::Kind::kBarrier: return barrier();
    case Step::Kind::kPause:
      is_pausing_ = true;
      process_.program().run_at(world_.time.now_us() + step.pause_us, [this] {
        is_pausing_ = false;
        advance();
      });
  }
}

Program::Buffer Program::make_buffer(uint64_t bytes) {
  return buffers_.emplace_back(std::make_shared<std::vector<std::byte>>(bytes));
}

void Program::fill_input(const TensorPlan& tensor, InFlight& op, ReduceOp reduction) {
  const MutableBytes input = *op.input;
  if (is_stored(reduction)) {
    expectations_.kept.begin(op.tensor, rank(), reduction, input);
  } else {
    fill_values(tensor, op.tensor, rank(), op.round, input);
  }
  op.values.assign(input.begin(), input.end());
}

protocol::PushPull Program::make_request(const TensorPlan& tensor, uint32_t round, ReduceOp reduction) const {
  const bool is_refused = round == tensor.odd_round && tensor.odd == TensorPlan::Odd::kRefused;
  const std::vector<int64_t> dims = {static_cast<int64_t>(tensor.elements_in(round))};
  return {.name = tensor.name_in(round),
          .dtype = tensor.dtype,
          .bytes = tensor.bytes_in(round),
          .op = is_refused ? ReduceOp::kBroadcast : reduction,
          .root = is_refused ? UINT32_MAX : tensor.root,
          .priority = tensor.priority,
          .staleness = tensor.staleness,
          .shape = *protocol::Shape::of(dims),
          .step = scenario_.counts_steps && !is_stored(reduction) ? round : 0};
}

void Program::push_pull(size_t index, bool is_pull) {
  const TensorPlan& tensor = plan_.tensors[index];
  const uint32_t round = ++rounds_[index];
  if (round == tensor.odd_round && tensor.odd == TensorPlan::Odd::kLeftOut) return;
  maybe_change_plan();
  const size_t outcome = begin_operation(
      {.what = tensor.name + " round " + std::to_string(round), .tensor = index, .round = round});
  const bool seeds = is_stored(tensor.op) && (round == 1 || is_pull);
  const ReduceOp reduction = seeds ? ReduceOp::kSeed : tensor.op;
  const Buffer input = make_buffer(tensor.bytes_in(round));
  const Buffer output = random_.chance(0.5) ? input : make_buffer(tensor.bytes_in(round));
  is_in_flight_[index] = true;
  InFlight& op = in_flight_[outcome] = {index, round, is_pull, input, output, {}};
  fill_input(tensor, op, reduction);
  start(outcome, make_request(tensor, round, reduction), op);
}

void Program::start(size_t outcome, const protocol::PushPull& request, const InFlight& op) {
  const std::byte* const input = op.input->data();
  std::byte* const output = op.output->data();
  if (random_.chance(0.7)) {
    const auto on_done = [this, outcome](const Status& status) { on_push_pull_done(outcome, status); };
    return process_.node()->push_pull(request, {input, output}, on_done);
  }
  const Result<protocol::Handle> handle = process_.node()->push_pull(request, {input, output});
  if (!handle) return on_push_pull_done(outcome, handle.status());
  handles_[outcome] = *handle;
  poll(outcome);
}

void Program::poll(size_t outcome) {
  const auto found = handles_.find(outcome);
  if (found == handles_.end()) return;
  const Result<bool> is_done = process_.node()->poll(found->second);
  if (is_done && !*is_done) {
    process_.program().run_at(world_.time.now_us() + kPollUs, [this, outcome] { poll(outcome); });
    return;
  }
  const Status status = is_done ? process_.node()->result(found->second) : is_done.status();
  handles_.erase(found);
  on_push_pull_done(outcome, status);
}

void Program::on_stopped() {
  const Metrics& metrics = process_.node()->metrics();
  num_moves_ = metrics.placement_moves;
  num_servers_lost_ = metrics.servers_lost;
  num_schedulers_lost_ = metrics.schedulers_lost;
  num_held_sent_ = metrics.held_sent;
  for (const auto& [outcome, handle] : std::exchange(handles_, {})) {
    on_push_pull_done(outcome, process_.node()->result(handle));
  }
}

// As the tuner does on rank 0, at any time.
void Program::maybe_change_plan() {
  if (!random_.chance(scenario_.plan_change_chance) || rank() != 0) return;
  process_.node()->request_plan({.partition_scale = static_cast<uint8_t>(random_.below(8)),
                                 .credit = static_cast<uint8_t>(random_.below(6))});
}

void Program::on_push_pull_done(size_t outcome, const Status& status) {
  finish(outcomes_.at(outcome), status);
  const auto found = in_flight_.find(outcome);
  if (found == in_flight_.end()) return;
  const InFlight op = std::move(found->second);
  in_flight_.erase(found);
  if (status.is_ok()) check_result(op);
  if (!status.is_ok() && is_stored(plan_.tensors[op.tensor].op))
    expectations_.kept.fail(op.tensor, rank(), status);
  std::ranges::fill(*op.input, kReleased);
  std::ranges::fill(*op.output, kReleased);
  is_in_flight_[op.tensor] = false;
  advance_soon();
}

void Program::check_result(const InFlight& op) {
  std::string wrong = wrong_result(op);
  if (wrong.empty() && op.input != op.output && *op.input != op.values) wrong = "the input was changed";
  if (wrong.empty()) return;
  world_.report(process_.name(),
                plan_.tensors[op.tensor].name + " round " + std::to_string(op.round) + ": " + wrong);
}

std::string Program::wrong_result(const InFlight& op) {
  const Bytes output = *op.output;
  if (is_stored(plan_.tensors[op.tensor].op))
    return expectations_.kept.check(op.tensor, rank(), output, op.is_pull && scenario_.faults.empty());
  return std::ranges::equal(output, expectations_.result(op.tensor, op.round)) ? "" : "wrong result";
}

void Program::barrier() {
  const size_t outcome = begin_operation({.what = "barrier", .is_barrier = true});
  is_in_barrier_ = true;
  process_.node()->barrier([this, outcome](const Status& status) {
    process_.program().post([this, outcome, status] {
      finish(outcomes_[outcome], status);
      is_in_barrier_ = false;
      advance_soon();
    });
  });
}

size_t Program::begin_operation(Outcome outcome) {
  outcome.begun_us = world_.time.now_us();
  outcomes_.push_back(std::move(outcome));
  return outcomes_.size() - 1;
}

void Program::finish(Outcome& outcome, const Status& status) {
  world_.note(process_.name(), static_cast<uint64_t>(status.code()) + 10,
              [&] { return outcome.what + " is done: " + status.to_string(); });
  if (++outcome.times_done > 1) return world_.report(process_.name(), outcome.what + " is done twice");
  outcome.done_us = world_.time.now_us();
  outcome.status = status;
  if (!status.is_ok()) had_error_ = true;
}

void Program::check_buffers() {
  for (const auto& [outcome, op] : in_flight_)
    std::erase_if(buffers_, [&op = op](const Buffer& each) { return each == op.input || each == op.output; });
  const auto is_changed = [](const Buffer& each) {
    return std::ranges::any_of(*each, [](std::byte byte) { return byte != kReleased; });
  };
  if (std::ranges::any_of(buffers_, is_changed)) {
    world_.report(process_.name(), "memory was written after its push_pull was done");
  }
}

}  // namespace byteps::sim
