// A Status as the exception of byteps.errors with the same meaning.
#pragma once

#include <pybind11/pybind11.h>

#include "base/status.h"
#include "node/node.h"

namespace byteps::bindings {

// With the GIL held. Throws if `status` is not ok; a Python exception that is pending (Ctrl-C) goes first.
void throw_if_failed(const Status& status);

template <typename T>
T value_or_throw(Result<T> result) {
  throw_if_failed(result.status());
  return std::move(result).value();
}

// For waits without the GIL: runs Python's signal handlers and stops waiting if one has raised.
node::KeepWaiting keep_waiting_unless_signalled();

}  // namespace byteps::bindings
