"""Operators on tensors of all kinds: gradients, rows, dtypes, arguments, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from frameworks.migration import check_page
from frameworks.tensorflow_expect import assert_equal, total
from support.expect import expect_error

import byteps.tensorflow as bps
from byteps import rank, size
from byteps.errors import InvalidArgumentError, NotInitializedError, UnsupportedError
from byteps.tensorflow import ops

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


# --- As scripts of BytePS call it


def case_the_page_for_migration_is_true() -> None:
    check_page("byteps.tensorflow")


def case_arguments_of_byteps() -> None:
    assert (ops.rank(), ops.size()) == (rank(), size())
    ops.init()
    mine = tf.fill([3], float(rank() + 1))
    assert_equal(bps.broadcast(mine, 0, "a_scope"), np.ones(3))
    assert_equal(bps.broadcast(tf.fill([2], rank()), size() - 1, "a_scope", None, False), np.full(2, size() - 1))
    variables = [tf.Variable(tf.fill([2], float(rank() + place))) for place in range(2)]
    bps.broadcast_variables(variables, 0, "a_scope/")
    bps.broadcast_variables(variables, root_rank=0, scope="a_scope/")
    for place, variable in enumerate(variables):
        assert_equal(variable, np.full(2, place))
    assert_equal(bps.push_pull(mine, "a_scope", False, "", "", bps.Compression.fp16()), np.full(3, total()))
    with bps.DistributedGradientTape(tf.GradientTape(), "", "", bps.Compression.none(), False, bps.Sum) as tape:
        loss = tf.reduce_sum(variables[1]) * float(rank() + 1)
    assert_equal(tape.gradient(loss, [variables[1]])[0], np.full(2, total()))


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
    with expect_error(InvalidArgumentError, "'misfit.0.0'", "rank 1"):
        bps.allgather(tf.ones([2, 3 + (rank() == 1)]), name="misfit")


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
    whole = tf.IndexedSlices(tf.ones([2, 2], tf.int32), tf.range(2), tf.constant([9, 2]))
    assert_equal(
        tf.convert_to_tensor(bps.push_pull(whole, op=bps.Sum, name="whole")).numpy()[:3], [[size()] * 2] * 2 + [[0] * 2]
    )
    with expect_error(UnsupportedError, "'whole'", "int32", "op=Sum"):
        bps.push_pull(whole, name="whole")


def case_gradients_of_slices() -> None:
    values = tf.fill([rank() + 1, 2], 1.0)
    with tf.GradientTape() as tape:
        tape.watch(values)
        slices = tf.IndexedSlices(values, tf.range(rank() + 1), tf.constant([9, 2]))
        reduced = bps.push_pull(slices, op=bps.Sum, name="differentiable slices")
        loss = tf.reduce_sum(reduced.values) * float(rank() + 1)
    assert_equal(tape.gradient(loss, values), np.full((rank() + 1, 2), total()))


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
    assert_equal(bps.allreduce(tf.constant([2]), op=bps.Sum, prescale_factor=3.0, name="whole factor"), [6 * size()])
    with expect_error(InvalidArgumentError, "int32 cannot be scaled by 0.5"):
        bps.allreduce(tf.constant([2]), postscale_factor=0.5, name="half factor")
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
        for dtype in (tf.int16, tf.uint16, tf.uint32, tf.uint64):
            assert_equal(function(tf.constant([rank() + 1, 300], dtype), 0, name=dtype.name), [1, 300])
    with expect_error(InvalidArgumentError, "dtype string", "broadcast_object"):
        bps.broadcast(tf.constant(["text"]), 0)


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
    module = tf.Module()
    module.variable = tf.Variable(1.0)
    with expect_error(TypeError, "got Module", "broadcast_variables(model.variables, root_rank)"):
        bps.broadcast_variables(module, 0)
    with expect_error(InvalidArgumentError, "expected variables, got EagerTensor"):
        bps.broadcast_variables([tf.ones(2)], 0)


# --- Mistakes


def case_shapes_that_differ_between_ranks() -> None:
    if size() == 1:
        return
    message = ("'shapes'", "rank 1")
    with expect_error(InvalidArgumentError, *message):
        bps.push_pull(tf.ones(3 + (rank() == 1)), name="shapes")
    with expect_error(tf.errors.InvalidArgumentError, *message):
        tf.function(lambda x: bps.push_pull(x, name="shapes"))(tf.ones(5 + (rank() == 1)))
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


def case_arguments_that_are_wrong() -> None:
    with expect_error(UnsupportedError, "enable_async"):
        bps.push_pull(tf.ones(1), enable_async=True)
    for call in (bps.push_pull, bps.allgather, lambda x, name: bps.broadcast(x, 0, name=name)):
        with expect_error(InvalidArgumentError, "name is 3: expected a string"):
            call(tf.ones(1), name=3)
    with expect_error(InvalidArgumentError, "'priority'", "expected 32 bits"):
        bps.push_pull(tf.ones(1), name="priority", priority=2**31)


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
