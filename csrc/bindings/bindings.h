// One function for each file of this folder, which adds its part to the module.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "device/transfer.h"
#include "node/node.h"

namespace byteps::bindings {

// The tables of the core that Python uses.
void bind_tables(pybind11::module_& module);
// Nodes, their configuration, and the C functions for adapters with a library of their own.
void bind_node(pybind11::module_& module);
// The coordinator of an elastic job, for the launcher.
void bind_coordinator(pybind11::module_& module);
// Tensors in the memory of CUDA devices.
void bind_device(pybind11::module_& module);
// Capabilities of this machine, and the kernels; for `byteps doctor`, tests and benchmarks.
void bind_machine(pybind11::module_& module);
// RDMA devices of this machine, and checks of other machines; for `byteps doctor`.
void bind_rdma(pybind11::module_& module);
// Collectives of torch.distributed, and the names of their push_pulls.
void bind_collectives(pybind11::module_& module);
// Placement, and simulation at scale; for `byteps plan`.
void bind_plan(pybind11::module_& module);

// device::Transfer::begin on the device of this number.
Result<std::shared_ptr<device::Transfer>> begin_transfer(int ordinal, uintptr_t stream);

// Starts a push_pull in place and waits: Node.push_pull_and_wait of byteps/_core.pyi.
pybind11::object push_pull_and_wait(node::JobNode& node, const std::string& name,
                                    const pybind11::object& owner, uintptr_t memory, uint64_t bytes,
                                    int dtype, int op, int root, int priority,
                                    const std::optional<std::vector<int64_t>>& dims, int64_t collective,
                                    std::optional<double> timeout_s, const pybind11::object& keep);
// Name -> value.
pybind11::dict to_dict(const Metrics& metrics);

}  // namespace byteps::bindings
