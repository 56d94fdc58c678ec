"""Ranks that do not ask for the same thing.

Each case: all ranks learn who asks for what, and the job goes on.
"""

from __future__ import annotations

import numpy as np
from support.expect import expect_error

import byteps as bps
from byteps.errors import InvalidArgumentError

BOTH = ("rank 0 (host ", "rank 1 (host ")


def check_job_goes_on() -> None:
    assert bps.push_pull(np.ones(3), False, "goes on")[0] == bps.size()


def case_another_op() -> None:
    op = (bps.Sum, bps.Max)[bps.rank()]
    with expect_error(InvalidArgumentError, "'op'", "sum of float32 of shape (5,)", "max of", *BOTH):
        bps.push_pull(np.ones(5, np.float32), name="op", op=op)
    check_job_goes_on()


def case_another_root() -> None:
    with expect_error(InvalidArgumentError, "'root'", "broadcast from rank 0", "broadcast from rank 1", *BOTH):
        bps.broadcast(np.ones(5, np.float32), bps.rank(), "root")
    check_job_goes_on()


def case_a_reduction_and_a_broadcast() -> None:
    array = np.ones(5, np.float32)
    with expect_error(InvalidArgumentError, "'kind'", "average of", "broadcast from rank 1", *BOTH):
        bps.push_pull(array, name="kind") if bps.rank() == 0 else bps.broadcast(array, 1, "kind")
    check_job_goes_on()


def case_another_op_only_once() -> None:
    """The tensor is not lost: the next round counts."""
    with expect_error(InvalidArgumentError, "'once'"):
        bps.push_pull(np.ones(5), name="once", op=(bps.Sum, bps.Min)[bps.rank()])
    assert bps.push_pull(np.ones(5), False, "once")[0] == bps.size()


def case_another_size_while_others_wait() -> None:
    """Rank 0 waits in its round when rank 1 comes with another size."""
    if bps.rank() == 0:
        handle = bps.push_pull_async(np.ones(1000, np.float32), name="size")
        bps.barrier()
    else:
        bps.barrier()
        handle = bps.push_pull_async(np.ones(999, np.float32), name="size")
    with expect_error(InvalidArgumentError, "'size'", "float32 of shape (1000,)", "float32 of shape (999,)", *BOTH):
        bps.synchronize(handle)
    check_job_goes_on()


def check_agree_again(name: str | None, shape: tuple[int, ...] = (4,)) -> None:
    """Ranks are not a round apart: each round has other values."""
    for step in range(3):
        mine = np.full(shape, 10.0 * step + bps.rank() + 1)
        assert (bps.push_pull(mine, False, name) == 20 * step + 3).all()


def case_a_known_name_with_another_size_on_one_rank_only_once() -> None:
    check_agree_again("known")
    with expect_error(InvalidArgumentError, "'known'", "of shape (4,)", "of shape (5,)", *BOTH):
        bps.push_pull(np.ones(4 + bps.rank()), False, "known")
    check_agree_again("known")


def case_a_large_tensor_and_a_small_one() -> None:
    """A rank has partitions that the other one does not have."""
    with expect_error(InvalidArgumentError, "'large'", "of shape (3,)", "of shape (3000000,)", *BOTH):
        bps.push_pull(np.ones((3, 3_000_000)[bps.rank()]), False, "large")
    check_agree_again("large", (3_000_000,))


def case_another_dtype_of_a_known_name() -> None:
    check_agree_again("dtype")
    with expect_error(InvalidArgumentError, "'dtype'", "float64 of shape (4,)", "int64 of shape (4,)", *BOTH):
        bps.push_pull(np.ones(4, (np.float64, np.int64)[bps.rank()]), False, "dtype")
    check_agree_again("dtype")


def case_a_size_that_changes_on_all_ranks_alike() -> None:
    for step in range(20):
        shape = ((64, 3), (17, 3), (200_000,), (0,), ())[step % 5]
        mine = np.full(shape, step + bps.rank())
        assert (bps.push_pull(mine, False, "batch") == 2 * step + 1).all()


def case_equal_bytes_of_another_shape() -> None:
    for name in ("shape", None):
        words = (*BOTH, "of shape (2, 3)", "of shape (3, 2)", name or "byteps.unnamed")
        with expect_error(InvalidArgumentError, *words):
            bps.push_pull(np.ones(((2, 3), (3, 2))[bps.rank()]), False, name)
        with expect_error(InvalidArgumentError, *words):
            bps.broadcast(np.ones(((2, 3), (3, 2))[bps.rank()]), 1, name)
        check_agree_again(name, (2, 3))


def case_the_unnamed_tensors_of_a_place_are_not_alike() -> None:
    with expect_error(InvalidArgumentError, "byteps.unnamed", "max of int32 of shape (7,)", "sum of float64", *BOTH):
        if bps.rank() == 0:
            bps.push_pull(np.ones(7, np.int32), op=bps.Max)
        else:
            bps.push_pull(np.ones(1000), False)
    check_agree_again(None)


def case_a_tensor_without_elements_on_one_rank() -> None:
    with expect_error(InvalidArgumentError, "'empty'", "of shape (0,)", "of shape (5,)", *BOTH):
        bps.push_pull(np.ones((0, 5)[bps.rank()]), False, "empty")
    check_agree_again("empty")


def check_refused(error: type[Exception], name: str | None, *words: str, **arguments: object) -> None:
    """Rank 1's call is refused; rank 0's fails, and says why."""
    array = arguments.pop("array", np.ones(4))
    if bps.rank() == 1:
        with expect_error(error, *words):
            bps.push_pull(array, False, name, **arguments)
    else:
        with expect_error(InvalidArgumentError, name or "byteps.unnamed", "rank 1 (host ", *words):
            bps.push_pull(np.ones(4), False, name)
    bps.barrier()  # a rank that is behind by several refused calls gets the last error


def case_a_call_that_is_refused_on_one_rank_fails_on_all_and_counts() -> None:
    for name in ("refused", None):
        check_refused(InvalidArgumentError, name, "op is 'sum'", op="sum")
        check_refused(InvalidArgumentError, name, "dtype complex128", array=np.ones(4, np.complex128))
        check_refused(InvalidArgumentError, name, "priority is 'high'", priority="high")
        check_agree_again(name)


def case_a_root_out_of_range_on_one_rank() -> None:
    if bps.rank() == 1:
        with expect_error(InvalidArgumentError, "root_rank is 2"):
            bps.broadcast(np.ones(4), 2, "no root")
    else:
        with expect_error(InvalidArgumentError, "rank 1 (host ", "root_rank is 2"):
            bps.broadcast(np.ones(4), 0, "no root")
    check_agree_again("no root")


def case_a_name_in_flight_twice_on_one_rank() -> None:
    """The first one is well; the second one counts and fails on both."""
    if bps.rank() == 1:
        bps.barrier()
    first = bps.push_pull_async(np.ones(4), False, "twice")
    if bps.rank() == 0:
        with expect_error(InvalidArgumentError, "'twice'", "in flight"):
            bps.push_pull_async(np.ones(4), False, "twice")
        bps.barrier()
    assert bps.synchronize(first)[0] == 2
    if bps.rank() == 1:
        with expect_error(InvalidArgumentError, "'twice'", "rank 0 (host ", "in flight"):
            bps.push_pull(np.ones(4), False, "twice")
    bps.barrier()  # else that rank 0 has gone on may be known before its cause
    check_agree_again("twice")
