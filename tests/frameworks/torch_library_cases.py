"""push_pull in traced code."""

from __future__ import annotations

import torch
from frameworks.torch_ops_cases import mine, summed
from support.expect import expect_error
from torch import nn

import byteps.torch as bps
from byteps.errors import UnsupportedError

Tensor = torch.Tensor


def case_operator_passes_opcheck() -> None:
    tensors = (mine(3, 4).requires_grad_(), mine(3, 4), mine(4, 3).t(), mine(4, 6)[:, ::2], mine(0))
    for index, tensor in enumerate(tensors):
        torch.library.opcheck(torch.ops.byteps.push_pull.default, (tensor, f"opcheck.{index}", "Sum", 0))


def case_one_graph() -> None:
    for backend in ("eager", "aot_eager", "inductor"):

        @torch.compile(backend=backend, fullgraph=True)
        def compiled(tensor: Tensor, backend: str = backend) -> Tensor:
            doubled = bps.push_pull(tensor * 2, name=f"graph.{backend}", op=bps.Sum)
            half = bps.push_pull(tensor, name=f"graph.half.{backend}", compression=bps.Compression.bf16)
            return bps.allreduce(doubled + half, name=f"graph.again.{backend}")

        leaf = mine(3).requires_grad_()
        result = compiled(leaf)
        expected = summed(3) * (2 + 1 / bps.size())
        assert torch.allclose(result, expected, rtol=1e-2)
        result.sum().backward()
        assert torch.allclose(leaf.grad, torch.full((3,), 2.0 * bps.size() + 1), rtol=1e-2)
    torch._dynamo.reset()


def case_unused_results_are_computed_and_equal_calls_not_merged() -> None:
    for backend in ("aot_eager", "inductor"):

        @torch.compile(backend=backend, fullgraph=True)
        def compiled(tensor: Tensor, backend: str = backend) -> Tensor:
            bps.push_pull(tensor, name=f"unused.{backend}")
            same = bps.push_pull(tensor, name=f"twice.{backend}") + bps.push_pull(tensor, name=f"twice.{backend}")
            return same * 1

        before = bps.metrics()["push_pulls"]
        compiled(mine(3))
        assert bps.metrics()["push_pulls"] == before + 3, backend
    torch._dynamo.reset()


def case_whole_training_step_in_one_graph() -> None:
    torch.manual_seed(1)
    weight = torch.randn(3, 6)

    def step(weight: Tensor, x: Tensor, y: Tensor) -> Tensor:
        def loss(weight: Tensor) -> Tensor:
            return nn.functional.mse_loss(x @ weight.t(), y)

        gradient = torch.func.grad(loss)(weight)
        return weight - 0.1 * bps.push_pull(gradient, name="functional")

    def expected(weight: Tensor, x: Tensor, y: Tensor) -> Tensor:
        leaf = weight.clone().requires_grad_()
        nn.functional.mse_loss(x @ leaf.t(), y).backward()
        return weight - 0.1 * leaf.grad

    generator = torch.Generator().manual_seed(2)
    x, y = torch.randn(12, 6, generator=generator), torch.randn(12, 3, generator=generator)
    share = slice(bps.rank() * 12 // bps.size(), (bps.rank() + 1) * 12 // bps.size())
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    assert torch.allclose(compiled(weight, x[share], y[share]), expected(weight, x, y), atol=1e-6)
    torch._dynamo.reset()


def case_dynamic_shapes() -> None:
    @torch.compile(backend="aot_eager", fullgraph=True, dynamic=True)
    def compiled(tensor: Tensor) -> Tensor:
        # The result keeps the operator's shape.
        return bps.push_pull(tensor.sum(0), name="dynamic", op=bps.Sum)

    for rows in (2, 3, 5):
        assert torch.allclose(compiled(mine(3).expand(rows, 3)), rows * summed(3))
    torch._dynamo.reset()


def case_export() -> None:
    class Averaged(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return bps.push_pull(x + 1, name="exported", op=bps.Sum)

    exported = torch.export.export(Averaged(), (mine(3),))
    assert any("push_pull" in str(node.target) for node in exported.graph.nodes)
    assert torch.equal(exported.module()(mine(3)), summed(3) + bps.size())


def case_without_a_name_the_graph_breaks() -> None:
    def unnamed(tensor: Tensor) -> Tensor:
        return bps.push_pull(tensor * 2, op=bps.Sum) + 1

    assert torch.equal(torch.compile(unnamed, backend="eager")(mine(3)), summed(3) * 2 + 1)
    torch._dynamo.reset()  # drops the compiled function
    with expect_error(torch._dynamo.exc.Unsupported, "only one with a name"):
        torch.compile(unnamed, backend="eager", fullgraph=True)(mine(3))
    torch._dynamo.reset()


def case_no_gradient_of_max() -> None:
    leaf = mine(3).requires_grad_()
    result = torch.ops.byteps.push_pull(leaf, "max", "Max", 0)
    with expect_error(UnsupportedError, "op=Max"):
        result.sum().backward()
