#include "sim/elastic_program.h"

#include <algorithm>

namespace byteps::sim {
namespace {

constexpr TimeUs kPauseUs = 5'000;
// Tensors of up to this size are never summed in parts (docs/elastic.md).
constexpr size_t kWholeBytes = 64 << 10;
// The smallest partitions (ElasticScenario::partition_bytes).
constexpr size_t kLeastPartBytes = 4096;
constexpr const char* kRefusal = "this tensor is refused";

}  // namespace

ElasticProgram::ElasticProgram(World& world, SimProcess& process, const ElasticScenario& scenario,
                               size_t number)
    : world_(world),
      process_(process),
      scenario_(scenario),
      number_(number),
      random_(mix(scenario.seed) + number),
      state_(std::make_shared<std::vector<int64_t>>(1)) {
  for (const size_t elements : scenario.elements)
    tensors_.push_back(std::make_shared<std::vector<int64_t>>(elements));
}

void ElasticProgram::think(std::function<void()> next) {
  const TimeUs longest_us = scenario_.members[number_].think_us;
  if (longest_us == 0) return process_.program().post(std::move(next));
  process_.program().run_at(world_.time.now_us() + random_.between(0, longest_us), std::move(next));
}

void ElasticProgram::begin(const Status& started) {
  if (!started.is_ok()) return end(started);
  has_begun_ = true;
  is_founder_ = process_.member()->epoch() == 1;
  world_.note(process_.name(), 30, [this] {
    return "takes part as rank " + std::to_string(process_.member()->rank()) + " of " +
           std::to_string(process_.member()->size());
  });
  get_state();
}

void ElasticProgram::get_state() {
  (*state_)[0] = step_;
  auto* const memory = reinterpret_cast<std::byte*>(state_->data());
  ++open_;
  process_.member()->push_pull(
      {.name = "state", .dtype = DType::kInt64, .bytes = sizeof(int64_t), .op = ReduceOp::kBroadcast},
      {.input = memory, .output = memory}, [this, kept = state_](const Status& status) {
        --open_;
        const bool root_is_lost =
            status.code() == StatusCode::kUnavailable && process_.member()->failure().is_ok();
        if (root_is_lost) return await_new_ranks();
        if (!status.is_ok()) return end(status.with_context("broadcast of the state"));
        step_ = (*state_)[0];
        process_.member()->note_state();
        has_state_ = true;
        make_step();
      });
}

// Ranks are numbered anew after each loss.
void ElasticProgram::await_new_ranks() {
  ++open_;
  process_.member()->commit([this](Result<elastic::Change> change) {
    process_.program().post([this, change = std::move(change)] {
      --open_;
      if (!change) return end(change.status().with_context("commit after the loss of the root"));
      if (change->is_entered) return get_state();
      const Status failure = process_.member()->coordinator_failure();
      if (!failure.is_ok()) return end(failure);
      process_.program().run_at(world_.time.now_us() + kPauseUs, [this] { await_new_ranks(); });
    });
  });
}

void ElasticProgram::make_step() {
  const int64_t leaves_after = scenario_.members[number_].leaves_after;
  if (step_ >= scenario_.steps || step_ >= leaves_after) return end(Status::ok());
  failure_ = Status::ok();
  open_ = tensors_.size();
  for (size_t tensor = 0; tensor < tensors_.size(); ++tensor) think([this, tensor] { push(tensor); });
}

void ElasticProgram::push(size_t tensor) {
  const std::string name = "tensor " + std::to_string(tensor);
  const uint64_t step = static_cast<uint64_t>(step_) + 1;
  if (random_.chance(scenario_.refusals)) {
    const Status why = invalid_argument(kRefusal);
    process_.member()->refuse(name, step, why);
    return on_pushed(tensor, why);
  }
  const auto values = tensors_[tensor];
  std::ranges::fill(*values, int64_t{1} << number_);
  auto* const memory = reinterpret_cast<std::byte*>(values->data());
  process_.member()->push_pull({.name = name,
                                .dtype = DType::kInt64,
                                .bytes = values->size() * sizeof(int64_t),
                                .shape = {},
                                .step = step},
                               {.input = memory, .output = memory},
                               [this, tensor, values](const Status& status) { on_pushed(tensor, status); });
}

void ElasticProgram::on_pushed(size_t tensor, const Status& status) {
  --open_;
  const bool is_refused = status.message().find(kRefusal) != std::string::npos;
  if (!status.is_ok() && !is_refused && failure_.is_ok()) failure_ = status;
  if (status.is_ok() || is_refused) note_result(tensor, is_refused);
  if (open_ > 0) return;
  if (!failure_.is_ok()) return end(failure_);
  think([this] { commit(); });
}

void ElasticProgram::note_result(size_t tensor, bool is_refused) {
  const std::vector<int64_t>& values = *tensors_[tensor];
  Runs runs;
  for (size_t i = 0; i < values.size() && !is_refused; ++i)
    if (i == 0 || values[i] != values[i - 1]) runs.emplace_back(i, values[i]);
  world_.note(process_.name(), is_refused ? 30 : 31 + static_cast<uint64_t>(runs[0].second), [&] {
    std::string text = "step " + std::to_string(step_) + " tensor " + std::to_string(tensor) + ":";
    if (is_refused) text += " refused";
    for (const auto& [first, sum] : runs)
      text += " " + std::to_string(sum) + " from " + std::to_string(first);
    return text;
  });
  for (const auto& [first, sum] : runs) {
    const bool is_whole = values.size() * sizeof(int64_t) <= kWholeBytes;
    if ((is_whole && first > 0) || first * sizeof(int64_t) % kLeastPartBytes != 0)
      world_.report(process_.name(), "a part of a result is a mixture of sums");
    if ((sum >> number_ & 1) == 0) world_.report(process_.name(), "a sum lacks its own contribution");
  }
  if (!sums_.try_emplace({step_, tensor}, runs).second)
    world_.report(process_.name(), "step " + std::to_string(step_) + " is made twice");
}

void ElasticProgram::commit() {
  ++open_;
  process_.member()->commit([this](Result<elastic::Change> change) {
    process_.program().post([this, change = std::move(change)] { on_committed(change); });
  });
}

void ElasticProgram::on_committed(const Result<elastic::Change>& change) {
  --open_;
  if (!change) return end(change.status().with_context("commit"));
  ++step_;
  if (change->is_entered) {
    ++num_entered_;
    world_.note(process_.name(), 32, [this] {
      return "is rank " + std::to_string(process_.member()->rank()) + " of " +
             std::to_string(process_.member()->size());
    });
  }
  change->has_newcomers ? get_state() : make_step();
}

void ElasticProgram::end(const Status& outcome) {
  outcome_ = outcome;
  at_end_ = true;
  world_.note(process_.name(), 33,
              [&] { return "ends after step " + std::to_string(step_) + ": " + outcome.to_string(); });
  const bool others_stay = outcome.is_ok() && step_ < scenario_.steps;
  others_stay ? process_.leave_others() : process_.leave("", "");
}

}  // namespace byteps::sim
