#include "sim/sim_user.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "sim/reduce.h"

namespace byteps::sim {

using protocol::Handle;

Bytes Expectations::result(size_t tensor_index, uint32_t round) {
  auto [found, is_new] = results_.try_emplace({tensor_index, round});
  if (!is_new) return found->second;
  const TensorPlan& tensor = scenario_.tensors[tensor_index];
  std::vector<std::vector<std::byte>> inputs;
  for (uint32_t rank = 0; rank < scenario_.num_workers; ++rank) {
    if (tensor.op == ReduceOp::kBroadcast && rank != tensor.root) continue;
    fill_values(tensor, tensor_index, rank, round, inputs.emplace_back(tensor.bytes_in(round)));
  }
  found->second.resize(tensor.bytes_in(round));
  if (tensor.op == ReduceOp::kAverage && is_float(tensor.dtype)) {
    average(inputs, found->second);
    return found->second;
  }
  const ReduceOp op = tensor.op == ReduceOp::kBroadcast ? ReduceOp::kSum : tensor.op;
  reduce(tensor.dtype, op, scenario_.num_workers, {inputs.begin(), inputs.end()}, found->second);
  return found->second;
}

void Expectations::average(const std::vector<std::vector<std::byte>>& inputs, MutableBytes out) const {
  std::vector<std::vector<Bytes>> machines;
  std::map<uint32_t, size_t> places;  // in the order of the machines' first ranks
  for (size_t rank = 0; rank < inputs.size(); ++rank) {
    const auto [found, is_new] = places.emplace(machines_[rank], machines.size());
    if (is_new) machines.emplace_back();
    machines[found->second].push_back(inputs[rank]);
  }
  std::vector<uint32_t> weights;
  uint32_t common = 0;
  std::vector<std::vector<std::byte>> means;
  for (const std::vector<Bytes>& ranks : machines) {
    weights.push_back(static_cast<uint32_t>(ranks.size()));
    common = std::gcd(common, weights.back());
    mean(std::vector<uint32_t>(ranks.size(), 1), ranks, means.emplace_back(out.size()));
  }
  for (uint32_t& weight : weights) weight /= common;
  mean(weights, {means.begin(), means.end()}, out);
}

SimUser::SimUser(World& world, VirtualProcess& process, uint32_t index, Expectations& expectations)
    : world_(world),
      process_(process),
      plan_(world.scenario.workers[index]),
      machine_(world.scenario.machines[index]),
      expectations_(expectations),
      rounds_(plan_.tensors.size()),
      in_flight_of_(plan_.tensors.size()) {}

void SimUser::begin(Session& session) {
  session_ = &session;
  expectations_.place(session.rank(), machine_);
  advance_soon();
}

void SimUser::on_start_failed(const Status& why) {
  start_failure_ = why;
  at_end_ = true;
}

// A program runs on a thread of its own: never inside the call that woke it.
void SimUser::advance_soon() {
  if (std::exchange(advancing_, true)) return;
  process_.soon([this] {
    advancing_ = false;
    advance();
  });
}

void SimUser::advance() {
  while (!at_end_ && !pausing_ && !in_barrier_) {
    const bool gives_up = had_error_ && plan_.gives_up;
    if (next_step_ == plan_.program.size() || gives_up) {
      at_end_ = true;
      world_.note(process_, 2, [&] { return std::string(gives_up ? "gives up" : "is through"); });
      return plan_.raises ? session_->fail_job("KeyError: 'label'") : session_->shutdown();
    }
    const Step& step = plan_.program[next_step_];
    if (blocked_by(step)) return;
    ++next_step_;
    perform(step);
  }
}

bool SimUser::blocked_by(const Step& step) const {
  const bool needs_tensor =
      step.kind == Step::Kind::kPushPull || step.kind == Step::Kind::kPull || step.kind == Step::Kind::kWait;
  return needs_tensor && in_flight_of_[step.tensor] != 0;
}

void SimUser::perform(const Step& step) {
  switch (step.kind) {
    case Step::Kind::kDeclare: {
      const TensorPlan& tensor = plan_.tensors[step.tensor];
      outcomes_.push_back({.what = "declaration of " + tensor.name, .tensor = step.tensor});
      return finish(outcomes_.back(), session_->declare(tensor.name, tensor.dtype, tensor.bytes()));
    }
    case Step::Kind::kPushPull: return push_pull(step.tensor, false);
    case Step::Kind::kPull: return push_pull(step.tensor, true);
    case Step::Kind::kWait: return;
    case Step::Kind::kBarrier: return barrier();
    case Step::Kind::kPause:
      pausing_ = true;
      return process_.at(world_.clock.now() + step.pause_us, [this] {
        pausing_ = false;
        advance();
      });
  }
}

View SimUser::make_buffer(uint64_t bytes, const std::string& what) {
  return {std::make_shared<Memory>(world_.findings, process_.name() + ", " + what, bytes), 0, bytes};
}

void SimUser::fill_input(const TensorPlan& tensor, const InFlight& op, ReduceOp reduction) {
  if (is_stored(reduction))
    return expectations_.kept.begin(op.tensor, session_->rank(), reduction, op.input.write());
  fill_values(tensor, op.tensor, session_->rank(), op.round, op.input.write());
}

void SimUser::push_pull(size_t index, bool is_pull) {
  const TensorPlan& tensor = plan_.tensors[index];
  const uint32_t round = ++rounds_[index];
  const bool is_odd = round == tensor.odd_round;
  if (is_odd && tensor.odd == TensorPlan::Odd::kLeftOut) return;
  const std::string what = tensor.name + " round " + std::to_string(round);
  outcomes_.push_back({.what = what, .tensor = index, .round = round});
  const Handle handle = outcomes_.size();
  const uint64_t bytes = tensor.bytes_in(round);
  const View input = make_buffer(bytes, what);
  const View output = world_.random.chance(0.5) ? input : make_buffer(bytes, what + ", output");
  const bool seeds = is_stored(tensor.op) && (round == 1 || is_pull);
  const ReduceOp reduction = seeds ? ReduceOp::kSeed : tensor.op;
  in_flight_of_[index] = handle;
  const InFlight& op = in_flight_[handle] = {index, round, is_pull, input, output};
  fill_input(tensor, op, reduction);
  const bool is_refused = is_odd && tensor.odd == TensorPlan::Odd::kRefused;
  const bool has_step =
      world_.scenario.counts_steps && !is_stored(reduction) && world_.sabotage != Sabotage::kForgetsSteps;
  const std::vector<int64_t> dims = {static_cast<int64_t>(tensor.elements_in(round))};
  const protocol::PushPull request{.name = tensor.name,
                                   .dtype = tensor.dtype,
                                   .bytes = bytes,
                                   .op = is_refused ? ReduceOp::kBroadcast : reduction,
                                   .root = is_refused ? UINT32_MAX : tensor.root,
                                   .priority = tensor.priority,
                                   .staleness = tensor.staleness,
                                   .shape = *protocol::Shape::of(dims),
                                   .step = has_step ? round : 0};
  const Status status = session_->push_pull(handle, request, input, output);
  if (!status.is_ok()) on_handle_done(handle, status);
}

void SimUser::on_handle_done(Handle handle, const Status& status) {
  finish(outcomes_.at(handle - 1), status);
  const auto found = in_flight_.find(handle);
  if (found == in_flight_.end()) return;
  const InFlight op = found->second;
  if (status.is_ok()) check_result(op);
  if (!status.is_ok() && is_stored(plan_.tensors[op.tensor].op))
    expectations_.kept.fail(op.tensor, session_->rank(), status);
  op.input.memory->release();
  op.output.memory->release();
  in_flight_of_[op.tensor] = 0;
  in_flight_.erase(found);
  advance_soon();
}

void SimUser::check_result(const InFlight& op) {
  const TensorPlan& tensor = plan_.tensors[op.tensor];
  if (is_stored(tensor.op)) {
    const bool nothing_fails = is_harmless(world_.scenario.fault.kind);
    const std::string wrong =
        expectations_.kept.check(op.tensor, session_->rank(), op.output.read(), op.is_pull && nothing_fails);
    if (!wrong.empty())
      world_.report(process_, tensor.name + " round " + std::to_string(op.round) + ": " + wrong);
    return;
  }
  const Bytes expected = expectations_.result(op.tensor, op.round);
  if (!std::ranges::equal(op.output.read(), expected)) {
    world_.report(process_, tensor.name + " round " + std::to_string(op.round) + ": wrong result");
  }
}

void SimUser::barrier() {
  const auto sequence = static_cast<uint32_t>(barriers_.size() + 1);
  outcomes_.push_back({.what = "barrier " + std::to_string(sequence), .is_barrier = true});
  barriers_[sequence] = outcomes_.size() - 1;
  in_barrier_ = true;
  const Status status = session_->barrier(sequence);
  if (!status.is_ok()) on_barrier_done(sequence, status);
}

void SimUser::on_barrier_done(uint32_t sequence, const Status& status) {
  const auto found = barriers_.find(sequence);
  if (found == barriers_.end()) return world_.report(process_, "an answer to a barrier that was not begun");
  finish(outcomes_[found->second], status);
  in_barrier_ = false;
  advance_soon();
}

void SimUser::finish(Outcome& outcome, const Status& status) {
  world_.note(process_, static_cast<uint64_t>(status.code()) + 10,
              [&] { return outcome.what + " is done: " + status.to_string(); });
  if (++outcome.times_done > 1) return world_.report(process_, outcome.what + " is done twice");
  outcome.done_us = world_.clock.now();
  outcome.status = status;
  if (!status.is_ok()) had_error_ = true;
}

}  // namespace byteps::sim
