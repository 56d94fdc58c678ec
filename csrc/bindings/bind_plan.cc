#include <pybind11/stl.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/status_to_python.h"
#include "protocol/placement.h"
#include "sim/scale_bound.h"
#include "sim/scale_job.h"
#include "sim/scale_model.h"

namespace py = pybind11;

namespace byteps::bindings {
namespace {

using protocol::ReducerHost;
using Speeds = std::vector<double>;
using Layers = std::vector<std::pair<uint64_t, double>>;              // bytes, work
using Gradients = std::vector<std::tuple<uint64_t, double, double>>;  // bytes, ready, needed

std::vector<ReducerHost> reducer_hosts_of(const Speeds& machines_mbps, const Speeds& servers_mbps) {
  if (machines_mbps.empty())
    throw_if_failed(invalid_argument("placement: expected a worker machine, got none"));
  std::vector<ReducerHost> reducer_hosts;
  for (const double mbps : machines_mbps) reducer_hosts.push_back({.nic_mbps = mbps});
  for (const double mbps : servers_mbps) reducer_hosts.push_back({.is_server = true, .nic_mbps = mbps});
  return reducer_hosts;
}

std::vector<double> reducer_host_shares(const Speeds& machines_mbps, const Speeds& servers_mbps,
                                        const std::string& placement) {
  const auto policy = value_or_throw(protocol::placement_policy_from(placement));
  return value_or_throw(protocol::reducer_host_shares(reducer_hosts_of(machines_mbps, servers_mbps), policy));
}

double predicted_seconds(const Speeds& machines_mbps, const Speeds& servers_mbps,
                         const std::vector<double>& shares, uint64_t bytes) {
  const std::vector<ReducerHost> reducer_hosts = reducer_hosts_of(machines_mbps, servers_mbps);
  if (shares.size() != reducer_hosts.size()) {
    throw_if_failed(invalid_argument("shares: expected " + std::to_string(reducer_hosts.size()) + ", got " +
                                     std::to_string(shares.size())));
  }
  return protocol::predicted_seconds(reducer_hosts, shares, bytes);
}

py::tuple model_layers(const std::string& name) {
  const sim::NamedModel model = value_or_throw(sim::model_named(name));
  Layers layers;
  for (const sim::Layer& layer : model.layers) layers.emplace_back(layer.gradient_bytes, layer.work);
  return py::make_tuple(layers, model.compute_s);
}

py::tuple model_gradients(const Layers& layers, double compute_s) {
  std::vector<sim::Layer> each;
  for (const auto& [bytes, work] : layers) each.push_back({.gradient_bytes = bytes, .work = work});
  const sim::ScaleModel model = sim::model_of(each, compute_s);
  Gradients gradients;
  for (const sim::Gradient& gradient : model.gradients)
    gradients.emplace_back(gradient.bytes, gradient.ready_s, gradient.needed_s);
  return py::make_tuple(gradients, model.backward_s, model.forward_s);
}

sim::ScaleModel model_of(const Gradients& gradients, double backward_s, double forward_s) {
  sim::ScaleModel model{.gradients = {}, .backward_s = backward_s, .forward_s = forward_s};
  for (const auto& [bytes, ready_s, needed_s] : gradients)
    model.gradients.push_back({.bytes = bytes, .ready_s = ready_s, .needed_s = needed_s});
  return model;
}

double bound_seconds(const Speeds& machines_mbps, const Speeds& servers_mbps, const std::string& placement,
                     uint64_t bytes, uint32_t ranks_per_machine, uint32_t threads, double sum_bytes_per_s) {
  const sim::ScaleOptions options{
      .reducer_hosts = reducer_hosts_of(machines_mbps, servers_mbps),
      .placement = value_or_throw(protocol::placement_policy_from(placement)),
      .model = {},
      .ranks_per_machine = ranks_per_machine,
      .threads = threads,
      .sum_bytes_per_s = sum_bytes_per_s,
  };
  return value_or_throw(sim::bound_seconds(options, bytes));
}

py::dict simulate_step(const Speeds& machines_mbps, const Speeds& servers_mbps, const std::string& placement,
                       const Gradients& gradients, double backward_s, double forward_s, bool waits_for_all,
                       uint64_t partition_bytes, uint64_t credit_bytes, double latency_s,
                       uint32_t ranks_per_machine, uint32_t threads, double sum_bytes_per_s) {
  const sim::ScaleOptions options{
      .reducer_hosts = reducer_hosts_of(machines_mbps, servers_mbps),
      .placement = value_or_throw(protocol::placement_policy_from(placement)),
      .model = model_of(gradients, backward_s, forward_s),
      .waits_for_all = waits_for_all,
      .partition_bytes = partition_bytes,
      .credit_bytes = credit_bytes,
      .latency_s = latency_s,
      .ranks_per_machine = ranks_per_machine,
      .threads = threads,
      .sum_bytes_per_s = sum_bytes_per_s,
  };
  const sim::ScaleResult result =
      value_or_throw(without_gil([&] { return sim::simulate(options, keep_waiting_unless_signalled()); }));
  py::dict answer;
  answer["predicted_s"] = result.predicted_s;
  answer["summed_s"] = result.summed_s;
  answer["step_s"] = result.step_s;
  answer["partitions"] = result.partitions;
  answer["larger_partition_bytes"] = result.larger_partition_bytes;
  return answer;
}

}  // namespace

void bind_plan(py::module_& module) {
  using py::arg;
  module.def("reducer_host_shares", &reducer_host_shares, arg("machines_mbps"), arg("servers_mbps"),
             arg("placement"));
  module.def("predicted_seconds", &predicted_seconds, arg("machines_mbps"), arg("servers_mbps"),
             arg("shares"), arg("nbytes"));
  module.def("bound_seconds", &bound_seconds, arg("machines_mbps"), arg("servers_mbps"), arg("placement"),
             arg("nbytes"), arg("ranks_per_machine"), arg("threads"), arg("sum_bytes_per_s"));
  module.def("model_layers", &model_layers, arg("name"));
  module.def("model_gradients", &model_gradients, arg("layers"), arg("compute_s"));
  module.def("simulate_step", &simulate_step, arg("machines_mbps"), arg("servers_mbps"), arg("placement"),
             arg("gradients"), arg("backward_s"), arg("forward_s"), arg("waits_for_all"),
             arg("partition_bytes"), arg("credit_bytes"), arg("latency_s"), arg("ranks_per_machine"),
             arg("threads"), arg("sum_bytes_per_s"));
}

}  // namespace byteps::bindings
