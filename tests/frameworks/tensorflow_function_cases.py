"""Operators in functions: when they run, under which names, in which memory."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from frameworks.tensorflow_expect import assert_equal, nodes_of, push_pulls, total
from support.expect import expect_error

import byteps.tensorflow as bps
from byteps import _core, rank, size
from byteps.errors import UnsupportedError
from byteps.tensorflow.exchange import GradientOptions, exchange_gradients

# --- In functions


def case_every_dtype_in_a_function() -> None:
    for dtype in (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int8, tf.uint8, tf.int32, tf.int64):
        function = tf.function(lambda x, dtype=dtype: bps.push_pull(x, average=False, name=f"dtype.{dtype.name}"))
        result = function(tf.cast(tf.fill([3, 2], rank() + 1), dtype))
        assert result.dtype == dtype and result.shape == (3, 2)
        assert_equal(tf.cast(result, tf.int32), np.full((3, 2), total()))


def case_a_push_pull_that_nobody_uses_happens_in_every_call() -> None:
    @tf.function
    def function(x: Any) -> Any:
        bps.push_pull(x, name="unused")
        return x + 1

    function(tf.ones(3))
    before = push_pulls()
    for _ in range(5):
        function(tf.ones(3))
    assert push_pulls() - before == 5


def case_broadcasts_and_gathers_of_constants_happen_in_every_call() -> None:
    @tf.function
    def function() -> Any:
        bps.allgather(tf.constant([1, 2]), name="gathered constant")
        return bps.broadcast(tf.constant([rank()]), size() - 1, name="constant")

    function()
    before = push_pulls()
    for _ in range(5):
        assert_equal(function(), [size() - 1])
    gathered = 1 + size()  # numbers of rows, and each rank's rows
    assert push_pulls() - before == 5 * (1 + gathered)


def case_a_push_pull_of_a_constant_happens_in_every_call() -> None:
    """Or ranks for which it is one would be missed by those for which it is not."""

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def function(x: Any) -> Any:
        mine = tf.ones(3) if rank() == 0 else x[:3]
        return exchange_gradients([mine], ["constant on one rank"], GradientOptions(op=bps.Sum))

    for _ in range(5):
        (result,) = function(tf.ones(4))
        assert_equal(result, np.full(3, size()))


def case_broadcasts_keep_the_order_of_the_program() -> None:
    @tf.function
    def function() -> Any:
        return [bps.broadcast(tf.constant([rank()]), 0, name=f"ordered.{i}") for i in range(5)]

    broadcasts = nodes_of(function, type_prefix="BytepsCollective")
    assert len(broadcasts) == 5
    for earlier, later in pairwise(broadcasts):
        assert earlier in later.control_inputs
    assert_equal(function(), np.zeros((5, 1)))


def case_push_pulls_of_a_function_do_not_wait_for_each_other() -> None:
    @tf.function
    def function(x: Any) -> Any:
        return [bps.push_pull(x + float(i), name=f"independent.{i}") for i in range(20)]

    nodes = nodes_of(function, tf.ones(4), type_prefix="BytepsPushPull")
    assert len(nodes) == 20
    assert not any(node.control_inputs for node in nodes)
    for i, result in enumerate(function(tf.ones(4))):
        assert_equal(result, np.full(4, 1 + i))


def case_loops_and_branches() -> None:
    @tf.function
    def function(x: Any, many: Any) -> Any:
        for _ in tf.range(many):
            x = bps.push_pull(x, average=False, name="in a loop")
        return tf.cond(x[0] > 0, lambda: bps.push_pull(x * 2, name="in a branch"), lambda: x)

    assert_equal(function(tf.ones(3), 3), np.full(3, 2 * size() ** 3))


def case_shapes_that_are_known_when_it_runs_only() -> None:
    function = tf.function(
        lambda x: bps.push_pull(x, average=False, name="changing"), input_signature=[tf.TensorSpec([None, 2])]
    )
    for rows in (3, 5, 0, 3):
        assert_equal(function(tf.fill([rows, 2], float(rank() + 1))), np.full((rows, 2), total()))


def case_functions_of_xla_inside_and_around() -> None:
    inner = tf.function(lambda x: tf.reduce_sum(x * 2, keepdims=True), jit_compile=True)
    outer = tf.function(lambda x: bps.push_pull(inner(x), average=False, name="around xla"))
    assert_equal(outer(tf.ones(5)), [10 * size()])
    with expect_error(UnsupportedError, "'within xla'", "jit_compile=True"):
        tf.function(lambda x: bps.push_pull(x, name="within xla"), jit_compile=True)(tf.ones(3))


def case_a_saved_function() -> None:
    module = tf.Module()
    module.function = tf.function(
        lambda x: bps.push_pull(x, average=False, name="saved"), input_signature=[tf.TensorSpec([3])]
    )
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder)
        assert_equal(tf.saved_model.load(folder).function(tf.ones(3)), np.full(3, size()))


def case_many_executions_of_one_function() -> None:
    function = tf.function(lambda x: [bps.push_pull(x + float(i), name=f"again.{i}") for i in range(10)])
    for step in range(50):
        assert_equal(function(tf.fill([7], float(step)))[9], np.full(7, step + 9))


# --- Names


def case_functions_without_names_meet_whatever_else_a_rank_has_traced() -> None:
    def function(x: Any) -> Any:
        return bps.push_pull(bps.push_pull(x, average=False) + 1, average=False)

    for _ in range(rank()):  # like a metric that one rank computes
        tf.function(function).get_concrete_function(tf.ones(2))
    assert_equal(tf.function(function)(tf.ones(2)), np.full(2, (size() + 1) * size()))


def case_a_function_traced_again_for_another_shape() -> None:
    function = tf.function(lambda x: bps.push_pull(x, average=False))
    for length in (3, 4, 3):
        assert_equal(function(tf.ones(length)), np.full(length, size()))


def case_eager_calls_hold_no_memory() -> None:
    def run(calls: int) -> int:
        for _ in range(calls):
            bps.push_pull(tf.ones(8))
            bps.allgather(tf.ones([1 + rank(), 3]))
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4  # KiB

    before = run(200)
    assert run(1000) - before < 4096


def case_same_names_of_variables_are_told_apart() -> None:
    from byteps.tensorflow.tensor import variable_names

    variables = [tf.Variable([1.0], name="w") for _ in range(3)]
    names = variable_names(variables, "told.")
    assert len(set(names)) == 3 and names[0].startswith("told.w")
    assert variable_names(variables[::-1], "told.") == names[::-1]
    del variables[1]
    assert variable_names([tf.Variable([1.0], name="w")], "told.")[0] not in names


# --- Memory


class Request(ctypes.Structure):
    """BpsPushPull of csrc/c_api/c_api.h."""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_bytes", ctypes.c_size_t),
        ("bytes", ctypes.c_uint64),
        ("input", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("dtype", ctypes.c_uint8),
        ("op", ctypes.c_uint8),
        ("root", ctypes.c_uint32),
        ("priority", ctypes.c_int32),
        ("staleness", ctypes.c_uint8),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
        ("num_dims", ctypes.c_size_t),
        ("step", ctypes.c_uint64),
        ("on_done", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)),
        ("context", ctypes.c_void_p),
    )


PushPull = ctypes.CFUNCTYPE(None, ctypes.POINTER(Request))
Refuse = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_char_p)
NextStep = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t)


class Table(ctypes.Structure):
    """BpsCApi of csrc/c_api/c_api.h."""

    _fields_ = (("version", ctypes.c_uint32), ("push_pull", PushPull), ("refuse", Refuse), ("next_step", NextStep))


@contextmanager
def watched_memory() -> Iterator[dict[str, bool]]:
    """Takes the core's place.

    Yields what push_pull is given: name -> whether the output is in the input's memory.
    """
    in_place: dict[str, bool] = {}

    def push_pull(request: Any) -> None:
        call = request.contents
        in_place[ctypes.string_at(call.name, call.name_bytes).decode()] = call.input == call.output
        ctypes.memset(call.output, 0, call.bytes)
        call.on_done(call.context, 0, b"")

    library = ctypes.CDLL(str(Path(bps.__file__).with_name("_ops.so")))
    table = Table(ctypes.c_uint32.from_address(_core.C_API).value, PushPull(push_pull))
    assert library.bps_tensorflow_set_core(ctypes.byref(table)) == 0
    try:
        yield in_place
    finally:
        library.bps_tensorflow_set_core(ctypes.c_void_p(_core.C_API))


def case_the_output_is_in_the_memory_of_an_input_that_nobody_else_needs() -> None:
    @tf.function
    def function(x: Any) -> Any:
        product = x * 3.0
        return bps.push_pull(x + 1.0, name="alone"), bps.push_pull(product, name="shared") + product

    x = tf.ones(100)
    with watched_memory() as in_place:
        function(x)
        bps.push_pull(x, name="kept")
    assert in_place == {"alone": True, "shared": False, "kept": False}, in_place
    assert_equal(x, np.ones(100))
