"""push_pull as an operator of torch, for code that torch.compile and torch.export trace.

`torch.ops.byteps.push_pull(tensor, name, op, priority)` is what `byteps.torch.push_pull` with a name becomes in traced
code. It stays in the graph, so nothing breaks there.

What the ranks must have in common. A graph's operators run one after the other, and this one waits for all ranks. The
name says which tensors belong together, so a wrong order gives no wrong sum; but ranks that wait for different ones
wait in vain. Hence all ranks have to trace the same code: then torch gives them the same graph, in the same order. The
operator is declared to have an effect, so that no pass drops it where its result is unused, merges two of it, or moves
it past another one of it. Without a name there would be a counter of calls, which traced code cannot have; such a call
breaks the graph, as before.
"""

from __future__ import annotations

from typing import Any

import torch

from byteps.errors import UnsupportedError
from byteps.ops import ReduceOp
from byteps.torch.ops import start_push_pull, synchronize

__all__: list[str] = []  # importing it registers the operator

Tensor = torch.Tensor


@torch.library.custom_op("byteps::push_pull", mutates_args=())
def _push_pull(tensor: Tensor, name: str, op: str, priority: int) -> Tensor:
    output: Tensor = synchronize(start_push_pull(tensor, ReduceOp[op], name, priority, in_place=False))
    expected = torch.empty_like(tensor, device="meta")  # what the graph was made for, where the input has gaps
    return output if output.stride() == expected.stride() else torch.empty_like(tensor).copy_(output)


@_push_pull.register_fake
def _(tensor: Tensor, name: str, op: str, priority: int) -> Tensor:
    return torch.empty_like(tensor)


def _keep_arguments(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, ctx.name, ctx.op, ctx.priority = inputs


def _gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None, None]:
    if ctx.op not in (ReduceOp.Average.name, ReduceOp.Sum.name):
        raise UnsupportedError(f"push_pull of '{ctx.name}' with op={ctx.op} has no gradient: use Average or Sum")
    return torch.ops.byteps.push_pull(grad, f"{ctx.name}.gradient", ctx.op, ctx.priority), None, None, None


_push_pull.register_autograd(_gradient, setup_context=_keep_arguments)
torch.library._register_effectful_op("byteps::push_pull", torch._library.effects.EffectType.ORDERED)
