// What each file of this folder adds to the module.
#pragma once

#include <pybind11/pybind11.h>

namespace byteps::bindings {

void bind_config(pybind11::module_& module);
void bind_node(pybind11::module_& module);
// What the machine can do, and the kernels, for `byteps doctor`, tests and benchmarks.
void bind_machine(pybind11::module_& module);
// RDMA as this machine has it, and checks of other machines, for `byteps doctor`.
void bind_rdma(pybind11::module_& module);
// The address of the table of C functions, and which job they speak for: for adapters with a library of their own.
void bind_c_api(pybind11::module_& module);
// Placement and the simulation at scale, for `byteps plan`.
void bind_plan(pybind11::module_& module);

}  // namespace byteps::bindings
