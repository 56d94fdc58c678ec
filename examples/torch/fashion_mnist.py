"""Trains a small convolutional network on real images, on any number of ranks, and reports what communication cost.

    python examples/torch/fashion_mnist.py
    bpslaunch --nproc-per-node 2 --servers 1 -- python examples/torch/fashion_mnist.py
    torchrun --nproc-per-node 2 examples/torch/fashion_mnist.py
    mpirun -n 2 python examples/torch/fashion_mnist.py
    bpslaunch --nproc-per-node 2 -- python examples/torch/fashion_mnist.py --mode cross-barrier    # or others: --help

The batch of one step is the same for any number of ranks, which share it out, so all train the same network. The exit
code is 0 only if the ranks end with the same parameters, bit for bit.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from modes import Training, add_arguments, distribute
from torch import nn
from torch.nn import functional

import byteps.torch as bps

BATCH = 120  # images of all ranks in one step
ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / ".data" / "fashion-mnist"


class Data(NamedTuple):
    """Images [n, 1, height, width] from 0 to 1, and their classes [n]."""

    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor


class Totals(NamedTuple):
    """What the training of one rank came to."""

    images: int  # of all ranks
    seconds: float
    waiting_seconds: float  # for communication, in the training thread; NaN where the mode hides it


def main() -> int:
    options = parse_options()
    bps.init()
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // bps.local_size()))
    if BATCH % bps.size() != 0:
        sys.exit(f"{bps.size()} ranks cannot share a batch of {BATCH} images evenly")
    data = load_data(options)
    torch.manual_seed(0)
    model = make_model(data)
    training = distribute(model, torch.optim.Adam(model.parameters(), lr=2e-3), options)
    totals = train(training, data, options.epochs)
    accuracy = test_accuracy(model, data)
    return report(model, totals, accuracy)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains a small network on Fashion-MNIST.")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--limit", type=int, help="train on so many images only")
    add_arguments(parser)
    parser.add_argument("--digits", action="store_true", help="train on scikit-learn's digits: 1,797 images of 8 x 8")
    return parser.parse_args()


def load_data(options: argparse.Namespace) -> Data:
    """Fashion-MNIST if every machine has it or can get it; else the digits, which scikit-learn's wheel carries."""
    if not options.digits and bps.local_rank() == 0 and not IMAGES.is_dir():
        fetched = subprocess.run([ROOT / "tools" / "get_fashion_mnist.sh"], capture_output=True, text=True, check=False)
        if fetched.returncode != 0:
            print(f"Fashion-MNIST cannot be had: {fetched.stderr.strip()[-300:]}", flush=True)
    bps.barrier()
    here = torch.tensor(IMAGES.is_dir() and not options.digits, dtype=torch.int32)
    everywhere = bool(bps.allreduce(here, name="images are here", op=bps.Min))
    say(f"{bps.size()} ranks train on {'Fashion-MNIST' if everywhere else 'the digits of scikit-learn'}")
    data = fashion_mnist() if everywhere else digits()
    whole_steps = min(options.limit or len(data.train_labels), len(data.train_labels)) // BATCH
    count = max(1, whole_steps) * BATCH
    return data._replace(train_images=data.train_images[:count], train_labels=data.train_labels[:count])


def fashion_mnist() -> Data:
    def read(name: str, header_bytes: int) -> torch.Tensor:
        content = gzip.decompress((IMAGES / f"{name}-ubyte.gz").read_bytes())
        return torch.from_numpy(np.frombuffer(content, np.uint8, offset=header_bytes).copy())

    parts = [
        part
        for name in ("train", "t10k")
        for part in (
            read(f"{name}-images-idx3", 16).view(-1, 1, 28, 28).float() / 255,
            read(f"{name}-labels-idx1", 8).long(),
        )
    ]
    return Data(*parts)


def digits() -> Data:
    from sklearn.datasets import load_digits

    loaded = load_digits()
    images = torch.from_numpy(loaded.images).float().unsqueeze(1) / 16
    labels = torch.from_numpy(loaded.target).long()
    return Data(images[:1440], labels[:1440], images[1440:], labels[1440:])


def make_model(data: Data) -> nn.Module:
    height, width = data.train_images.shape[2:]
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (height // 4) * (width // 4), 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def train(training: Training, data: Data, epochs: int) -> Totals:
    model, optimizer, wait, finish = training
    waiting, begin = math.nan if wait is None else 0.0, time.perf_counter()
    for epoch in range(epochs):
        order = torch.randperm(len(data.train_labels), generator=torch.Generator().manual_seed(epoch))
        for batch in progress(order.split(BATCH), f"epoch {epoch + 1}/{epochs}"):
            mine = batch.chunk(bps.size())[bps.rank()]
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(data.train_images[mine]), data.train_labels[mine])
            loss.backward()
            before = time.perf_counter()
            if wait is not None:
                wait()
            waiting += time.perf_counter() - before
            optimizer.step()
    if finish is not None:
        finish()
    return Totals(epochs * len(data.train_labels), time.perf_counter() - begin, waiting)


def progress(batches: tuple[torch.Tensor, ...], title: str) -> Iterator[torch.Tensor]:
    """Yields the batches; shows a bar on rank 0, or a line for each tenth where there is no terminal."""
    if bps.rank() != 0:
        yield from batches
    elif sys.stderr.isatty():
        from tqdm import tqdm

        yield from tqdm(batches, title, unit=" steps")
    else:
        begin = time.perf_counter()
        for done, batch in enumerate(batches, 1):
            yield batch
            tenths = 10 * done // len(batches)
            if tenths > 10 * (done - 1) // len(batches):
                speed = done * BATCH / (time.perf_counter() - begin)
                say(f"{title} [{'#' * tenths:.<10}] {10 * tenths:3}%  {speed:,.0f} images/s")


@torch.no_grad()
def test_accuracy(model: nn.Module, data: Data) -> float:
    """Every rank tests its share of the images."""
    images, labels = (part.tensor_split(bps.size())[bps.rank()] for part in (data.test_images, data.test_labels))
    right = sum((model(x).argmax(1) == y).sum() for x, y in zip(images.split(1000), labels.split(1000), strict=True))
    return float(bps.allreduce(torch.as_tensor(right), name="right answers", op=bps.Sum)) / len(data.test_labels)


def report(model: nn.Module, totals: Totals, accuracy: float) -> int:
    """Prints the results on rank 0; returns the exit code."""
    metrics = bps.metrics()
    moved_mb = (metrics["bytes_sent"] + metrics["bytes_received"]) / 1e6
    push_pull_gb_s = metrics["push_pull_bytes"] / metrics["busy_us"] / 1e3 if metrics["busy_us"] else 0.0
    waiting_percent = 100 * totals.waiting_seconds / totals.seconds
    state = b"".join(tensor.contiguous().numpy().tobytes() for tensor in model.state_dict().values())
    rows = of_all_ranks([moved_mb, push_pull_gb_s, waiting_percent, *hashlib.sha256(state).digest()])
    digests = [bytes(map(int, row[3:])).hex() for row in rows]
    same = len(set(digests)) == 1
    say(f"test accuracy {accuracy:.4f}, {totals.images / totals.seconds:,.0f} images/s in {totals.seconds:.1f} s")
    say("rank   moved MB  push_pull GB/s  waiting %  SHA-256 of the parameters")
    for rank, (row, digest) in enumerate(zip(rows, digests, strict=True)):
        waiting = "-" if math.isnan(row[2]) else f"{row[2]:.1f}"
        say(f"{rank:4} {row[0]:10.1f} {row[1]:15.3f} {waiting:>10}  {digest}")
    say("all ranks have the same parameters" if same else "ERROR: the ranks' parameters differ")
    return 0 if same else 1


def of_all_ranks(row: list[float]) -> list[list[float]]:
    table = torch.zeros(bps.size(), len(row), dtype=torch.float64)
    table[bps.rank()] = torch.tensor(row)
    return bps.allreduce(table, name="table of results", op=bps.Sum).tolist()


def say(text: str) -> None:
    if bps.rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
