"""push_pull as an operator of torch, for code that torch.compile and torch.export trace.

In traced code `byteps.torch.push_pull` with a name becomes `torch.ops.byteps.push_pull(tensor,
name, op, priority)`, which stays in the graph. A call without a name breaks the graph, because
automatic names need a counter of calls, which traced code cannot have.

All ranks must trace the same code. A graph's operators run one after the other, and this one waits
for all ranks. Names tell which tensors belong together, so a wrong order does not give a wrong sum;
but ranks that wait for different tensors time out. From the same code torch makes the same graph
with the same order on all ranks. The operator is declared to have an effect, so that no pass drops
a call whose result is unused, merges two calls, or changes their order.
"""

from __future__ import annotations

from typing import Any

import torch

from byteps.ops import ReduceOp, no_gradient_of
from byteps.torch.start import start_push_pull, synchronize

__all__: list[str] = []  # importing the module registers the operator

Tensor = torch.Tensor


@torch.library.custom_op("byteps::push_pull", mutates_args=())
def _push_pull(tensor: Tensor, name: str, op: str, priority: int) -> Tensor:
    output: Tensor = synchronize(start_push_pull(tensor, ReduceOp[op], name, priority, in_place=False))
    # The strides that the graph expects if the input has gaps.
    expected = torch.empty_like(tensor, device="meta")
    return output if output.stride() == expected.stride() else torch.empty_like(tensor).copy_(output)


@_push_pull.register_fake
def _(tensor: Tensor, name: str, op: str, priority: int) -> Tensor:
    return torch.empty_like(tensor)


def _keep_arguments(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, ctx.name, ctx.op, ctx.priority = inputs


def _gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None, None]:
    if ctx.op not in (ReduceOp.Average.name, ReduceOp.Sum.name):
        raise no_gradient_of(ctx.name, ctx.op)
    return torch.ops.byteps.push_pull(grad, f"{ctx.name}.gradient", ctx.op, ctx.priority), None, None, None


_push_pull.register_autograd(_gradient, setup_context=_keep_arguments)
torch.library._register_effectful_op("byteps::push_pull", torch._library.effects.EffectType.ORDERED)
