// The values that ranks contribute, and the right result of each push_pull of a run, computed once
// for all ranks. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "sim/kept_values.h"
#include "sim/scenario.h"

namespace byteps::sim {

// The contribution of `rank` to a tensor in `round`: every element differs from its neighbours and
// from the values of other ranks and rounds. Sums of float32 are rounded, so they depend on their
// order.
void fill_values(const TensorPlan& tensor, size_t tensor_index, uint32_t rank, uint32_t round,
                 MutableBytes out);

// Sums are those of the runtime bit for bit: within a machine in the order of the ranks, then over
// the machines in the order of their first ranks (docs/numerics.md).
class Expectations {
 public:
  explicit Expectations(const Scenario& scenario)
      : kept(scenario), scenario_(scenario), machines_(scenario.num_workers) {}
  // Rank `rank` runs on `machine`. To be called for all ranks before the first result.
  void place(uint32_t rank, uint32_t machine) { machines_.at(rank) = machine; }
  // Not for stored tensors.
  Bytes result(size_t tensor, uint32_t round);

  KeptValues kept;

 private:
  using Values = std::vector<std::byte>;
  // Indices of ranks, by machine.
  std::vector<std::vector<size_t>> ranks_by_machine() const;
  Values reduced(const TensorPlan& tensor, const std::vector<Values>& inputs) const;

  const Scenario& scenario_;
  std::vector<uint32_t> machines_;  // by rank
  std::map<std::pair<size_t, uint32_t>, Values> results_;
};

}  // namespace byteps::sim
