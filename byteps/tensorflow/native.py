"""The operators of this adapter (csrc/tensorflow/), loaded into the TensorFlow of this process."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import tensorflow as tf

from byteps import _core
from byteps.errors import UnsupportedError
from byteps.ops import BROADCAST, check_priority

__all__ = ["broadcast_node", "is_compiled_by_xla", "keep", "push_pull_node", "step_node"]

_PATH = Path(__file__).with_name("_ops.so")


def _load() -> Any:
    """The module of functions that TensorFlow makes of the library.

    Raises:
        UnsupportedError: the library is not there, or of another TensorFlow API or byteps.
    """
    if not _PATH.exists():
        raise UnsupportedError(f"{_PATH} is missing: this byteps was built without it; `pip install byteps` again")
    _make_tensorflow_visible()
    try:
        ops = tf.load_op_library(str(_PATH))
    except tf.errors.OpError as error:
        raise UnsupportedError(
            f"TensorFlow {tf.__version__} cannot load the operators of byteps, which need the C API of 2.15 or newer: "
            f"{error.message}"
        ) from None
    expected = ctypes.CDLL(str(_PATH)).bps_tensorflow_set_core(ctypes.c_void_p(_core.C_API))
    if expected != 0:
        raise UnsupportedError(f"{_PATH} is of another byteps: it needs version {expected} of the core's C API")
    return ops


def _make_tensorflow_visible() -> None:
    """Some releases load themselves so that the C API cannot be found by others."""
    if not hasattr(ctypes.CDLL(None), "TF_NewAsyncKernelBuilder"):
        for library in sorted(Path(tf.sysconfig.get_lib()).glob("libtensorflow_framework.so*")):
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


_ops = _load()


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
    """Reduces `tensor` over the ranks: in a graph, a node that no thread waits in; eagerly, waits.

    Args:
        tensor: of any shape, and a dtype that the core knows.
        name: the same on all ranks.
        op: the core's code.
        priority: larger ones go first.
        root_rank: if `op` is broadcast.
        stateful: the node runs whenever its function does, and in the program's order with other such nodes.
        step: a `step_node`'s, of what else is exchanged in the same step. None: the n-th push_pulls of a name meet.

    Returns:
        The result, in the memory of `tensor` if nobody else needs it.
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
    """A number that counts how often nodes of this label have run in the job. Gradients of different steps never meet.

    So where a function breaks off halfway on one rank, and its program goes on, that rank's gradients meet those of the
    others again.
    """
    return _ops.byteps_anchor(label=label)


def broadcast_node(tensor: tf.Tensor, root_rank: int, name: str) -> tf.Tensor:
    """Rank `root_rank`'s tensor, by a stateful node. See `push_pull_node`."""
    return push_pull_node(tensor, name, BROADCAST, 0, root_rank=root_rank, stateful=True)


def _anchor() -> tf.Tensor:
    """What keeps TensorFlow from taking the result for a constant, once for each graph.

    A rank whose input is a constant, as a gradient can be, would take part in the first round only, and wrongly hope
    that the others' inputs are constants too.
    """
    graph = tf.compat.v1.get_default_graph()
    if not hasattr(graph, "_byteps_anchor"):
        with tf.control_dependencies(None):
            graph._byteps_anchor = _ops.byteps_anchor()
    return graph._byteps_anchor


def _check_not_compiled(name: str) -> None:
    """TensorFlow would raise as well, but say nothing that helps."""
    if is_compiled_by_xla():
        raise UnsupportedError(
            f"push_pull of '{name}' in a function with jit_compile=True: XLA cannot wait for other ranks. Compile what "
            "computes the gradients, and call push_pull (or the optimizer) in a function around it without jit_compile"
        )


def is_compiled_by_xla() -> bool:
    """Whether the function that is being traced has jit_compile=True, or one around it."""
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not None:
        context = graph._get_control_flow_context()
        if context is not None and context.IsXLAContext():
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def keep(tensor: tf.Tensor) -> None:
    """Makes a function compute `tensor` even if nobody uses it."""
    if not tf.executing_eagerly():
        _ops.byteps_keep(tensor)
