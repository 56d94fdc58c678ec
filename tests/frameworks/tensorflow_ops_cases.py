"""Operators of byteps.tensorflow, eagerly and in functions. Every case runs on all ranks at once."""

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
from support.expect import expect_error

import byteps.tensorflow as bps
from byteps import _core, rank, size
from byteps.errors import InvalidArgumentError, UnsupportedError
from byteps.tensorflow.exchange import Options, exchange_gradients


def total() -> int:
    """The sum of rank + 1 over all ranks."""
    return size() * (size() + 1) // 2


def push_pulls() -> int:
    return int(bps.metrics()["push_pulls"])


def assert_equal(tensor: Any, expected: Any) -> None:
    np.testing.assert_array_equal(np.asarray(tensor), np.asarray(expected))


def nodes_of(function: Any, *arguments: Any, type_prefix: str = "Byteps") -> list[Any]:
    graph = function.get_concrete_function(*arguments).graph
    return [node for node in graph.get_operations() if node.type.startswith(type_prefix)]


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
        return exchange_gradients([mine], ["constant on one rank"], Options(op=bps.Sum))

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

    for _ in range(rank()):  # as for a metric that one rank computes
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


# --- Gradients


def case_gradients_of_push_pull() -> None:
    for op, factor in ((bps.Sum, size()), (bps.Average, 1)):

        def gradient(op: bps.ReduceOp = op) -> Any:
            x = tf.constant([1.0, 2.0])
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = bps.push_pull(x, op=op, name=f"differentiable.{op.name}") * float(rank() + 1)
            return tape.gradient(y, x)

        mean = total() / size()
        for result in (gradient(), tf.function(gradient)()):
            assert_equal(result, np.full(2, mean * factor))
    x = tf.ones(2)
    with tf.GradientTape() as tape, expect_error(UnsupportedError, "op=Max has no gradient"):
        tape.watch(x)
        y = bps.push_pull(x, op=bps.Max, name="no gradient")
        tape.gradient(y, x)


def case_gradients_of_broadcast_and_allgather() -> None:
    x = tf.fill([rank() + 1, 2], 1.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        rows = bps.allgather(x, name="differentiable rows") * float(rank() + 1)
    assert_equal(tape.gradient(rows, x), np.full((rank() + 1, 2), total()))
    y = tf.ones(3)
    with tf.GradientTape() as tape:
        tape.watch(y)
        z = bps.broadcast(y, 0, name="differentiable broadcast") * float(rank() + 1)
    assert_equal(tape.gradient(z, y), np.full(3, total() if rank() == 0 else 0))


# --- Rows


def case_allgather_of_different_numbers_of_rows() -> None:
    for dtype in (tf.float32, tf.int64, tf.float16):
        mine = tf.cast(tf.fill([3 * rank(), 2], rank()), dtype)  # rank 0 has none
        for function in (bps.allgather, tf.function(bps.allgather)):
            expected = np.concatenate([np.full((3 * r, 2), r) for r in range(size())])
            assert_equal(tf.cast(function(mine), tf.int32), expected)
    assert_equal(bps.allgather(tf.fill([40], rank()), name="many"), np.repeat(np.arange(size()), 40))
    with expect_error(InvalidArgumentError, "a scalar has no first dimension"):
        bps.allgather(tf.constant(1.0))


def case_allgather_of_rows_that_do_not_fit() -> None:
    if size() == 1:
        return
    with expect_error(InvalidArgumentError, "'misfit.0.0.16'", "rank 0", "rank 1"):
        bps.allgather(tf.ones([2, 3 + rank()]), name="misfit")


def case_slices() -> None:
    slices = tf.IndexedSlices(tf.fill([rank() + 1, 2], float(rank() + 1)), tf.range(rank() + 1), tf.constant([9, 2]))
    expected = np.zeros((9, 2))
    for r in range(size()):
        expected[: r + 1] += r + 1
    for op, divisor in ((bps.Sum, 1), (bps.Average, size())):
        for function in (bps.push_pull, tf.function(bps.push_pull)):
            reduced = function(slices, op=op, name=f"slices.{op.name}")
            assert isinstance(reduced, tf.IndexedSlices)
            assert_equal(tf.convert_to_tensor(reduced), expected / divisor)
    with expect_error(UnsupportedError, "'slices'", "Max"):
        bps.push_pull(slices, op=bps.Max, name="slices")


# --- Other ways to call


def case_horovods_names_and_arguments() -> None:
    x = tf.fill([4], float(rank() + 1))
    assert_equal(
        bps.allreduce(x, op=bps.Sum, prescale_factor=2.0, postscale_factor=3.0, name="h"), np.full(4, 6 * total())
    )
    assert_equal(bps.allreduce(x, False, name="h"), np.full(4, total()))
    a, b = bps.grouped_allreduce([x, x + 1], op=bps.Sum, name="group")
    assert_equal(a, np.full(4, total()))
    assert_equal(b, np.full(4, total() + size()))
    with expect_error(InvalidArgumentError, "either average or op"):
        bps.allreduce(x, average=True, op=bps.Sum)
    with expect_error(InvalidArgumentError, "expected a list of tensors"):
        bps.grouped_push_pull(x)


def case_compression() -> None:
    x = tf.constant([1.0 + 2.0**-9, 3.0])
    for compression, expected in ((bps.Compression.fp16, 1.0 + 2.0**-9), (bps.Compression.bf16, 1.0)):
        for tensor in (x, tf.cast(x, tf.float64)):
            result = bps.push_pull(tensor, compression=compression, name=f"{compression.__name__}.{tensor.dtype.name}")
            assert result.dtype == tensor.dtype
            assert_equal(result, [expected, 3.0])
    integers = bps.push_pull(tf.constant([70_000]), compression=bps.Compression.fp16, name="integers")
    assert_equal(integers, [70_000])


def case_broadcast_of_what_the_core_cannot_sum() -> None:
    for function in (bps.broadcast, tf.function(bps.broadcast)):
        assert_equal(function(tf.constant([rank() == 0, False]), 0, name="bool"), [True, False])
        assert_equal(function(tf.constant([1j * (rank() + 1)]), 0, name="complex"), [1j])


def case_broadcast_variables() -> None:
    root = size() - 1
    variables = [
        tf.Variable(tf.cast(tf.fill(shape, rank()), dtype))
        for shape, dtype in (([], tf.int64), ([3], tf.float32), ([2, 2], tf.bfloat16), ([4], tf.uint16))
    ]
    variables.append(tf.Variable([rank() == root, False]))
    bps.broadcast_variables(variables, root)
    for variable in variables[:-1]:
        assert_equal(tf.cast(variable, tf.int32), np.full(variable.shape, root))
    assert_equal(variables[-1], [True, False])

    function_variable = tf.Variable([float(rank())])
    tf.function(lambda: bps.broadcast_variables([function_variable], root))()
    assert_equal(function_variable, [root])


def case_variables_that_differ_between_ranks() -> None:
    if size() == 1:
        return
    variables = [tf.Variable(tf.zeros(2 + rank()), name="differs")]
    with expect_error(InvalidArgumentError, "the ranks differ", "differs"):
        bps.broadcast_variables(variables, 0)
    with expect_error(InvalidArgumentError, "expected variables, got EagerTensor"):
        bps.broadcast_variables([tf.ones(2)], 0)


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
        ("on_done", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)),
        ("context", ctypes.c_void_p),
    )


PushPull = ctypes.CFUNCTYPE(None, ctypes.POINTER(Request))


class Table(ctypes.Structure):
    """BpsCApi of csrc/c_api/c_api.h."""

    _fields_ = (("version", ctypes.c_uint32), ("push_pull", PushPull))


@contextmanager
def watched_memory() -> Iterator[dict[str, bool]]:
    """Takes the core's place. Yields what push_pull is given: name -> whether the output is in the input's memory."""
    in_place: dict[str, bool] = {}

    def push_pull(request: Any) -> None:
        call = request.contents
        in_place[ctypes.string_at(call.name, call.name_bytes).decode()] = call.input == call.output
        ctypes.memset(call.output, 0, call.bytes)
        call.on_done(call.context, 0, b"")

    library = ctypes.CDLL(str(Path(bps.__file__).with_name("_ops.so")))
    table = Table(1, PushPull(push_pull))
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


# --- Mistakes


def case_shapes_that_differ_between_ranks() -> None:
    if size() == 1:
        return
    message = ("'shapes'", "rank 0", "rank 1")
    with expect_error(InvalidArgumentError, *message):
        bps.push_pull(tf.ones(3 + rank()), name="shapes")
    with expect_error(tf.errors.InvalidArgumentError, *message):
        tf.function(lambda x: bps.push_pull(x, name="shapes"))(tf.ones(5 + rank()))
    assert_equal(bps.push_pull(tf.ones(3), name="after the mistake"), np.ones(3))


def case_tensors_that_are_not_supported() -> None:
    for value, kind, words in (
        (tf.ragged.constant([[1.0], []]), UnsupportedError, "RaggedTensor"),
        (tf.sparse.from_dense([[1.0]]), UnsupportedError, "SparseTensor"),
        (tf.constant(["text"]), InvalidArgumentError, "dtype string"),
        (tf.constant([True]), InvalidArgumentError, "tf.cast(tensor, tf.uint8)"),
        (tf.constant([1j]), InvalidArgumentError, "tf.math.real"),
        (tf.constant([1], tf.uint16), InvalidArgumentError, "dtype uint16"),
        (object(), InvalidArgumentError, "expected a tensor, got object"),
    ):
        for function in (bps.push_pull, tf.function(lambda x: bps.push_pull(x, name="wrong"))):
            if isinstance(value, tf.Tensor) or function is bps.push_pull:
                with expect_error(kind, words):
                    function(value)
    with expect_error(UnsupportedError, "enable_async"):
        bps.push_pull(tf.ones(1), enable_async=True)


def case_a_symbolic_tensor_of_keras() -> None:
    import keras

    with expect_error(UnsupportedError, "symbolic Keras tensor"):
        bps.push_pull(keras.Input([3]))


def case_use_before_init() -> None:
    if size() > 1:
        return
    function = tf.function(lambda x: bps.push_pull(x, name="without a job"))
    function(tf.ones(1))
    bps.shutdown()
    try:
        from byteps.errors import NotInitializedError

        for call in (
            lambda: bps.push_pull(tf.ones(1)),
            lambda: bps.broadcast(tf.ones(1), 0),
            lambda: bps.allgather(tf.ones(1)),
            lambda: bps.DistributedGradientTape(tf.GradientTape()),
        ):
            with expect_error(NotInitializedError, "not initialized", "call byteps.init() first"):
                call()
        with expect_error(tf.errors.FailedPreconditionError, "call byteps.init() first"):
            function(tf.ones(1))
    finally:
        bps.init()
    assert_equal(function(tf.ones(1)), [1])
