"""All modes in which byteps trains a PyTorch model, for fashion_mnist.py --mode."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

import byteps.torch as bps

COMPRESSIONS = {"none": bps.Compression.none, "fp16": bps.Compression.fp16, "bf16": bps.Compression.bf16}


class Training(NamedTuple):
    """A model and functions for a training loop."""

    model: nn.Module  # the model to call
    optimizer: torch.optim.Optimizer
    wait: Callable[[], None] | None = None  # called after backward to measure the time of waiting
    finish: Callable[[], None] | None = None  # called before other uses of the weights


def with_optimizer(model: nn.Module, plain: torch.optim.Optimizer, options: argparse.Namespace) -> Training:
    """The optimizer averages the gradients while backward runs, and waits for them in step."""
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    bps.broadcast_optimizer_state(plain, root_rank=0)
    optimizer = bps.DistributedOptimizer(
        plain,
        model.named_parameters(),
        COMPRESSIONS[options.compression],
        sync="step",
        bucket_bytes=options.bucket_kib << 10,
    )
    return Training(model, optimizer, wait=optimizer.synchronize)


def with_ddp(model: nn.Module, plain: torch.optim.Optimizer, options: argparse.Namespace) -> Training:
    """The model averages the gradients; backward waits for them. The optimizer is a plain one."""
    return Training(bps.DistributedDataParallel(model, compression=COMPRESSIONS[options.compression]), plain)


def with_torch_ddp(model: nn.Module, plain: torch.optim.Optimizer, options: argparse.Namespace) -> Training:
    """Torch's own DistributedDataParallel on the backend "byteps": nothing else changes.

    By torchrun or bpslaunch.
    """
    dist.init_process_group("byteps")
    return Training(nn.parallel.DistributedDataParallel(model), plain, finish=dist.destroy_process_group)


def with_torch_ddp_hook(model: nn.Module, plain: torch.optim.Optimizer, options: argparse.Namespace) -> Training:
    """Torch's own DistributedDataParallel on any backend; byteps averages the gradients.

    By torchrun or bpslaunch.
    """
    dist.init_process_group("gloo")
    wrapped = nn.parallel.DistributedDataParallel(model)
    wrapped.register_comm_hook(
        bps.DDPHookState(compression=COMPRESSIONS[options.compression]),
        bps.ddp_hook,
    )
    return Training(wrapped, plain, finish=dist.destroy_process_group)


def with_cross_barrier(model: nn.Module, plain: torch.optim.Optimizer, options: argparse.Namespace) -> Training:
    """The next forward starts while gradients are on their way; each module waits for its own."""
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = bps.CrossBarrier(model, plain, model.named_parameters(), COMPRESSIONS[options.compression])
    return Training(model, optimizer, finish=optimizer.flush)


def asynchronously(model: nn.Module, plain: torch.optim.Optimizer, options: argparse.Namespace) -> Training:
    """The summation services hold the weights; ranks are at most `staleness` steps apart."""
    optimizer = bps.DistributedOptimizer(
        plain, model.named_parameters(), asynchronous=True, staleness=options.staleness
    )
    return Training(model, optimizer, finish=optimizer.settle)


MODES = {
    "optimizer": with_optimizer,
    "ddp": with_ddp,
    "torch-ddp": with_torch_ddp,
    "torch-ddp-hook": with_torch_ddp_hook,
    "cross-barrier": with_cross_barrier,
    "async": asynchronously,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    explained = " ".join(f"{name}: {mode.__doc__}" for name, mode in MODES.items())
    parser.add_argument("--mode", choices=MODES, default="optimizer", help=explained)
    parser.add_argument("--compression", choices=COMPRESSIONS, default="none", help="for the way over the network")
    parser.add_argument("--bucket-kib", type=int, default=0, help="optimizer: send small gradients together")
    parser.add_argument("--staleness", type=_staleness, default=float("inf"), help="async: steps, or inf")


def distribute(model: nn.Module, plain: torch.optim.Optimizer, options: argparse.Namespace) -> Training:
    """Has `model` and `plain` trained by all ranks together. All ranks call it."""
    return MODES[options.mode](model, plain, options)


def _staleness(text: str) -> float:
    return float(text) if text == "inf" else int(text)
