"""push_pull and broadcast of torch tensors.

Arguments that the functions share:
    tensor: has the same shape and dtype on all ranks. It must not change while its handle is in flight.
    average: False means op=Sum.
    name: the same on all ranks for tensors that belong together; at most once in flight. Without names all ranks must
        make their calls in the same order.
    version: unused; accepted for BytePS's scripts.
    priority: larger ones go first.
    compression: one of `Compression`, for the network.
    op: Average, Sum, Min, Max or Product; takes precedence over `average`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

import torch

from byteps.errors import AbortedError, InvalidArgumentError
from byteps.ops import Handle, ReduceOp, declare_buffer, no_gradient_of, one_call, push_pull_and_wait, resolve_op
from byteps.runtime import init, local_rank, local_size, rank, resume, shutdown, size, suspend  # noqa: F401
from byteps.torch.compression import AnyCompressor, Compression
from byteps.torch.eager import eager
from byteps.torch.start import GroupHandle, poll, start_broadcast, start_push_pull, synchronize, synchronize_all
from byteps.torch.tensor import own_memory, stage

__all__ = [
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "byteps_push_pull",
    "declare",
    "grouped_push_pull",
    "grouped_push_pull_async",
    "grouped_push_pull_async_inplace",
    "grouped_push_pull_inplace",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_inplace",
    "synchronize",
]

Tensor = torch.Tensor
Tensors = Sequence[Tensor]


def push_pull(
    tensor: Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    compression: AnyCompressor = Compression.none,
    *,
    op: ReduceOp | None = None,
) -> Tensor:
    """Returns the average of all ranks' tensors, or their reduction by `op`, as a new tensor.

    Differentiable for Average and Sum: the gradient is the push_pull of the gradients. With a name
    it can be part of a graph of torch.compile and torch.export; without one it breaks the graph.
    """
    if torch.compiler.is_compiling() and name is not None:  # see library.py
        compressed, ctx = compression.compress(tensor)
        reduced = torch.ops.byteps.push_pull(compressed, name, resolve_op(average, op).name, priority)
        return compression.decompress(reduced, ctx)
    if torch.compiler.is_compiling():
        torch._dynamo.graph_break(msg="byteps.torch.push_pull without a name: only one with a name can be traced")
    with one_call(name) as known:
        compressed, ctx = compression.compress(tensor)
        reduced = _PushPull.apply(compressed, resolve_op(average, op), known, priority)  # type: ignore[no-untyped-call]
    return compression.decompress(reduced, ctx)


@eager
def push_pull_inplace(
    tensor: Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    *,
    op: ReduceOp | None = None,
) -> Tensor:
    """Replaces `tensor` by the average of all ranks' tensors, or their reduction by `op`, and
    returns it.
    """
    with one_call(name) as known:
        reduce_op = resolve_op(average, op)
        memory = own_memory(tensor)
        if memory is None:
            handle = start_push_pull(tensor, reduce_op, known, priority, in_place=True)
        else:
            push_pull_and_wait(memory._replace(shape=tensor.shape), known, reduce_op, priority)
    if memory is None:
        return _result(handle)
    torch.autograd.graph.increment_version(tensor)
    return tensor


def push_pull_async(
    tensor: Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    *,
    op: ReduceOp | None = None,
) -> Handle:
    """Starts `push_pull`, without its gradient; `synchronize` returns the new tensor."""
    with one_call(name) as known:
        return start_push_pull(tensor, resolve_op(average, op), known, priority, in_place=False)


def push_pull_async_inplace(
    tensor: Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    *,
    op: ReduceOp | None = None,
) -> Handle:
    """Starts `push_pull_inplace`; `tensor` holds the result after `synchronize`, and not before."""
    with one_call(name) as known:
        return start_push_pull(tensor, resolve_op(average, op), known, priority, in_place=True)


byteps_push_pull = push_pull_async_inplace


def grouped_push_pull(
    tensors: Tensors,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    compression: AnyCompressor = Compression.none,
    *,
    op: ReduceOp | None = None,
) -> list[Tensor]:
    """`push_pull` of several tensors at once. They are named `name`.0, `name`.1 and so on."""
    _check_group(tensors)
    reduce_op = _op_of_group(tensors, average, op, name)
    compressed, contexts = zip(*map(compression.compress, tensors), strict=True) if tensors else ((), ())
    reduced = _reduced_group(compressed, reduce_op, name, priority)
    return [compression.decompress(tensor, ctx) for tensor, ctx in zip(reduced, contexts, strict=True)]


def grouped_push_pull_inplace(
    tensors: Tensors,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    *,
    op: ReduceOp | None = None,
) -> list[Tensor]:
    """`push_pull_inplace` of several tensors at once."""
    return _results(grouped_push_pull_async_inplace(tensors, average, name, version, priority, op=op))


def grouped_push_pull_async(
    tensors: Tensors,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    *,
    op: ReduceOp | None = None,
) -> GroupHandle:
    """Starts `grouped_push_pull`, without its gradient; `synchronize` returns new tensors."""
    return _start_group(tensors, _op_of_group(tensors, average, op, name), name, priority, in_place=False)


def grouped_push_pull_async_inplace(
    tensors: Tensors,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    *,
    op: ReduceOp | None = None,
) -> GroupHandle:
    """Starts `grouped_push_pull_inplace`; `synchronize` returns the list of tensors."""
    return _start_group(tensors, _op_of_group(tensors, average, op, name), name, priority, in_place=True)


def broadcast(tensor: Tensor, root_rank: int, name: str | None = None) -> Tensor:
    """Returns rank `root_rank`'s tensor, of any dtype, as a new tensor.

    All ranks pass the same shape and dtype. Differentiable: the root gets the sum of the ranks'
    gradients, the others get zeros.
    """
    return _broadcast(tensor, root_rank, name)


def broadcast_(tensor: Tensor, root_rank: int, name: str | None = None) -> Tensor:
    """Replaces `tensor` by rank `root_rank`'s, and returns it."""
    return _result(broadcast_async_(tensor, root_rank, name))


def broadcast_async(tensor: Tensor, root_rank: int, name: str | None = None) -> Handle:
    """Starts `broadcast`, without its gradient; `synchronize` returns the new tensor."""
    with one_call(name) as known:
        copy = tensor.detach().clone(memory_format=torch.contiguous_format)
        return broadcast_async_(copy, root_rank, known)


@eager
def broadcast_async_(tensor: Tensor, root_rank: int, name: str | None = None) -> Handle:
    """Starts `broadcast_`; `tensor` holds the result after `synchronize`, and not before."""
    return start_broadcast(tensor, root_rank, name)


def declare(name: str, tensor: Tensor | None = None) -> None:
    """Announces a tensor to the job before its first push_pull, in any order. Optional.

    Args:
        name: of the push_pull.
        tensor: has its shape and dtype. Without it, nothing is done.
    """
    if tensor is not None:
        staged = stage(tensor)
        declare_buffer(name, staged.buffer.dtype, staged.buffer.nbytes)


class _PushPull(torch.autograd.Function):
    @staticmethod
    @eager
    def forward(ctx: Any, tensor: Tensor, op: ReduceOp, name: str | None, priority: int) -> Tensor:
        handle = start_push_pull(tensor, op, name, priority, in_place=False)
        ctx.op, ctx.name, ctx.priority = op, handle.name, priority
        return _result(handle)

    @staticmethod
    @eager
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        _check_differentiable(ctx.op, ctx.name)
        reduced = push_pull(grad, name=f"{ctx.name}.gradient", priority=ctx.priority, op=ctx.op)
        return reduced, None, None, None


class _GroupedPushPull(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, op: ReduceOp, name: str | None, priority: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        group = _start_group(tensors, op, name, priority, in_place=False)
        ctx.op, ctx.names, ctx.priority = op, [handle.name for handle in group.handles], priority
        return tuple(_results(group))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        _check_differentiable(ctx.op, ctx.names[0])
        wanted = [index for index in range(len(grads)) if ctx.needs_input_grad[3 + index]]
        reduced: list[Tensor | None] = [None] * len(grads)
        names = [f"{ctx.names[index]}.gradient" for index in wanted]
        results = _reduced_each([grads[index] for index in wanted], ctx.op, names, ctx.priority)
        for index, result in zip(wanted, results, strict=True):
            reduced[index] = result
        return None, None, None, *reduced


@eager
def _reduced_group(tensors: Tensors, op: ReduceOp, name: str | None, priority: int) -> list[Tensor]:
    return list(_GroupedPushPull.apply(op, name, priority, *tensors)) if tensors else []  # type: ignore[no-untyped-call]


def _reduced_each(tensors: Tensors, op: ReduceOp, names: Sequence[str], priority: int) -> list[Tensor]:
    """Reduces each tensor; differentiable again, one by one, if gradients are enabled."""
    if torch.is_grad_enabled():
        return [
            push_pull(tensor, name=name, priority=priority, op=op) for tensor, name in zip(tensors, names, strict=True)
        ]
    handles = [
        start_push_pull(tensor, op, name, priority, in_place=False) for tensor, name in zip(tensors, names, strict=True)
    ]
    return synchronize_all(handles)


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root_rank: int, name: str | None) -> Tensor:
        handle = broadcast_async(tensor, root_rank, name)
        ctx.root_rank, ctx.name = root_rank, handle.name
        return _result(handle)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        total = push_pull(grad, name=f"{ctx.name}.gradient", op=ReduceOp.Sum)
        return total if rank() == ctx.root_rank else torch.zeros_like(total), None, None


@eager
def _broadcast(tensor: Tensor, root_rank: int, name: str | None) -> Tensor:
    result: Tensor = _Broadcast.apply(tensor, root_rank, name)  # type: ignore[no-untyped-call]
    return result


def _check_differentiable(op: ReduceOp, name: str) -> None:
    if op not in (ReduceOp.Average, ReduceOp.Sum):
        raise no_gradient_of(name, op.name)


def _check_group(tensors: Tensors) -> None:
    if isinstance(tensors, Tensor):
        raise InvalidArgumentError("grouped push_pull: expected a list of tensors, got one tensor")


def _op_of_group(tensors: Tensors, average: bool, op: ReduceOp | None, name: str | None) -> ReduceOp:
    try:
        return resolve_op(average, op)
    except InvalidArgumentError as error:
        for index in range(len(tensors)):
            with suppress(AbortedError), one_call(None if name is None else f"{name}.{index}"):
                raise AbortedError(str(error)) from None
        raise


def _start_group(tensors: Tensors, op: ReduceOp, name: str | None, priority: int, *, in_place: bool) -> GroupHandle:
    _check_group(tensors)
    handles: list[Handle] = []
    failure: Exception | None = None
    for index, tensor in enumerate(tensors):
        try:
            with one_call(None if name is None else f"{name}.{index}") as tensor_name:
                if failure is not None:  # every tensor counts as a call, as on the other ranks
                    raise AbortedError(f"an earlier tensor of the group has failed: {failure}")
                handles.append(start_push_pull(tensor, op, tensor_name, priority, in_place=in_place))
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return GroupHandle(handles)


def _result(handle: Handle) -> Tensor:
    return cast(Tensor, synchronize(handle))


def _results(handle: GroupHandle) -> list[Tensor]:
    return cast("list[Tensor]", synchronize(handle))
