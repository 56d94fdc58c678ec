// The native module byteps._core. Its contract is byteps/_core.pyi.
#include "bindings/bindings.h"

PYBIND11_MODULE(_core, module) {
  byteps::bindings::bind_tables(module);
  byteps::bindings::bind_device(module);
  byteps::bindings::bind_node(module);
  byteps::bindings::bind_coordinator(module);
  byteps::bindings::bind_collectives(module);
  byteps::bindings::bind_machine(module);
  byteps::bindings::bind_rdma(module);
  byteps::bindings::bind_plan(module);
}
