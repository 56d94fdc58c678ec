// Raises a Status as the corresponding exception of byteps.errors; calls without the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include "base/event_flag.h"
#include "base/status.h"

namespace byteps::bindings {

// Requires the GIL. Throws if `status` is not ok; a pending Python exception (Ctrl-C) takes
// precedence.
void throw_if_failed(const Status& status);

template <typename T>
T value_or_throw(Result<T> result) {
  throw_if_failed(result.status());
  return std::move(result).value();
}

// Requires the GIL, and releases it while `f` runs; `f` must not use Python objects. Returns f().
template <typename F>
auto without_gil(F&& f) {
  const pybind11::gil_scoped_release release;
  return f();
}

// A predicate for waits without the GIL: runs Python's signal handlers, and ends the wait if one
// has raised.
KeepWaiting keep_waiting_unless_signalled();

}  // namespace byteps::bindings
