"""The conformance suite of all adapters. Each case gets an adapter module (adapter_*.py).

Where an adapter has no handles (`HAS_HANDLES`), because its framework's operators are asynchronous
as they are, its `push_pull_async` is a thread that waits; cases of handles themselves have nothing
to check there.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
from support.expect import expect_error

from byteps import Average, Max, Min, Product, Sum, rank, size
from byteps.errors import InvalidArgumentError

SHAPES = ((), (1,), (0,), (7,), (3, 5), (2, 3, 4), (1025,))


def of_rank(r: int, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Small whole numbers, exact in every dtype, also as sums and products of four."""
    return np.random.default_rng((seed, r)).integers(1, 4, shape)


def of_all(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.stack([of_rank(r, shape, seed) for r in range(size())])


def mine(a: ModuleType, shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> object:
    return a.from_numpy(of_rank(rank(), shape, seed), dtype)


def assert_equal(a: ModuleType, tensor: object, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(a.to_numpy(tensor).astype(np.float64), expected.astype(np.float64))


def case_every_dtype_op_and_shape(a: ModuleType) -> None:
    reductions = {Sum: np.sum, Min: np.min, Max: np.max, Product: np.prod}
    handles = []
    for dtype in a.DTYPES:
        for shape in SHAPES:
            for op in reductions:
                name = f"every.{dtype}.{shape}.{op.name}"
                handles.append((a.push_pull_async(mine(a, shape, dtype), name=name, op=op), shape, op))
    for handle, shape, op in handles:
        assert_equal(a, a.synchronize(handle), reductions[op](of_all(shape), axis=0))


def case_average_of_floats(a: ModuleType) -> None:
    tolerance = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 1e-7, "float64": 1e-15}
    for dtype in filter(tolerance.get, a.DTYPES):
        result = a.to_numpy(a.push_pull(mine(a, (1000,), dtype), name=f"average.{dtype}"))
        np.testing.assert_allclose(result.astype(np.float64), of_all((1000,)).mean(0), rtol=tolerance[dtype])


def case_average_of_integers_divides_the_sum_as_integers_do(a: ModuleType) -> None:
    for dtype in ("uint8", "int32", "int64"):
        result = a.push_pull(mine(a, (100,), dtype), name=f"average.{dtype}")
        assert_equal(a, result, of_all((100,)).sum(0) // size())


def case_average_false_means_sum(a: ModuleType) -> None:
    assert_equal(a, a.push_pull(mine(a, (5,)), False, "average.false"), of_all((5,)).sum(0))


def case_the_input_is_not_changed(a: ModuleType) -> None:
    tensor = mine(a, (9,))
    a.push_pull(tensor, name="unchanged")
    assert_equal(a, tensor, of_rank(rank(), (9,)))


def case_tensors_larger_than_a_partition(a: ModuleType) -> None:
    shape = (3 * 1024 * 1024 + 5,)
    assert_equal(a, a.push_pull(mine(a, shape), name="large", op=Sum), of_all(shape).sum(0))


def case_many_rounds_of_one_name(a: ModuleType) -> None:
    for step in range(50):
        result = a.push_pull(mine(a, (33,), seed=step), name="rounds", op=Sum)
        assert_equal(a, result, of_all((33,), seed=step).sum(0))


def case_ranks_may_start_and_synchronize_in_different_orders(a: ModuleType) -> None:
    order = np.random.default_rng(rank()).permutation(20)
    handles = {i: a.push_pull_async(mine(a, (i + 1,), seed=i), name=f"order.{i}", op=Sum) for i in order}
    for i in reversed(order):
        assert_equal(a, a.synchronize(handles[i]), of_all((int(i) + 1,), seed=int(i)).sum(0))


def case_unnamed_tensors_meet_in_the_order_of_calls(a: ModuleType) -> None:
    if not a.HAS_HANDLES:
        return
    handles = [a.push_pull_async(mine(a, (4,), seed=i), op=Sum) for i in range(200)]
    for i, handle in enumerate(handles):
        assert_equal(a, a.synchronize(handle), of_all((4,), seed=i).sum(0))


def case_poll_becomes_true(a: ModuleType) -> None:
    if not a.HAS_HANDLES:
        return
    a.bps.barrier()
    handle = a.push_pull_async(mine(a, (4,)), name="poll")
    a.bps.barrier()
    while not a.poll(handle):
        pass
    a.synchronize(handle)


def case_a_handle_can_be_synchronized_again(a: ModuleType) -> None:
    if not a.HAS_HANDLES:
        return
    handle = a.push_pull_async(mine(a, (4,)), name="again")
    assert a.synchronize(handle) is a.synchronize(handle)
    assert a.poll(handle)
    with expect_error(InvalidArgumentError, "not a handle"):
        a.synchronize(17)


def case_dropped_handles_do_no_harm(a: ModuleType) -> None:
    if not a.HAS_HANDLES:
        return
    for i in range(600):  # more than there are before finished ones are swept
        a.push_pull_async(mine(a, (1000,)), name=f"dropped.{i}")
    assert_equal(a, a.push_pull(mine(a, (4,)), name="after.dropped", op=Sum), of_all((4,)).sum(0))


def case_a_name_is_in_flight_once(a: ModuleType) -> None:
    if size() == 1 or not a.HAS_HANDLES:
        return  # nothing is ever in flight
    if rank() == 0:
        handle = a.push_pull_async(mine(a, (4,)), name="twice", op=Sum)
        with expect_error(InvalidArgumentError, "'twice'", "in flight"):
            a.push_pull_async(mine(a, (4,)), name="twice", op=Sum)
        a.bps.barrier()
    else:
        a.bps.barrier()
        handle = a.push_pull_async(mine(a, (4,)), name="twice", op=Sum)
    assert_equal(a, a.synchronize(handle), of_all((4,)).sum(0))


def case_broadcast_from_every_root(a: ModuleType) -> None:
    for root in range(size()):
        for dtype in a.DTYPES:
            tensor = mine(a, (3, 5), dtype)
            assert_equal(a, a.broadcast(tensor, root, f"broadcast.{root}.{dtype}"), of_rank(root, (3, 5)))
            assert_equal(a, tensor, of_rank(rank(), (3, 5)))


def case_broadcast_of_an_unknown_root(a: ModuleType) -> None:
    for root in (-1, size()):
        with expect_error(InvalidArgumentError, f"root_rank is {root}"):
            a.broadcast(mine(a, (3,)), root, "root")


def case_broadcast_object_of_any_size(a: ModuleType) -> None:
    for root in range(size()):
        for length in (0, 1, 1000, 100_000, 3):
            obj = {"rank": rank(), "text": "x" * length} if rank() == root else None
            assert a.bps.broadcast_object(obj, root) == {"rank": root, "text": "x" * length}


def case_broadcast_object_that_cannot_be_pickled(a: ModuleType) -> None:
    if size() == 1:
        return  # nothing is pickled
    with expect_error(InvalidArgumentError, "cannot pickle"):
        a.bps.broadcast_object(lambda: None, root_rank=0)
    assert a.bps.broadcast_object(rank(), root_rank=0) == 0


def case_another_size_on_another_rank(a: ModuleType) -> None:
    if size() == 1:
        return
    with expect_error(InvalidArgumentError, "other.size"):
        a.push_pull(mine(a, (4 + rank(),)), name="other.size")


def case_another_dtype_on_another_rank(a: ModuleType) -> None:
    if size() == 1:
        return
    with expect_error(InvalidArgumentError, "other.dtype"):
        a.push_pull(mine(a, (4,), "float32" if rank() == 0 else "int32"), name="other.dtype")


def case_a_size_that_changes_on_all_ranks_alike(a: ModuleType) -> None:
    for step in range(9):
        shape = ((64, 3), (17, 3), (70_000,))[step % 3]
        result = a.push_pull(mine(a, shape, seed=step), name="batch", op=Sum)
        assert_equal(a, result, of_all(shape, seed=step).sum(0))


def check_agree_again(a: ModuleType, name: str | None) -> None:
    for step in range(2):
        assert_equal(a, a.push_pull(mine(a, (2, 3), seed=step), name=name, op=Sum), of_all((2, 3), seed=step).sum(0))


def case_equal_bytes_of_another_shape_on_another_rank(a: ModuleType) -> None:
    if size() == 1:
        return
    shape = (2, 3) if rank() == 0 else (3, 2)
    for name in ("other.shape", None):
        for call in (lambda n: a.push_pull(mine(a, shape), name=n), lambda n: a.broadcast(mine(a, shape), 0, n)):
            with expect_error(InvalidArgumentError, "(2, 3)", "(3, 2)", "rank 0 (host ", " (host "):
                call(name)
        check_agree_again(a, name)


def case_unnamed_tensors_that_are_not_alike(a: ModuleType) -> None:
    if size() == 1:
        return
    with expect_error(InvalidArgumentError, "byteps.unnamed", "rank 0 (host "):
        a.push_pull(mine(a, (4,), "float32" if rank() == 0 else "int32"), op=Sum if rank() == 0 else Max)
    check_agree_again(a, None)


def case_a_call_that_is_refused_on_one_rank_fails_on_all_and_counts(a: ModuleType) -> None:
    if size() == 1:
        return
    for name in ("refused", None):
        with expect_error(InvalidArgumentError, "op is 'sum'"):
            a.push_pull(mine(a, (2, 3)), name=name, op="sum" if rank() == 1 else Sum)
        a.bps.barrier()  # else that rank 1 has gone on may be known before its cause
        check_agree_again(a, name)


def case_wrong_arguments(a: ModuleType) -> None:
    with expect_error(InvalidArgumentError, "op is 'sum'"):
        a.push_pull(mine(a, (4,)), op="sum")
    with expect_error(InvalidArgumentError, "name is 3"):
        a.push_pull(mine(a, (4,)), name=3)


def case_average_is_the_default(a: ModuleType) -> None:
    same = a.push_pull(mine(a, (4,)), name="default")
    assert_equal(a, same, a.to_numpy(a.push_pull(mine(a, (4,)), name="default", op=Average)))


def case_metrics_count_what_was_done(a: ModuleType) -> None:
    before = a.bps.metrics()
    a.push_pull(mine(a, (100,)), name="metrics")
    after = a.bps.metrics()
    assert after["push_pulls"] - before["push_pulls"] == 1
    assert after["push_pull_bytes"] - before["push_pull_bytes"] == 400
