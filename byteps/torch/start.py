"""Starts push_pulls and broadcasts of torch tensors, and waits for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from byteps.ops import Handle, ReduceOp, broadcast_buffer, is_automatic, one_call, push_pull_buffer
from byteps.ops import poll as poll_one
from byteps.ops import synchronize as synchronize_one
from byteps.torch.eager import eager
from byteps.torch.tensor import Staged, stage

__all__ = ["GroupHandle", "poll", "start_broadcast", "start_push_pull", "synchronize", "synchronize_all"]

Tensor = torch.Tensor


class GroupHandle:
    """The handles of a grouped push_pull."""

    def __init__(self, handles: list[Handle]) -> None:
        self.handles = handles


@eager
def start_push_pull(
    tensor: Tensor, op: ReduceOp, name: str | None, priority: int, *, in_place: bool, scale: float = 1, step: int = 0
) -> Handle:
    """Starts a push_pull of `tensor` into itself or a new tensor, with as few copies as possible.

    Args:
        tensor: see `byteps.torch.ops`; so are op, name and priority.
        op: see `tensor`.
        name: see `tensor`.
        priority: see `tensor`.
        in_place: whether the result replaces `tensor`.
        scale: multiplies the result.
        step: see `byteps.ops.push_pull_buffer`.
    """
    with one_call(name, step=step) as known:
        return _start(tensor, op, known, priority, in_place=in_place, scale=scale, step=step)


def _start(
    tensor: Tensor, op: ReduceOp, name: str, priority: int, *, in_place: bool, scale: float, step: int
) -> Handle:
    # The memory order of a tensor without a name may differ between ranks.
    source = target = stage(tensor, row_major=is_automatic(name))
    if in_place:
        output = tensor
    elif not source.copied:
        output = torch.empty_like(tensor, requires_grad=False)
        target = stage(output)
    elif tensor.device.type == "cpu":
        output = source.memory
    else:
        output = torch.empty_like(tensor, requires_grad=False)

    finish = _Finish(output, target if target.copied else None, scale, in_place)
    return push_pull_buffer(source.buffer, target.buffer, name, op, priority, finish, step=step)


class _Finish:
    """Makes the result of a push_pull.

    Python's garbage collector looks at all objects that wait, again and again, so a push_pull in
    flight has few: a closure and its cells were half of the time of many small ones.
    """

    __slots__ = ("_in_place", "_output", "_scale", "_staged")

    def __init__(self, output: Tensor, staged: Staged | None, scale: float, in_place: bool) -> None:
        """Args: `staged` is the host copy of the result; None: `output` has it already."""
        self._output = output
        self._staged = staged
        self._scale = scale
        self._in_place = in_place

    def __call__(self) -> Tensor:
        output = self._output
        if self._staged is not None and output is not self._staged.memory:
            self._staged.copy_back(output)
        if self._scale != 1:
            output.detach().mul_(self._scale)
        if self._in_place:
            torch.autograd.graph.increment_version(output)
        return output


@eager
def start_broadcast(tensor: Tensor, root_rank: int, name: str | None, step: int = 0) -> Handle:
    """Starts a broadcast of `tensor` in place. `step`: see `byteps.ops.push_pull_buffer`."""
    with one_call(name, step=step) as known:
        staged = stage(tensor, any_dtype=True, row_major=True)

        def finish() -> Tensor:
            staged.copy_back(tensor)
            torch.autograd.graph.increment_version(tensor)
            return tensor

        return broadcast_buffer(staged.buffer, root_rank, known, finish, step=step)


@eager
def poll(handle: Handle | GroupHandle) -> bool:
    """Whether `synchronize` would return at once."""
    if isinstance(handle, GroupHandle):
        return all(map(poll_one, handle.handles))
    return poll_one(handle)


@eager
def synchronize(handle: Handle | GroupHandle) -> Any:
    """Waits for what an _async function has started. Returns its result, the same at each call."""
    return synchronize_all(handle.handles) if isinstance(handle, GroupHandle) else synchronize_one(handle)


@eager
def synchronize_all(handles: Iterable[Handle]) -> list[Any]:
    """Waits for all handles, and returns their results; raises the first error after that."""
    results: list[Any] = []
    errors: list[Exception] = []
    for handle in handles:
        try:
            results.append(synchronize_one(handle))
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return results
