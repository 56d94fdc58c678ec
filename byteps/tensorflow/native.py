"""The operators of this adapter (csrc/tensorflow/), which this module loads into TensorFlow."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import tensorflow as tf

from byteps import _core, errors
from byteps.errors import UnsupportedError
from byteps.native_library import check_built, load_library
from byteps.ops import BROADCAST, check_priority

__all__ = ["EXCEPTIONS", "broadcast_node", "is_compiled_by_xla", "keep", "push_pull_node", "step_node"]

_PATH = Path(__file__).with_name("_ops.so")


def _load() -> tuple[Any, ctypes.CDLL]:
    """Loads the library. Returns TensorFlow's module of its operators, and the library.

    Raises:
        UnsupportedError: the library is missing, or of another version of byteps; or this
            TensorFlow lacks its C API.
    """
    check_built(_PATH)
    _make_tensorflow_visible()
    try:
        ops = tf.load_op_library(str(_PATH))
    except tf.errors.OpError as error:
        raise UnsupportedError(
            f"TensorFlow {tf.__version__} cannot load the operators of byteps, which need the C API of 2.15 or newer: "
            f"{error.message}"
        ) from None
    return ops, load_library(_PATH, "bps_tensorflow_set_core")


def _make_tensorflow_visible() -> None:
    """Makes TensorFlow's C API visible to other libraries, which some releases do not do."""
    if not hasattr(ctypes.CDLL(None), "TF_NewAsyncKernelBuilder"):
        for library in sorted(Path(tf.sysconfig.get_lib()).glob("libtensorflow_framework.so*")):
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


_ops, _library = _load()

# The exceptions of byteps by those of TensorFlow that its operators raise.
EXCEPTIONS = {
    tf.compat.v1.errors.exception_type_from_error_code(_library.bps_tensorflow_code(code)): getattr(errors, name)
    for code, name in _core.ERRORS.values()
}


def push_pull_node(
    tensor: tf.Tensor,
    name: str,
    op: int,
    priority: int,
    *,
    root_rank: int = 0,
    stateful: bool = False,
    step: tf.Tensor | None = None,
) -> tf.Tensor:
    """Reduces `tensor` over the ranks. Eagerly it waits; in a graph no thread waits.

    Args:
        tensor: of any shape, and a dtype that the core knows.
        name: the same on all ranks.
        op: operation, as the core's code.
        priority: larger ones go first.
        root_rank: the root, if `op` is broadcast.
        stateful: the node runs whenever its function runs, in the program's order with other
            stateful nodes.
        step: the result of a `step_node`, common to all gradients of a step. None: the n-th
            push_pulls of the name belong together.

    Returns:
        The result, in the memory of `tensor` if it has no other use.
    """
    _check_not_compiled(name)
    check_priority(name, priority)
    node = _ops.byteps_collective if stateful else _ops.byteps_push_pull
    anchors = [] if stateful or tf.executing_eagerly() else [_anchor()]
    if step is not None:
        anchors = [step]
    return node(
        tensor,
        anchors,
        tensor_name=name,
        reduce_op=op,
        root_rank=root_rank,
        priority=priority,
    )


def step_node(label: str) -> tf.Tensor:
    """Returns the number of the step: the number of runs of nodes of this label in the job.

    The core never reduces gradients of different steps together. So if a function fails halfway on
    one rank and its program goes on, the gradients of its next step are those of the others' next
    step.
    """
    return _ops.byteps_anchor(label=label)


def broadcast_node(tensor: tf.Tensor, root_rank: int, name: str) -> tf.Tensor:
    """Returns rank `root_rank`'s tensor, by a stateful node. See `push_pull_node`."""
    return push_pull_node(tensor, name, BROADCAST, 0, root_rank=root_rank, stateful=True)


def _anchor() -> tf.Tensor:
    """Returns an input that is never constant, one for each graph.

    Without it TensorFlow would compute a node with constant inputs only once, as a gradient can be
    constant on one rank, while the other ranks wait in later rounds.
    """
    graph = tf.compat.v1.get_default_graph()
    if not hasattr(graph, "_byteps_anchor"):
        with tf.control_dependencies(None):
            graph._byteps_anchor = _ops.byteps_anchor()
    return graph._byteps_anchor


def _check_not_compiled(name: str) -> None:
    """Raises an error with advice, which TensorFlow's own error lacks."""
    if is_compiled_by_xla():
        raise UnsupportedError(
            f"push_pull of '{name}' in a function with jit_compile=True: XLA cannot wait for other ranks. Compile the "
            "function that computes the gradients, and call push_pull (or the optimizer) in a function around it "
            "without jit_compile"
        )


def is_compiled_by_xla() -> bool:
    """Whether the function that is being traced, or an outer one, has jit_compile=True."""
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not None:
        context = graph._get_control_flow_context()
        if context is not None and context.IsXLAContext():
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def keep(tensor: tf.Tensor) -> None:
    """Makes a function compute `tensor` even if it is not used."""
    if not tf.executing_eagerly():
        _ops.byteps_keep(tensor)
