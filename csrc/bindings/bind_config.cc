#include <pybind11/stl.h>

#include "base/config.h"
#include "bindings/bindings.h"

namespace py = pybind11;

namespace byteps::bindings {
namespace {

// Sets attributes, so that an unknown name or a wrong type raises Python's own error.
NodeConfig config_from(const py::kwargs& fields) {
  NodeConfig config;
  py::object view = py::cast(&config, py::return_value_policy::reference);
  for (const auto& [name, value] : fields) py::setattr(view, name, value);
  return config;
}

}  // namespace

void bind_config(py::module_& module) {
  py::class_<NodeConfig> config(module, "NodeConfig", py::is_final());
  config.def(py::init([](const py::kwargs& fields) { return config_from(fields); }));
  py::list names;
#define BPS_ATTRIBUTE(type, name, initial)        \
  config.def_readwrite(#name, &NodeConfig::name); \
  names.append(#name);
  BPS_NODE_CONFIG(BPS_ATTRIBUTE)
#undef BPS_ATTRIBUTE
  config.attr("FIELDS") = py::tuple(names);
  // The secret is bytes, not text.
  config.def_property(
      "secret", [](const NodeConfig& c) { return py::bytes(c.secret); },
      [](NodeConfig& c, const py::bytes& secret) { c.secret = std::string(secret); });
}

}  // namespace byteps::bindings
