"""The model of a plan: its gradients, when backward computes them, and when forward needs their sums."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from byteps.errors import InvalidArgumentError

NAMES = ("vgg16", "resnet50", "gpt2")
# Copying a larger gradient into a bucket costs more than a push_pull of its own (byteps/torch/grouping.py).
MOST_BYTES_COPIED = 128 << 10
_LAYERS = 50  # number of layers of a model of which only the size is known
_ELEMENT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Gradient:
    """What one push_pull sums."""

    nbytes: int
    ready_s: float  # from the start of backward until it is computed
    needed_s: float  # computing time of forward before its sum is needed
    element_bytes: int = _ELEMENT_BYTES


@dataclass(frozen=True, slots=True)
class Model:
    """Gradients in the order of forward, and the computing time of both passes."""

    gradients: list[Gradient]
    backward_s: float = 0.0
    forward_s: float = 0.0
    assumption: str = ""  # about the computing time; "": none

    @property
    def nbytes(self) -> int:
        return sum(gradient.nbytes for gradient in self.gradients)

    @property
    def compute_s(self) -> float:
        return self.backward_s + self.forward_s

    def computed_in(self, seconds: float) -> Model:
        """Returns the model on a faster or slower machine."""
        if self.compute_s == 0:
            raise InvalidArgumentError("--compute-ms: expected computing times of the layers, got none")
        factor = seconds / self.compute_s
        gradients = [
            replace(each, ready_s=each.ready_s * factor, needed_s=each.needed_s * factor) for each in self.gradients
        ]
        return Model(gradients, self.backward_s * factor, self.forward_s * factor)

    def as_fp16(self) -> Model:
        """Returns the model with wider gradients sent as float16."""
        return replace(
            self,
            gradients=[
                replace(each, nbytes=-(-each.nbytes // each.element_bytes) * 2, element_bytes=2)
                if each.element_bytes > 2
                else each
                for each in self.gradients
            ],
        )

    def in_buckets(self, bucket_bytes: int) -> Model:
        """Returns the model with small gradients in common buckets, as DistributedOptimizer makes them.

        A bucket has one dtype. It is ready with its last gradient, and needed with its first.
        """
        buckets: list[Gradient] = []
        filling: dict[int, int] = {}  # index in buckets, by the bytes of an element
        for gradient in self.gradients:
            last = filling.get(gradient.element_bytes)
            if gradient.nbytes >= min(bucket_bytes, MOST_BYTES_COPIED):
                buckets.append(gradient)
            elif last is None or buckets[last].nbytes + gradient.nbytes > bucket_bytes:
                filling[gradient.element_bytes] = len(buckets)
                buckets.append(gradient)
            else:
                bucket = buckets[last]
                buckets[last] = replace(
                    bucket,
                    nbytes=bucket.nbytes + gradient.nbytes,
                    ready_s=max(bucket.ready_s, gradient.ready_s),
                    needed_s=min(bucket.needed_s, gradient.needed_s),
                )
        return replace(self, gradients=buckets)


def named(name: str, compute_s: float | None) -> Model:
    """Returns a model of NAMES."""
    from byteps import _core

    layers, estimated_s = _core.model_layers(name)
    model = of_work(layers, estimated_s if compute_s is None else compute_s)
    if compute_s is not None:
        return model
    return replace(
        model, assumption=f"{name} computes {estimated_s * 1e3:g} ms per step, as a GPU of 2017 (--compute-ms)"
    )


def of_size(megabytes: float, compute_s: float | None) -> Model:
    """Returns a model of equal layers."""
    elements = round(megabytes * 1e6 / _ELEMENT_BYTES)
    cuts = [elements * i // _LAYERS for i in range(_LAYERS + 1)]
    model = of_work([(_ELEMENT_BYTES * (end - start), 1.0) for start, end in pairwise(cuts)], compute_s or 0.0)
    return replace(model, assumption=f"the model has {_LAYERS} equal layers (--layers, --torch)")


def of_work(layers: list[tuple[int, float]], compute_s: float) -> Model:
    """Returns a model of (gradient bytes, work): computing time is divided by the work."""
    from byteps import _core

    gradients, backward_s, forward_s = _core.model_gradients(layers, compute_s)
    return Model([Gradient(*each) for each in gradients], backward_s, forward_s)


def from_file(path: Path, compute_s: float | None) -> Model:
    """Reads a CSV file with a row for each layer, in the order of forward.

    Columns: bytes or elements (of float32); forward_ms and backward_ms, or neither; others are ignored.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file, skipinitialspace=True))
            header = rows[0].keys() if rows else ()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"--layers {path}: {error}") from None
    size = next((name for name in ("bytes", "elements") if name in header), None)
    if size is None:
        raise InvalidArgumentError(f"--layers {path}: expected a header with bytes or elements and at least one row")
    factor = _ELEMENT_BYTES if size == "elements" else 1
    nbytes = [round(each) * factor for each in _column(path, rows, size)]
    if {"forward_ms", "backward_ms"} & set(header):
        model = of_times(nbytes, _column(path, rows, "forward_ms"), _column(path, rows, "backward_ms"))
        return model if compute_s is None else model.computed_in(compute_s)
    model = of_work([(each, 1.0) for each in nbytes], compute_s or 0.0)
    return replace(model, assumption="all layers compute for the same time (forward_ms, backward_ms)")


def of_times(nbytes: Sequence[int], forward_ms: Sequence[float], backward_ms: Sequence[float]) -> Model:
    """Returns a model of the layers' gradient bytes and computing times."""
    forward_s = sum(forward_ms) / 1e3
    backward_s = sum(backward_ms) / 1e3
    gradients = []
    needed_s, ready_s = 0.0, backward_s
    for size, forward, backward in zip(nbytes, forward_ms, backward_ms, strict=True):
        if size:
            gradients.append(Gradient(size, ready_s, needed_s))
        needed_s += forward / 1e3
        ready_s -= backward / 1e3
    return Model(gradients, backward_s, forward_s)


def _column(path: Path, rows: Sequence[dict[str, str]], name: str) -> list[float]:
    values = []
    for number, row in enumerate(rows, start=2):
        try:
            value = float(row.get(name) or "")
        except ValueError:
            value = -1.0
        if not 0 <= value < 1e15:
            raise InvalidArgumentError(
                f"--layers {path}, line {number}: {name}: expected a number of 0 or more, got {row.get(name)!r}"
            )
        values.append(value)
    return values
