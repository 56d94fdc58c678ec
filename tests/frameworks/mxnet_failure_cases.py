"""Errors: where they are raised, and how to continue after them."""

from __future__ import annotations

import contextlib
import os

import byteps.mxnet as bps  # must come before mxnet
from mxnet import nd
from mxnet.base import MXNetError
from support.expect import expect_error

from byteps import rank, size
from byteps.errors import AbortedError, BytePSError, InvalidArgumentError
from frameworks.mxnet_ops_cases import assert_all, mine, sum_of_ranks


def case_an_error_comes_out_where_the_array_is_read() -> None:
    if size() == 1:
        return
    array = nd.ones((4 + (rank() == 1),))
    bps.byteps_push_pull(array, name="misfit")
    doubled = array * 2  # computations with it fail, too
    for reader in (doubled.asnumpy, array.wait_to_read):
        try:
            reader()
        except MXNetError as error:
            assert isinstance(error, InvalidArgumentError), repr(error)
            assert "'misfit'" in str(error) and "rank 1" in str(error), error
            assert not str(error).startswith("byteps."), error
            break
    else:
        raise AssertionError("no error")
    nd.waitall()  # it has been told by now


def case_a_name_can_be_used_after_an_error() -> None:
    for _ in range(3):
        right, wrong = mine(3), nd.ones((5 + (rank() == 1),))
        bps.byteps_push_pull(right, name="again", op=bps.Sum)
        assert_all(right, sum_of_ranks())
        bps.byteps_push_pull(wrong, name="again")
        if size() > 1:
            with expect_error(InvalidArgumentError, "'again'", "(5,)", "(6,)"):
                wrong.wait_to_read()
        del wrong
        nd.waitall()


def case_a_name_is_not_used_while_others_are_behind_an_error() -> None:
    if size() == 1:
        return
    wrong, gate = nd.ones((3 + (rank() == 1),)), mine(3)
    if rank() == 0:
        bps.byteps_push_pull(wrong, name="behind")
        bps.byteps_push_pull(gate, name="gate", op=bps.Sum)
        behind = gate * 1  # waits until the other ranks have made theirs
        bps.byteps_push_pull(behind, name="behind")
    bps.barrier()
    if rank() != 0:
        bps.byteps_push_pull(wrong, name="behind")
    with expect_error(InvalidArgumentError, "'behind'"):
        wrong.wait_to_read()
    if rank() == 0:
        with expect_error(AbortedError, "'behind'", "waitall"):
            bps.byteps_push_pull(mine(3), name="behind")
    bps.barrier()
    if rank() != 0:
        bps.byteps_push_pull(gate, name="gate", op=bps.Sum)
        for _ in range(2):  # rank 0 has called three times: one was refused, one waits for the gate
            again = mine(3)
            with contextlib.suppress(MXNetError):
                bps.byteps_push_pull(again, name="behind")
                again.wait_to_read()
    assert_all(gate, sum_of_ranks())
    for _ in range(2):
        with contextlib.suppress(MXNetError):
            nd.waitall()


def case_waitall_raises() -> None:
    if size() == 1:
        return
    array = nd.ones((3 + (rank() == 1),))
    bps.byteps_push_pull(array, name="waitall")
    with expect_error(InvalidArgumentError, "'waitall'"):
        nd.waitall()


def case_a_fork_after_an_error_goes_well() -> None:
    """MXNet by itself would end the process."""
    if size() == 1:
        return
    array = nd.ones((3 + (rank() == 1),))
    bps.byteps_push_pull(array, name="fork")
    child = os.fork()
    if child == 0:
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    bps.barrier()
    number = rank()
    with expect_error(InvalidArgumentError, "'fork'"):
        bps.suspend()
    bps.resume(1, 0, number)


def case_leaving_raises_what_nobody_has_waited_for() -> None:
    if size() == 1:
        return
    bps.byteps_push_pull(nd.ones((3 + (rank() == 1),)), name="unseen")
    try:
        # They differ, or another rank has left because of that.
        with expect_error(BytePSError, "'unseen'"):
            bps.shutdown()
    finally:
        bps.init()
