"""Ranks that do not ask for the same thing. Each case: all ranks learn who asks for what, and the job goes on."""

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
    with expect_error(InvalidArgumentError, "'op'", "sum of 5 elements of float32", "max of", *BOTH):
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
    with expect_error(InvalidArgumentError, "'size'", "1000 elements of float32", "999 elements of float32", *BOTH):
        bps.synchronize(handle)
    check_job_goes_on()
