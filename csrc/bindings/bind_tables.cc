#include "base/codes.h"
#include "bindings/bindings.h"
#include "transport/rdma/registrations.h"

namespace py = pybind11;

namespace byteps::bindings {

void bind_tables(py::module_& module) {
  py::dict dtype_codes;
  py::dict dtype_bytes;
  for (const DTypeRow& row : kDTypes) {
    dtype_codes[py::str(row.name)] = static_cast<int>(row.code);
    dtype_bytes[py::str(row.name)] = row.bytes;
  }
  module.attr("DTYPE_CODES") = dtype_codes;
  module.attr("DTYPE_BYTES") = dtype_bytes;
  py::dict op_codes;
  for (const ReduceOpRow& row : kReduceOps) op_codes[py::str(row.name)] = static_cast<int>(row.code);
  module.attr("OP_CODES") = op_codes;

  py::dict errors;
  for (const ErrorRow& row : kErrors) {
    errors[py::str(row.name)] = py::make_tuple(static_cast<int>(row.code), row.exception);
  }
  module.attr("ERRORS") = errors;

  py::dict metrics;
#define BPS_MEANING(type, name, meaning) metrics[#name] = meaning;
  BPS_METRICS(BPS_MEANING)
#undef BPS_MEANING
#define BPS_MEANING(name, metric, meaning) metrics[metric] = meaning;
  BPS_REGISTRATION_COUNTS(BPS_MEANING)
#undef BPS_MEANING
  module.attr("METRICS") = metrics;
}

py::dict to_dict(const Metrics& metrics) {
  py::dict result;
#define BPS_SET(type, name, meaning) result[#name] = static_cast<double>(metrics.name.load());
  BPS_METRICS(BPS_SET)
#undef BPS_SET
  return result;
}

}  // namespace byteps::bindings
