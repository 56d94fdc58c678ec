// Collectives of torch.distributed in which the calling thread waits. They are here, and not in
// Python, because the thread sleeps while it waits: after each switch the processor has to fetch the
// interpreter's code anew, so that a line of Python costs a microsecond.
#include <pybind11/chrono.h>
#include <pybind11/stl.h>

#include <chrono>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "bindings/bindings.h"
#include "bindings/name_family.h"
#include "bindings/torch_tensor.h"
#include "node/node.h"

namespace py = pybind11;

namespace byteps::bindings {
namespace {

using node::JobNode;

constexpr TimeUs kTickUs = 1'000'000;
constexpr int kByteCode = static_cast<int>(DType::kUInt8);

// What BlockingCalls needs of its group, all of Python.
struct GroupObjects {
  py::object in_flight;  // byteps.in_flight.InFlight
  py::object node;       // its node, which is another one after a fork
  py::dict handles;      // its handles, by name
  py::object keep;       // makes a handle of a push_pull that goes on
  py::dict on_release;   // callbacks of reserved names
  py::object numbers;    // iterator: numbers of the group's collectives
  py::object go_on;      // called with a handle and the number of its collective
};

class BlockingCalls {
 public:
  BlockingCalls(std::shared_ptr<JobNode> node, std::shared_ptr<NameFamily> names,
                std::shared_ptr<TensorReader> reader, py::list operators, double limit_s, GroupObjects group)
      : limit_s(limit_s),
        names_(std::move(names)),
        reader_(std::move(reader)),
        operators_(std::move(operators)),
        group_(std::move(group)),
        node_(std::move(node)) {}

  py::object all_reduce(const py::handle& tensors, const py::handle& opts) {
    const std::optional<HostMemory> memory = memory_of(tensors, opts);
    if (!memory) return py::bool_(false);
    const py::object wanted = attribute(opts, reduce_op_);
    for (const py::handle each : operators_) {
      const auto pair = py::reinterpret_borrow<py::tuple>(each);
      if (wanted.equal(pair[0])) return run(*memory, pair[1].cast<int>(), 0, tensors, opts);
    }
    return py::bool_(false);
  }

  py::object broadcast(const py::handle& tensors, const py::handle& opts) {
    std::optional<HostMemory> memory = memory_of(tensors, opts);
    if (!memory) return py::bool_(false);
    const auto root = attribute(opts, root_rank_).cast<int64_t>();
    if (root < 0 || root >= node_->size()) return py::bool_(false);
    memory->dtype = kByteCode;
    memory->elements = static_cast<int64_t>(memory->bytes);
    return run(*memory, static_cast<int>(ReduceOp::kBroadcast), static_cast<int>(root), tensors, opts);
  }

  double limit_s;

 private:
  std::optional<HostMemory> memory_of(const py::handle& tensors, const py::handle& opts) const {
    if (!PyList_CheckExact(tensors.ptr()) || PyList_GET_SIZE(tensors.ptr()) != 1) return std::nullopt;
    if (opts.is_none() || attribute(opts, async_op_).ptr() != Py_False) return std::nullopt;
    if (!attribute(group_.in_flight, node_name_).is(group_.node)) return std::nullopt;
    return reader_->read(PyList_GET_ITEM(tensors.ptr(), 0));
  }

  py::object run(const HostMemory& memory, int op, int root, const py::handle& tensors,
                 const py::handle& opts) {
    const double given_s = attribute(opts, timeout_).cast<std::chrono::duration<double>>().count();
    const auto tensor = py::reinterpret_borrow<py::object>(PyList_GET_ITEM(tensors.ptr(), 0));
    // From here on no Python code runs, so no other thread, until the name is reserved.
    const std::string& next = names_->peek();
    if (names_->is_held() || names_->is_reserved(next) || group_.handles.contains(next))
      return py::bool_(false);
    const py::object number = py::reinterpret_steal<py::object>(PyIter_Next(group_.numbers.ptr()));
    const int64_t collective = names_->next_number();
    const std::string name = names_->next_name();
    const Reservation reservation(*this, name);
    try {
      const py::object handle =
          push_pull_and_wait(*node_, name, tensor, memory.address, memory.bytes, memory.dtype, op, root, 0,
                             {{memory.elements}}, collective, given_s > 0 ? given_s : limit_s, group_.keep);
      tick();
      return handle.is_none() ? py::bool_(true) : group_.go_on(handle, number);
    } catch (py::error_already_set&) {
      if (group_.handles.contains(name)) {  // a signal's handler has raised
        const py::error_scope raised;
        group_.go_on(group_.handles[py::str(name)], number);
      }
      throw;
    }
  }

  // No other call gets the name meanwhile. Other threads may wait for the end.
  class Reservation {
   public:
    Reservation(BlockingCalls& calls, const std::string& name) : calls_(calls), name_(name) {
      calls_.names_->reserve(name_);
    }
    ~Reservation() {
      calls_.names_->release(name_);
      if (calls_.group_.on_release.empty()) return;
      const py::error_scope raised;
      try {
        calls_.group_.in_flight.attr("names").attr("release")(name_);
      } catch (py::error_already_set& error) {
        error.discard_as_unraisable("release of a collective's name");
      }
    }
    Reservation(const Reservation&) = delete;
    Reservation& operator=(const Reservation&) = delete;

   private:
    BlockingCalls& calls_;
    const std::string& name_;
  };

  // Samples of the speed (byteps/speed.py) are wanted every ten seconds.
  void tick() {
    const TimeUs now = now_us();
    if (now - last_tick_us_ < kTickUs) return;
    last_tick_us_ = now;
    group_.in_flight.attr("speed").attr("tick")();
  }

  const std::shared_ptr<NameFamily> names_;
  const std::shared_ptr<TensorReader> reader_;
  const py::list operators_;
  const GroupObjects group_;
  const std::shared_ptr<JobNode> node_;
  const py::str async_op_ = interned("asyncOp"), reduce_op_ = interned("reduceOp"),
                root_rank_ = interned("rootRank"), timeout_ = interned("timeout"),
                node_name_ = interned("node");
  TimeUs last_tick_us_ = 0;
};

std::unique_ptr<BlockingCalls> make_blocking_calls(std::shared_ptr<NameFamily> names,
                                                   std::shared_ptr<TensorReader> reader, py::list operators,
                                                   double limit_s, py::object in_flight, py::dict handles,
                                                   py::object keep, py::dict on_release, py::object numbers,
                                                   py::object go_on) {
  GroupObjects group{.in_flight = in_flight,
                     .node = in_flight.attr("node"),
                     .handles = std::move(handles),
                     .keep = std::move(keep),
                     .on_release = std::move(on_release),
                     .numbers = std::move(numbers),
                     .go_on = std::move(go_on)};
  auto node = group.node.cast<std::shared_ptr<JobNode>>();
  return std::make_unique<BlockingCalls>(std::move(node), std::move(names), std::move(reader),
                                         std::move(operators), limit_s, std::move(group));
}

}  // namespace

void bind_collectives(py::module_& module) {
  using py::arg;
  module.attr("AUTOMATIC_NAMES") = kAutomaticNames;
  py::class_<NameFamily, std::shared_ptr<NameFamily>>(module, "NameFamily", py::is_final())
      .def(py::init<const std::string&>(), arg("family"))
      .def("next_number", &NameFamily::next_number)
      .def("next_name", &NameFamily::next_name)
      .def("hold", &NameFamily::hold)
      .def("let_go", &NameFamily::let_go)
      .def("reserve", &NameFamily::reserve, arg("name"))
      .def("release", &NameFamily::release, arg("name"))
      .def("is_reserved", &NameFamily::is_reserved, arg("name"))
      .def("reserved", &NameFamily::reserved);
  py::class_<TensorReader, std::shared_ptr<TensorReader>>(module, "TensorReader", py::is_final())
      .def(py::init<py::tuple, py::dict, py::object>(), arg("types"), arg("codes"), arg("strided"))
      .def(
          "read",
          [](const TensorReader& reader,
             const py::handle& tensor) -> std::optional<std::pair<uintptr_t, uint64_t>> {
            const std::optional<HostMemory> memory = reader.read(tensor);
            if (!memory) return std::nullopt;
            return std::pair(memory->address, memory->bytes);
          },
          arg("tensor"));
  py::class_<BlockingCalls>(module, "BlockingCalls", py::is_final())
      .def(py::init(&make_blocking_calls), arg("names"), arg("reader"), arg("operators"), arg("limit_s"),
           arg("in_flight"), arg("handles"), arg("keep"), arg("on_release"), arg("numbers"), arg("go_on"))
      .def_readwrite("limit_s", &BlockingCalls::limit_s)
      .def("all_reduce", &BlockingCalls::all_reduce, arg("tensors"), arg("opts"))
      .def("broadcast", &BlockingCalls::broadcast, arg("tensors"), arg("opts"));
}

}  // namespace byteps::bindings
