"""Trains a small convolutional network on several ranks and reports the cost of communication.

    python examples/torch/fashion_mnist.py bpslaunch --nproc-per-node 2 --servers 1 -- python
    examples/torch/fashion_mnist.py torchrun --nproc-per-node 2 examples/torch/fashion_mnist.py
    mpirun -n 2 python examples/torch/fashion_mnist.py bpslaunch --nproc-per-node 2 -- python
    examples/torch/fashion_mnist.py --mode cross-barrier # or others: --help

The batch of one step is the same for any number of ranks, which share it out, so all train the same
network. The exit code is 0 only if the ranks end with the same parameters, bit for bit.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from modes import Training, add_arguments, distribute
from torch import nn
from torch.nn import functional

import byteps.torch as bps

sys.path.append(str(Path(__file__).resolve().parents[1]))
from images import load_images
from results import report, say

BATCH = 120  # images of all ranks in one step


class Data(NamedTuple):
    """Images [n, 1, height, width] from 0 to 1, and their classes [n]."""

    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor


class Totals(NamedTuple):
    """The results of one rank."""

    images: int  # number of images on all ranks
    seconds: float
    waiting_seconds: float  # time of the training thread in communication; NaN if the mode hides it


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
    parameters = b"".join(tensor.contiguous().numpy().tobytes() for tensor in model.state_dict().values())
    return report(accuracy, totals.images, totals.seconds, parameters, totals.waiting_seconds)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains a small network on Fashion-MNIST.")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--limit", type=int, help="train on so many images only")
    add_arguments(parser)
    parser.add_argument("--digits", action="store_true", help="train on scikit-learn's digits: 1,797 images of 8 x 8")
    return parser.parse_args()


def load_data(options: argparse.Namespace) -> Data:
    train_images, train_labels, test_images, test_labels = map(torch.from_numpy, load_images(options.digits))
    whole_steps = min(options.limit or len(train_labels), len(train_labels)) // BATCH
    count = max(1, whole_steps) * BATCH
    return Data(train_images[:count].unsqueeze(1), train_labels[:count], test_images.unsqueeze(1), test_labels)


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
    """Yields the batches. Rank 0 shows a progress bar, or a line for each tenth."""
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


if __name__ == "__main__":
    sys.exit(main())
