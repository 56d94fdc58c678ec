#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <utility>

#include "base/unique_fd.h"
#include "bindings/bindings.h"
#include "bindings/status_to_python.h"
#include "c_api/current_job.h"
#include "elastic/elastic_node.h"
#include "node/node.h"

namespace py = pybind11;

namespace byteps::bindings {
namespace {

using elastic::ElasticNode;
using node::JobNode;
using node::Node;
using WithoutGil = py::call_guard<py::gil_scoped_release>;

// Sets attributes, so that an unknown name or a wrong type raises Python's own error.
NodeConfig config_from(const py::kwargs& fields) {
  NodeConfig config;
  py::object view = py::cast(&config, py::return_value_policy::reference);
  for (const auto& [name, value] : fields) py::setattr(view, name, value);
  return config;
}

void bind_config(py::module_& module) {
  py::class_<NodeConfig> config(module, "NodeConfig", py::is_final());
  config.def(py::init([](const py::kwargs& fields) { return config_from(fields); }));
  py::list names;
#define BPS_FIELD(type, name, initial)            \
  config.def_readwrite(#name, &NodeConfig::name); \
  names.append(#name);
  BPS_NODE_CONFIG(BPS_FIELD)
#undef BPS_FIELD
  config.attr("FIELDS") = py::tuple(names);
  // The secret is bytes, not text.
  config.def_property(
      "secret", [](const NodeConfig& c) { return py::bytes(c.secret); },
      [](NodeConfig& c, const py::bytes& secret) { c.secret = std::string(secret); });
}

void bind_c_api(py::module_& module) {
  using py::arg;
  module.attr("C_API") = reinterpret_cast<uintptr_t>(&c_api::table());
  module.def("enter_c_job_alone", [] {
    return py::cpp_function([metrics = c_api::enter_job_alone()] { return to_dict(*metrics); });
  });
  module.def("leave_c_job", &c_api::leave_job, arg("why"));
  module.def("abandon_c_job", &c_api::abandon_job, arg("why"));
  module.def("note_descriptor", &note_descriptor, arg("fd"));
  module.def("close_descriptors_in_child", &close_descriptors_in_child);
}

std::shared_ptr<Node> create(const NodeConfig& config) {
  return value_or_throw(without_gil([&] { return Node::create(config, keep_waiting_unless_signalled()); }));
}

std::shared_ptr<ElasticNode> create_elastic(const NodeConfig& config) {
  return value_or_throw(
      without_gil([&] { return ElasticNode::create(config, keep_waiting_unless_signalled()); }));
}

// `from`: dtype_from or reduce_op_from.
template <typename Code>
Code checked(Result<Code> (*from)(uint8_t), int value) {
  const auto code = from(value < 0 || value > 255 ? uint8_t{0} : static_cast<uint8_t>(value));
  if (!code) throw_if_failed(invalid_argument(code.status().message()));
  return *code;
}

using Numbers = std::vector<int64_t>;

Result<protocol::Shape> shape_of(const std::optional<Numbers>& dims, const Numbers& order,
                                 int64_t collective) {
  if (!dims) return protocol::Shape();
  if (collective >= 0) return protocol::Shape::of_collective(*dims, collective);
  return order.empty() ? protocol::Shape::of(*dims) : protocol::Shape::in_order(*dims, order);
}

// Keeps the GIL: it is short and never waits.
protocol::Handle push_pull(JobNode& node, std::string name, uintptr_t input, uintptr_t output, uint64_t bytes,
                           int dtype, int op, int root, int priority, int staleness,
                           const std::optional<Numbers>& dims, const Numbers& order, int64_t collective,
                           uint64_t step, std::shared_ptr<device::Transfer> transfer) {
  const auto shape = shape_of(dims, order, collective);
  if (!shape) {
    node.refuse(name, step, shape.status());
    throw_if_failed(shape.status());
  }
  const protocol::PushPull request{.name = std::move(name),
                                   .dtype = checked(&dtype_from, dtype),
                                   .bytes = bytes,
                                   .op = checked(&reduce_op_from, op),
                                   .root = static_cast<uint32_t>(root),
                                   .priority = priority,
                                   .staleness = static_cast<uint8_t>(staleness),
                                   .shape = *shape,
                                   .step = step};
  return value_or_throw(node.push_pull(request, {.input = reinterpret_cast<const std::byte*>(input),
                                                 .output = reinterpret_cast<std::byte*>(output),
                                                 .transfer = std::move(transfer)}));
}

// A push_pull in place of row-major memory, which is started again and again. Its constant arguments
// are converted from Python's objects once: that takes longer than all else that a start does here.
class PreparedPushPull {
 public:
  PreparedPushPull(std::shared_ptr<JobNode> node, std::string name, uint64_t bytes, int dtype, int op,
                   const Numbers& dims)
      : node_(std::move(node)),
        request_{.name = std::move(name),
                 .dtype = checked(&dtype_from, dtype),
                 .bytes = bytes,
                 .op = checked(&reduce_op_from, op),
                 .shape = value_or_throw(protocol::Shape::of(dims))} {}

  // Keeps the GIL: it is short and never waits.
  protocol::Handle start(uintptr_t memory, int priority, uint64_t step) {
    return start_at(memory, priority, step, nullptr);
  }
  std::pair<protocol::Handle, std::shared_ptr<device::Transfer>> start_on_device(uintptr_t memory,
                                                                                 int priority, uint64_t step,
                                                                                 int ordinal,
                                                                                 uintptr_t stream) {
    const auto transfer = begin_transfer(ordinal, stream);
    if (!transfer) node_->refuse(request_.name, step, transfer.status());
    throw_if_failed(transfer.status());
    return {start_at(memory, priority, step, *transfer), *transfer};
  }

 private:
  protocol::Handle start_at(uintptr_t memory, int priority, uint64_t step,
                            std::shared_ptr<device::Transfer> transfer) {
    request_.priority = priority;
    request_.step = step;
    auto* const tensor = reinterpret_cast<std::byte*>(memory);
    return value_or_throw(
        node_->push_pull(request_, {.input = tensor, .output = tensor, .transfer = std::move(transfer)}));
  }

  const std::shared_ptr<JobNode> node_;
  protocol::PushPull request_;  // guarded by the GIL
};

Status wait_until(JobNode& node, protocol::Handle handle, std::optional<double> timeout_s) {
  const TimeUs deadline_us = timeout_s ? now_us() + seconds_to_us(*timeout_s) : kNever;
  return without_gil([&] { return node.wait(handle, deadline_us, keep_waiting_unless_signalled()); });
}

py::dict metrics(const JobNode& node) {
  Metrics sums;
  node.add_metrics(sums);
  py::dict result = to_dict(sums);
  const auto rdma = node.rdma_counts();
#define BPS_SET(name, metric, meaning) result[metric] = static_cast<double>(rdma.name);
  BPS_REGISTRATION_COUNTS(BPS_SET)
#undef BPS_SET
  return result;
}

}  // namespace

// Both steps in one call: between processes that sleep while they wait, each line of Python more
// costs a microsecond, because the processor has to fetch the interpreter's code anew.
py::object push_pull_and_wait(JobNode& node, const std::string& name, const py::object& owner,
                              uintptr_t memory, uint64_t bytes, int dtype, int op, int root, int priority,
                              const std::optional<Numbers>& dims, int64_t collective,
                              std::optional<double> timeout_s, const py::object& keep) {
  const protocol::Handle handle = push_pull(node, name, memory, memory, bytes, dtype, op, root, priority, 0,
                                            dims, {}, collective, 0, nullptr);
  const Status status = wait_until(node, handle, timeout_s);
  if (!node.poll(handle)) {
    throw_if_failed(status);
    return py::none();
  }
  py::object kept;
  {
    const py::error_scope interrupt;
    kept = keep(name, owner, handle);
  }
  if (status.code() != StatusCode::kDeadlineExceeded) throw_if_failed(status);
  return kept;
}

void bind_node(py::module_& module) {
  using py::arg;
  bind_config(module);
  bind_c_api(module);
  py::class_<JobNode, std::shared_ptr<JobNode>>(module, "JobNode")
      .def_property_readonly("rank", &JobNode::rank)
      .def_property_readonly("size", &JobNode::size)
      .def_property_readonly("local_rank", &JobNode::local_rank)
      .def_property_readonly("local_size", &JobNode::local_size)
      .def_property_readonly("local_ranks", &JobNode::local_ranks)
      .def_property_readonly("num_servers", &JobNode::num_servers)
      .def(
          "declare",
          [](JobNode& node, const std::string& name, int dtype, uint64_t bytes) {
            throw_if_failed(node.declare(name, checked(&dtype_from, dtype), bytes));
          },
          arg("name"), arg("dtype"), arg("nbytes"))
      .def("push_pull", &push_pull, arg("name"), arg("input_ptr"), arg("output_ptr"), arg("nbytes"),
           arg("dtype"), arg("op"), arg("root"), arg("priority"), arg("staleness") = 0,
           arg("shape") = py::none(), arg("order") = Numbers(), arg("collective") = -1, arg("step") = 0,
           arg("transfer") = nullptr)
      .def(
          "refuse",
          [](JobNode& node, const std::string& name, const std::string& why, uint64_t step) {
            node.refuse(name, step, invalid_argument(why));
          },
          arg("name"), arg("why"), arg("step") = 0)
      .def(
          "poll", [](JobNode& node, protocol::Handle handle) { return value_or_throw(node.poll(handle)); },
          arg("handle"))
      .def(
          "wait",
          [](JobNode& node, protocol::Handle handle, std::optional<double> timeout_s) {
            throw_if_failed(wait_until(node, handle, timeout_s));
          },
          arg("handle"), arg("timeout_s") = py::none())
      .def("push_pull_and_wait", &push_pull_and_wait, arg("name"), arg("owner"), arg("memory"), arg("nbytes"),
           arg("dtype"), arg("op"), arg("root"), arg("priority"), arg("shape"), arg("collective"),
           arg("timeout_s"), arg("keep"))
      .def(
          "announce", [](JobNode& node, protocol::Handle handle) { throw_if_failed(node.announce(handle)); },
          arg("handle"))
      .def("next_done", &JobNode::next_done, WithoutGil())
      .def("barrier",
           [](JobNode& node) {
             throw_if_failed(without_gil([&] { return node.barrier(keep_waiting_unless_signalled()); }));
           })
      .def("failure", [](const JobNode& node) { return node.failure().message(); })
      .def("metrics", &metrics)
      .def("offer_to_c", [](std::shared_ptr<JobNode> node) { c_api::enter_job(std::move(node)); })
      .def("wait_until_done",
           [](JobNode& node) {
             throw_if_failed(
                 without_gil([&] { return node.wait_until_done(keep_waiting_unless_signalled()); }));
           })
      .def("shutdown", &JobNode::shutdown, arg("cause") = "", arg("after") = "", WithoutGil());
  py::class_<Node, JobNode, std::shared_ptr<Node>>(module, "Node", py::is_final())
      .def(py::init(&create), arg("config"));
  py::class_<ElasticNode, JobNode, std::shared_ptr<ElasticNode>>(module, "ElasticNode", py::is_final())
      .def(py::init(&create_elastic), arg("config"))
      .def("commit",
           [](ElasticNode& node) {
             const auto change =
                 value_or_throw(without_gil([&] { return node.commit(keep_waiting_unless_signalled()); }));
             return py::make_tuple(change.is_entered, change.has_newcomers);
           })
      .def("note_state", &ElasticNode::note_state)
      .def("members", &ElasticNode::members)
      .def("coordinator_failure",
           [](const ElasticNode& node) { return node.coordinator_failure().message(); })
      .def("leave_others", &ElasticNode::leave_others, WithoutGil());
  py::class_<PreparedPushPull>(module, "PreparedPushPull", py::is_final())
      .def(py::init<std::shared_ptr<JobNode>, std::string, uint64_t, int, int, Numbers>(), arg("node"),
           arg("name"), arg("nbytes"), arg("dtype"), arg("op"), arg("shape"))
      .def("start", &PreparedPushPull::start, arg("memory"), arg("priority"), arg("step"))
      .def("start_on_device", &PreparedPushPull::start_on_device, arg("memory"), arg("priority"), arg("step"),
           arg("ordinal"), arg("stream"));
}

}  // namespace byteps::bindings
