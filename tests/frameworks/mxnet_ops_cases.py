"""push_pull and broadcast of NDArrays in MXNet's engine."""

from __future__ import annotations

import gc
import random
import threading
from unittest import mock

import byteps.mxnet as bps  # must come before mxnet
import mxnet as mx
import numpy as np
from mxnet import nd
from byteps.mxnet import ops, tensor
from frameworks.migration import check_page
from support.expect import expect_error

from byteps import rank, size
from byteps.errors import InvalidArgumentError, NotInitializedError, UnsupportedError


def mine(*shape: int, dtype: str = "float32") -> nd.NDArray:
    return nd.full(shape, rank() + 1, dtype=dtype)


def sum_of_ranks() -> int:
    return size() * (size() + 1) // 2


def assert_all(array: nd.NDArray, value: float) -> None:
    np.testing.assert_array_equal(array.asnumpy(), np.full(array.shape, value, dtype=array.dtype))


def case_in_place_and_at_once() -> None:
    array = mine(3, 5)
    assert bps.byteps_push_pull(array, name="in.place") is None
    assert_all(array, sum_of_ranks() / size())
    bps.byteps_push_pull(array, name="in.place", is_average=False)
    assert_all(array, sum_of_ranks())


def case_bfloat16_and_booleans() -> None:
    array = nd.amp_cast(mine(40), dtype=np.dtype([("bfloat16", np.uint16)]))  # MXNet's notation
    bps.byteps_push_pull(array, name="bfloat16", op=bps.Sum)
    assert_all(nd.amp_cast(array, dtype="float32"), sum_of_ranks())
    for dtype in ("bool", "int8", "float64"):
        flags = nd.array([rank() == size() - 1, True], dtype=dtype)
        bps.broadcast_(flags, size() - 1, f"flags.{dtype}")
        assert flags.asnumpy().tolist() == [1, 1]
    with expect_error(InvalidArgumentError, "'flags'", "dtype bool", "float16"):
        bps.byteps_push_pull(nd.array([1], dtype="bool"), name="flags")


def case_views_of_an_array() -> None:
    array = nd.zeros((4, 3))
    bps.byteps_push_pull(array[1:3], name="view", op=bps.Sum)
    array[1:3] += rank() + 1
    bps.byteps_push_pull(array[1:3], name="view", op=bps.Sum)
    expected = np.zeros((4, 3))
    expected[1:3] = sum_of_ranks()
    np.testing.assert_array_equal(array.asnumpy(), expected)


def case_half_precision_on_the_way() -> None:
    array = mine(100) + 2**-20
    bps.byteps_push_pull(array, name="compressed", compression=bps.Compression.fp16)
    assert array.dtype == np.float32
    assert_all(array, sum_of_ranks() / size())
    numbers = mine(100, dtype="int32")
    bps.byteps_push_pull(numbers, name="not.compressed", op=bps.Sum, compression=bps.Compression.fp16)
    assert_all(numbers, sum_of_ranks())


def case_sparse_rows() -> None:
    dense = np.zeros((6, 2), dtype="float32")
    dense[rank()] = 1
    rows = nd.array(dense).tostype("row_sparse")
    bps.byteps_push_pull(rows, name="rows", op=bps.Sum)
    expected = np.zeros((6, 2), dtype="float32")
    expected[: size()] = 1
    assert rows.stype == "row_sparse"
    np.testing.assert_array_equal(rows.asnumpy(), expected)
    with expect_error(UnsupportedError, "'csr'", "tostype"):
        bps.byteps_push_pull(nd.array(dense).tostype("csr"), name="csr")


def case_arrays_of_a_gpu_go_through_the_host() -> None:
    """Uses a second CPU device as the GPU, which this machine lacks."""
    gpu = mx.cpu(1)
    copies = []

    def pinned(device_id: int) -> mx.Context:
        copies.append(device_id)
        return mx.cpu(0)

    on_gpu = mock.patch.object(tensor, "_is_on_gpu", lambda found: found.device_id == 1)
    with on_gpu, mock.patch.object(mx, "cpu_pinned", pinned):
        array = nd.full((5, 2), rank() + 1, ctx=gpu)
        bps.byteps_push_pull(array, name="gpu", op=bps.Sum)
        assert array.context == gpu
        assert_all(array, sum_of_ranks())
        bps.byteps_push_pull(array, name="gpu.half", compression=bps.Compression.fp16)
        assert_all(array, sum_of_ranks())
        rows = nd.full((3, 2), rank() + 1, ctx=gpu).tostype("row_sparse")
        bps.byteps_push_pull(rows, name="gpu.rows", op=bps.Sum)
        assert rows.context == gpu
        assert_all(rows, sum_of_ranks())
        flags = nd.array([rank() == 0, 0], dtype="bool", ctx=gpu)
        bps.broadcast_(flags, 0, "gpu.flags")
        assert flags.asnumpy().tolist() == [1, 0]
    assert copies == [1] * 4


def case_arrays_that_one_dnn_has_put_into_its_own_layout() -> None:
    for training in (True, False):
        net = mx.gluon.nn.Conv2D(32, 3, in_channels=16)
        net.initialize(mx.init.Constant(0.5))
        net.weight.set_data(nd.arange(32 * 16 * 9).reshape((32, 16, 3, 3)) * (rank() + 1))
        with mx.autograd.record(train_mode=training):
            images = net(nd.ones((2, 16, 8, 8)))
        expected = np.arange(32 * 16 * 9, dtype="float32").reshape((32, 16, 3, 3)) * sum_of_ranks()
        bps.byteps_push_pull(net.weight.data(), name="weight", op=bps.Sum)
        np.testing.assert_array_equal(net.weight.data().asnumpy(), expected)
        own = images.copy().asnumpy()
        bps.byteps_push_pull(images, name=f"images.{training}", op=bps.Sum)
        theirs = [bps.broadcast_object(own, root) for root in range(size())]
        np.testing.assert_allclose(images.asnumpy(), np.sum(theirs, axis=0), rtol=1e-6)


def case_more_without_names_than_there_are_automatic_names() -> None:
    arrays = [mine(8) * number for number in range(500)]
    for array in arrays:
        bps.byteps_push_pull(array, op=bps.Sum)
    for number, array in enumerate(arrays):
        assert_all(array, sum_of_ranks() * number)


def case_one_name_for_many_arrays_in_flight() -> None:
    """Each rank reads them in another order."""
    arrays = [mine(33) * number for number in range(100)]
    for array in arrays:
        bps.byteps_push_pull(array, name="one.name", op=bps.Sum)
    for number in random.Random(rank()).sample(range(100), 100):
        assert_all(arrays[number], sum_of_ranks() * number)


def case_arrays_that_nobody_keeps() -> None:
    for number in range(300):
        bps.byteps_push_pull(mine(1000), name=f"dropped.{number % 7}")
    gc.collect()
    nd.waitall()


def case_the_engine_orders_what_depends_on_each_other() -> None:
    """A random program of computations and push_pulls, and the same program in NumPy."""
    program = random.Random(17)
    arrays = [nd.full((50,), number + rank(), dtype="float64") for number in range(6)]
    twins = [np.stack([np.full(50, number + r, dtype="float64") for r in range(size())]) for number in range(6)]
    for step in range(400):
        a, b = program.sample(range(6), 2)
        kind = program.choice(["push_pull", "push_pull", "add", "scale", "copy", "matmul"])
        if kind == "push_pull":
            bps.byteps_push_pull(arrays[a], priority=program.randrange(-5, 5), name=f"program.{program.randrange(9)}")
            twins[a][:] = twins[a].mean(0)
        elif kind == "add":
            arrays[a] += arrays[b]
            twins[a] += twins[b]
        elif kind == "scale":
            arrays[a] *= 0.25
            twins[a] *= 0.25
        elif kind == "copy":
            arrays[a] = arrays[b] + step
            twins[a] = twins[b] + step
        else:  # takes a while, so that the program runs ahead of it
            weight = nd.full((50, 50), 0.01, dtype="float64")
            arrays[a] = nd.dot(weight, arrays[a])
            twins[a] = twins[a] @ np.full((50, 50), 0.01)
    for array, twin in zip(arrays, twins, strict=True):
        np.testing.assert_allclose(array.asnumpy(), twin[rank()], rtol=1e-9)


def case_a_push_pull_returns_before_the_others_make_theirs() -> None:
    array = mine(5)
    if rank() == 0:
        bps.byteps_push_pull(array, name="later", op=bps.Sum)
        bps.barrier()
    else:
        bps.barrier()
        bps.byteps_push_pull(array, name="later", op=bps.Sum)
    assert_all(array, sum_of_ranks())


def case_pushes_from_several_threads() -> None:
    arrays = [mine(20) for _ in range(40)]

    def push(start: int) -> None:
        for number in range(start, 40, 4):
            bps.byteps_push_pull(arrays[number], name=f"threads.{number}", op=bps.Sum)

    threads = [threading.Thread(target=push, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for array in arrays:
        assert_all(array, sum_of_ranks())


def case_arrays_of_numpy_style() -> None:
    mx.npx.set_np()
    try:
        array = mx.np.full((2, 0), 1.0), mx.np.array(rank() + 1.0), mx.np.full((3,), rank() + 1.0)
        for number, each in enumerate(array):
            bps.byteps_push_pull(each, name=f"np.{number}", op=bps.Sum)
        assert array[1].item() == sum_of_ranks()
        assert array[2].tolist() == [sum_of_ranks()] * 3
        reduced = bps.push_pull(array[2], name="np.new", compression=bps.Compression.fp16)
        assert isinstance(reduced, mx.np.ndarray)
        assert reduced.tolist() == [sum_of_ranks()] * 3
    finally:
        mx.npx.reset_np()


def case_any_number_is_an_answer_to_is_average() -> None:
    for answer in (0, np.bool_(False), False):
        array = mine(3)
        bps.byteps_push_pull(array, name="is_average", is_average=answer, priority=np.int64(3))
        assert_all(array, sum_of_ranks())
    for answer in (1, np.bool_(True)):
        array = mine(3)
        bps.byteps_push_pull(array, name="is_average", is_average=answer)
        assert_all(array, sum_of_ranks() / size())


def case_wrong_arguments() -> None:
    for call in (bps.byteps_push_pull, bps.push_pull):
        with expect_error(InvalidArgumentError, "expected an NDArray, got ndarray"):
            call(np.ones(3), name="numpy")
    with expect_error(InvalidArgumentError, "'p'", "priority is 4294967296"):
        bps.byteps_push_pull(nd.ones((3,)), name="p", priority=2**32)
    with expect_error(InvalidArgumentError, "name is 3"):
        bps.byteps_declare_tensor(3)
    with expect_error(UnsupportedError, "'x'", "byteps_compressor_type", "fp16"):
        bps.byteps_declare_tensor("x", byteps_compressor_type="onebit")
    bps.byteps_declare_tensor("x")
    with expect_error(InvalidArgumentError, f"root_rank is {size()}"):
        bps.broadcast_(nd.ones((3,)), size())


def case_the_cost_of_a_push_pull_is_counted() -> None:
    before = bps.metrics()["push_pulls"]
    array = mine(10)
    bps.byteps_push_pull(array, name="counted")
    array.wait_to_read()
    assert bps.metrics()["push_pulls"] == before + 1


def case_broadcast_parameters_of_a_module() -> None:
    params = {"a": mine(3), "b": mine(2, 2, dtype="int32"), "c": mine(1, dtype="bool")}
    bps.broadcast_parameters(params, root_rank=size() - 1)
    assert_all(params["a"], size())
    assert_all(params["b"], size())


def case_broadcast_parameters_of_gluon_with_shapes_that_are_not_known_yet() -> None:
    for _ in range(rank()):
        mx.gluon.nn.Dense(2)  # the names differ from here on
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(4), mx.gluon.nn.BatchNorm(), mx.gluon.nn.Dense(2, in_units=4))
    net.initialize(mx.init.Constant(rank() + 1))
    if rank() == 0:
        net(nd.ones((2, 3)))  # like loading a file
    bps.broadcast_parameters(net.collect_params(), root_rank=0)
    net(nd.ones((2, 3)))
    assert_all(net[0].weight.data(), 1)
    assert_all(net[2].weight.data(), 1)
    net.initialize(mx.init.Constant(7), force_reinit=True)  # only once
    assert_all(net[2].weight.data(), 7)


def case_the_page_for_migration_is_true() -> None:
    check_page("byteps.mxnet")


def case_the_job_and_compressors_as_in_byteps() -> None:
    assert (ops.rank(), ops.size()) == (rank(), size())
    ops.init()
    array = mine(3)
    bps.byteps_push_pull(array, 0, 0, "by an instance", False, compression=bps.Compression.fp16())
    assert_all(array, sum_of_ranks())
    bps.DistributedOptimizer(mx.optimizer.SGD(), bps.Compression.fp16())


def case_broadcast_parameters_in_another_order_on_each_rank() -> None:
    """Parameters belong together by name if all ranks have the same names, else by order."""
    names = ["a", "b", "c"]
    if rank() % 2:
        names.reverse()
    arrays = {name: nd.full((2,), 10 * ord(name) + rank()) for name in names}
    bps.broadcast_parameters(arrays)
    for name, array in arrays.items():
        assert_all(array, 10 * ord(name))
    numbered = {f"dense{10 * rank() + place}": nd.full((2,), 10 * place + rank()) for place in range(2)}
    bps.broadcast_parameters(numbered)
    for place, array in enumerate(numbered.values()):
        assert_all(array, 10 * place)


def case_broadcast_parameters_that_differ() -> None:
    with expect_error(InvalidArgumentError, "list given"):
        bps.broadcast_parameters([nd.ones((3,))])
    with expect_error(InvalidArgumentError, "'a' is int"):
        bps.broadcast_parameters({"a": 3})
    net = mx.gluon.nn.Dense(2)
    with expect_error(InvalidArgumentError, "initialize()"):
        bps.broadcast_parameters(net.collect_params())
    if size() > 1:
        dtype = "float32" if rank() else "float64"
        with expect_error(InvalidArgumentError, "parameter 0: float64", "parameter 0: float32"):
            bps.broadcast_parameters({"a": nd.ones((2,), dtype=dtype)})
        shape = (2, 3) if rank() else (3, 2)
        with expect_error(InvalidArgumentError, "parameter 0: float32 [3, 2]", "parameter 0: float32 [2, 3]"):
            bps.broadcast_parameters({"a": nd.ones(shape)})


def case_the_data_loader_forks_while_push_pulls_are_on_their_way() -> None:
    data = mx.gluon.data.ArrayDataset(np.arange(32, dtype="float32"))
    array = mine(1000)
    bps.byteps_push_pull(array, name="before.fork", op=bps.Sum)
    loader = mx.gluon.data.DataLoader(data, batch_size=8, num_workers=2)
    total = sum(float(batch.sum().asscalar()) for batch in loader)
    assert total == 31 * 16
    assert_all(array, sum_of_ranks())


def case_last_no_job() -> None:
    """Calls fail without a job, and work in a later job, whose names are new."""
    array, expected = mine(4), sum_of_ranks()
    bps.byteps_push_pull(array, name="leaving", op=bps.Sum)
    bps.shutdown()
    assert_all(array, expected)
    with expect_error(NotInitializedError, "shutdown() was called"):
        bps.byteps_push_pull(array, name="late")
    bps.init()
    array = mine(7)
    bps.byteps_push_pull(array, name="leaving", op=bps.Sum)
    assert_all(array, sum_of_ranks())
