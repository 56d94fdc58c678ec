"""A rank that trains an imaginary model: python -m benchmarks.peers.overlap_rank.

The model's shapes and order are real, its compute is matrix products on one thread. A step
understands `model`, `compute_s` (the whole model's forward and backward) and `mode`: "compute" or
"communication" alone, or "priority" and "no priority": backward hands out each layer's gradients as
they are ready, the next forward waits for each layer's before it uses it. It returns `step_s`: for
the overlapping modes from the end of one backward to the end of the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import byteps
from benchmarks.harness.rank import serve
from benchmarks.models import FORWARD_PART, MODELS, Layer
from byteps.ops import Buffer, Handle, Sum, push_pull_buffer, synchronize

_SIDE = 192  # size of the matrices: a product takes a fraction of a millisecond
_CALIBRATION_S = 0.5


class Compute:
    """Keeps one core busy for a time, by work that takes longer when the core is shared."""

    def __init__(self) -> None:
        self._one = np.ones((_SIDE, _SIDE), np.float32)
        self._product = np.empty_like(self._one)
        self._debt_s = 0.0
        self._seconds_each = 1.0
        self._calibrate()

    def work(self, seconds: float) -> None:
        self._debt_s += seconds
        while self._debt_s > 0:
            self._multiply()
            self._debt_s -= self._seconds_each

    def _multiply(self) -> None:
        np.matmul(self._one, self._one, out=self._product)

    def _calibrate(self) -> None:
        begin, count = time.monotonic(), 0
        while time.monotonic() < begin + _CALIBRATION_S:
            self._multiply()
            count += 1
        self._seconds_each = (time.monotonic() - begin) / count


class Training:
    """The gradients and steps of one model."""

    def __init__(self, layers: Sequence[Layer], name: str) -> None:
        self._work = [layer.work / sum(each.work for each in layers) for layer in layers]
        self._gradients = [
            [(np.zeros(shape, np.float32), f"{name}.{number}.{part}") for part, shape in enumerate(layer.shapes)]
            for number, layer in enumerate(layers)
        ]
        self._compute = Compute()

    def run(self, mode: str, compute_s: float, steps: int) -> float:
        """Seconds of one step."""
        if mode == "compute":
            return self._timed(lambda: self._compute.work(compute_s), steps)
        if mode == "communication":
            return self._timed(self._communicate, steps)
        return self._overlap(compute_s, steps, with_priority=mode == "priority")

    @staticmethod
    def _timed(action: Callable[[], None], steps: int) -> float:
        begin = time.monotonic()
        for _ in range(steps):
            action()
        return (time.monotonic() - begin) / steps

    def _communicate(self) -> None:
        started = [self._start(layer, 0) for layer in reversed(range(len(self._gradients)))]
        for handles in started:
            self._finish(handles)

    def _overlap(self, compute_s: float, steps: int, *, with_priority: bool) -> float:
        layers = range(len(self._gradients))
        under_way: dict[int, list[Handle]] = {}
        ends = []
        for _ in range(steps + 1):  # the first fills the pipeline
            for layer in layers:
                self._finish(under_way.pop(layer, []))
                self._compute.work(self._work[layer] * compute_s * FORWARD_PART)
            for layer in reversed(layers):
                self._compute.work(self._work[layer] * compute_s * (1 - FORWARD_PART))
                under_way[layer] = self._start(layer, -layer if with_priority else 0)
            ends.append(time.monotonic())
        for handles in under_way.values():
            self._finish(handles)
        return (ends[-1] - ends[0]) / steps

    def _start(self, layer: int, priority: int) -> list[Handle]:
        started = []
        for array, name in reversed(self._gradients[layer]):
            buffer = Buffer(array.ctypes.data, array.nbytes, array.dtype.name, array)
            started.append(push_pull_buffer(buffer, buffer, name, Sum, priority, finish=lambda: None))
        return started

    @staticmethod
    def _finish(handles: Sequence[Handle]) -> None:
        for handle in handles:
            synchronize(handle)


def main() -> None:
    """Entry point."""
    byteps.init()
    trainings: dict[str, Training] = {}

    def step(request: Mapping[str, Any]) -> Mapping[str, Any]:
        model = request["model"]
        if model not in trainings:
            trainings[model] = Training(MODELS[model](), model)
        if request["calls"] == 0:
            return {"step_s": trainings[model].run("communication", 0.0, 1)}
        return {"step_s": trainings[model].run(request["mode"], request["compute_s"], request["calls"])}

    serve(byteps.rank(), step)
    byteps.shutdown()


if __name__ == "__main__":
    main()
