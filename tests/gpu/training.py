"""Training with CUDA tensors on a real GPU, compared with the same training in one process.

    bpslaunch --nproc-per-node 2 tests/gpu/training.py optimizer,ddp,torch_ddp,cross_barrier float32,float16 [compile]

All ranks use GPU 0. Every rank also trains a second model with the batches of all ranks, and
averages their gradients itself: the parameters must agree after each way, and must have the same
bits on all ranks. Kernels that only wait delay the gradients, so a copy that does not wait for its
gradient is seen. "float16" trains with autocast and GradScaler, and rank 0 has one infinite
gradient; "bfloat16" with autocast.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

import byteps.torch as bps

STEPS, ROWS, WIDTH = 12, 64, 512
INFINITE_STEP = 5  # of float16, on rank 0
# A sum of two ranks has the same bits as the reference's; autocast's kernels may be chosen anew.
TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}

Tensor = torch.Tensor


def make_model() -> nn.Module:
    torch.manual_seed(1)
    layers: list[nn.Module] = [nn.Embedding(100, WIDTH)]
    for _ in range(4):
        layers += [nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.LayerNorm(WIDTH)]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 10)).cuda()


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def loss_of(model: nn.Module, step: int, rank: int, precision: str) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    words = torch.randint(100, (ROWS,), generator=generator).cuda()
    classes = torch.randint(10, (ROWS,), generator=generator).cuda()
    dtype = getattr(torch, precision)
    with torch.autocast("cuda", dtype, enabled=precision != "float32"):
        loss = nn.functional.cross_entropy(model(words), classes)
    is_infinite = precision == "float16" and step == INFINITE_STEP and rank == 0
    return loss * float("inf") if is_infinite else loss


def train_alone(precision: str, size: int) -> list[Tensor]:
    """Returns the parameters after training with the averages of all ranks' gradients."""
    model = make_model()
    optimizer = make_optimizer(model)
    scaler = torch.amp.GradScaler("cuda", enabled=precision == "float16", init_scale=1024.0)
    for step in range(STEPS):
        averages: list[Tensor] = []
        for rank in range(size):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, step, rank, precision)).backward()
            gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
            averages = gradients if rank == 0 else [a + g for a, g in zip(averages, gradients, strict=True)]
        for parameter, total in zip(model.parameters(), averages, strict=True):
            parameter.grad = total * (1 / size)
        scaler.step(optimizer)
        scaler.update()
    return [p.detach() for p in model.parameters()]


def train(way: str, precision: str, compiled: bool) -> list[Tensor]:
    plain = make_model()
    model = plain
    optimizer = make_optimizer(plain)
    if way == "ddp":
        model = bps.DistributedDataParallel(plain)
    elif way == "torch_ddp":
        model = nn.parallel.DistributedDataParallel(plain)
    elif way == "cross_barrier":
        optimizer = bps.CrossBarrier(plain, optimizer)
    else:
        optimizer = bps.DistributedOptimizer(optimizer, named_parameters=plain.named_parameters())
    if compiled:
        model = torch.compile(model)  # type: ignore[assignment]
    scaler = torch.amp.GradScaler("cuda", enabled=precision == "float16", init_scale=1024.0)
    side = torch.cuda.Stream()
    for step in range(STEPS):
        stream = side if step % 3 == 2 else torch.cuda.current_stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            optimizer.zero_grad()
            loss = loss_of(model, step, bps.rank(), precision)
            torch.cuda._sleep(2_000_000 * (1 + bps.rank()))  # about a millisecond
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        torch.cuda.current_stream().wait_stream(stream)
    if way == "cross_barrier":
        optimizer.synchronize()  # type: ignore[attr-defined]
    return [p.detach() for p in plain.parameters()]


def difference(got: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    return max(float((g - e).norm() / e.norm().clamp(min=1e-6)) for g, e in zip(got, expected, strict=True))


def have_same_bits(parameters: Sequence[Tensor]) -> bool:
    bits = torch.cat([p.reshape(-1) for p in parameters]).view(torch.int32)
    return torch.equal(bps.push_pull(bits, op=bps.Min), bps.push_pull(bits, op=bps.Max))


def main() -> None:
    ways, precisions = (argument.split(",") for argument in sys.argv[1:3])
    compiled = sys.argv[3:] == ["compile"]
    torch.cuda.set_device(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    bps.init()
    if "torch_ddp" in ways:
        dist.init_process_group("byteps")
    failed = []
    for precision in precisions:
        expected = train_alone(precision, bps.size())
        for way in ways:
            if way == "cross_barrier" and precision == "float16":
                continue  # CrossBarrier refuses GradScaler
            got = train(way, precision, compiled)
            apart, same = difference(got, expected), have_same_bits(got)
            case = f"{way}, {precision}{', compiled' if compiled else ''}"
            if not (apart <= TOLERANCE[precision] * (10 if compiled else 1) and same):
                failed.append(case)
            if bps.rank() == 0:
                print(f"training: {case}: {apart:.2e} from one process, same bits on all ranks: {same}", flush=True)
    if "torch_ddp" in ways:
        dist.destroy_process_group()
    bps.shutdown()
    if failed:
        raise SystemExit(f"wrong: {'; '.join(failed)}")


if __name__ == "__main__":
    main()
