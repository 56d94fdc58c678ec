"""A rank that trains a model in one way or another: python -m benchmarks.peers.train_rank METHOD.

A step understands `model` (keyword arguments of one of MODELS, and its name as `kind`) and makes
`calls` training steps on random data of its own, of which it sees the end. All methods start from
the same parameters and use the same plain optimizer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.nn import functional

from benchmarks.harness.rank import serve

Loss = Callable[[], torch.Tensor]  # seed of a new batch
TrainingStep = Callable[[], None]


def mlp(width: int, layers: int, batch: int) -> tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]:
    """Layers of `width`^2 parameters; compute per byte of gradient is in proportion to `batch`."""
    blocks = [layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*blocks), lambda model: model(torch.randn(batch, width)).square().mean()


def gpt2(
    width: int, layers: int, heads: int, vocabulary: int, context: int, batch: int
) -> tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]:
    """Hugging Face's GPT-2 with random weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_embd=width, n_layer=layers, n_head=heads, vocab_size=vocabulary, n_positions=context)

    def loss(model: nn.Module) -> torch.Tensor:
        tokens = torch.randint(vocabulary, (batch, context))
        return functional.cross_entropy(model(tokens).logits.flatten(0, 1), tokens.flatten())

    return GPT2LMHeadModel(config), loss


MODELS: Mapping[str, Callable[..., tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]]] = {"mlp": mlp, "gpt2": gpt2}


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def plain_step(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[nn.Module], torch.Tensor]) -> None:
    optimizer.zero_grad()
    loss(model).backward()
    optimizer.step()


class TorchDdp:
    """DistributedDataParallel over a backend of torch.distributed; `sends`: send gradients."""

    def __init__(self, backend: str, *, sends: bool = True) -> None:
        import torch.distributed as dist

        if backend == "byteps":
            import byteps.torch  # noqa: F401  (registers it)
        self.rank, size = int(os.environ["BENCH_RANK"]), int(os.environ["BENCH_SIZE"])
        dist.init_process_group(backend, init_method=os.environ["BENCH_STORE"], rank=self.rank, world_size=size)
        self.leave = dist.destroy_process_group
        self.finish: Callable[[], None] = lambda: None
        self._sends = sends

    def prepare(self, model: nn.Module, loss: Callable[[nn.Module], torch.Tensor]) -> TrainingStep:
        wrapped = nn.parallel.DistributedDataParallel(model)
        optimizer = make_optimizer(model)
        if self._sends:
            return lambda: plain_step(wrapped, optimizer, loss)
        wrapped.register_comm_hook(None, noop_hook)
        return lambda: self._step_and_meet(wrapped, optimizer, loss)

    def _step_and_meet(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[nn.Module], torch.Tensor]
    ) -> None:
        plain_step(model, optimizer, loss)
        torch.distributed.barrier()


class Ours:
    """byteps.torch's own ways."""

    def __init__(self, method: str) -> None:
        import byteps.torch as bps

        bps.init()
        self.rank, self.leave = bps.rank(), bps.shutdown
        self._method = method
        self.finish: Callable[[], None] = lambda: None

    def prepare(self, model: nn.Module, loss: Callable[[nn.Module], torch.Tensor]) -> TrainingStep:
        import byteps.torch as bps

        bps.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = make_optimizer(model)
        if self._method == "cross-barrier":
            optimizer = bps.CrossBarrier(model, optimizer, model.named_parameters())
            self.finish = optimizer.flush
        elif self._method == "meet":
            return lambda: self._step_and_meet(model, optimizer, loss)
        elif self._method == "optimizer-buckets":
            optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters(), bucket_bytes=1 << 20)
        else:
            optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters())
        return lambda: plain_step(model, optimizer, loss)

    def _step_and_meet(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[nn.Module], torch.Tensor]
    ) -> None:
        import byteps.torch as bps

        plain_step(model, optimizer, loss)
        bps.push_pull(torch.zeros(1), name="meet")


METHODS: Mapping[str, Callable[[], TorchDdp | Ours]] = {
    "ddp-gloo": lambda: TorchDdp("gloo"),
    # Only its own work: copies gradients into buckets and back.
    "ddp-nothing": lambda: TorchDdp("gloo", sends=False),
    "ddp-byteps": lambda: TorchDdp("byteps"),
    "optimizer": lambda: Ours("optimizer"),
    "optimizer-buckets": lambda: Ours("optimizer-buckets"),
    "cross-barrier": lambda: Ours("cross-barrier"),
    "meet": lambda: Ours("meet"),  # gradients are not sent, but ranks make their steps together
}


def main() -> None:
    """Entry point."""
    torch.set_num_threads(1)
    library = METHODS[sys.argv[1]]()
    prepared: dict[str, TrainingStep] = {}

    def step(request: Mapping[str, Any]) -> None:
        key = repr(request["model"])
        if key not in prepared:
            prepared.clear()
            settings = dict(request["model"])
            torch.manual_seed(0)
            prepared[key] = library.prepare(*MODELS[settings.pop("kind")](**settings))
        for _ in range(request["calls"] or 2):
            prepared[key]()
        library.finish()

    serve(library.rank, step)
    library.leave()


if __name__ == "__main__":
    main()
