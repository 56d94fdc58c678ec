"""What a push_pull in MXNet's engine costs, and when those of a training step begin and end.

    python benchmarks/mxnet_ops.py                                              # one rank: the operation itself
    bpslaunch --nproc-per-node 2 -- python benchmarks/mxnet_ops.py
    python -m benchmarks.lab --hosts 2 --mbps 200 -- python benchmarks/mxnet_ops.py --timeline

with the Python that has MXNet, and this folder's parent on PYTHONPATH.

Cost: from the push to the end, of one element: one after the other, each waited for; many at once, on arrays of their
own; and a chain on one array. Beside them the same with an operation of MXNet's own in place (v += 0), and with the core
without an engine. They take turns; medians.

Timeline: a step of equal layers, whose gradients become ready one after the other, the last layer's first. Times are
those at which MXNet's engine began and ended an operation, as MXNet's profiler has seen them. A letter is a layer; on its
line, `.` is between the start of the step and its gradient, `=` is while it travels. Above it, what the engine computes:
`f` forward, `b` backward.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import byteps.mxnet as bps  # before MXNet, which newer releases of NumPy need
import mxnet as mx
import numpy as np
from byteps.ops import Buffer, Sum, push_pull_buffer, synchronize
from mxnet import autograd, gluon

OPERATIONS, ROUNDS = 50, 200
GOAL_US = 15.0  # beyond the core
LAYERS, WIDTH, BATCH = 8, 512, 2048
COLUMNS = 72  # of the timeline
LETTERS = "ABCDEFGHIJ"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--timeline", action="store_true")
    options = parser.parse_args()
    bps.init()
    if options.timeline:
        timeline()
    else:
        costs()
    bps.shutdown()


class Way(NamedTuple):
    """To do something to an array of one element."""

    start: Callable[[int], Any]  # with array number i
    finish: Callable[[int, Any], object]  # what start(i) has begun and returned


def costs() -> None:
    arrays = [mx.nd.ones((1,)) for _ in range(OPERATIONS)]
    numpy_arrays = [np.ones(1, np.float32) for _ in range(OPERATIONS)]
    buffers = [Buffer(array.ctypes.data, array.nbytes, array.dtype.name, array) for array in numpy_arrays]

    def wait(i: int, _: Any) -> None:
        arrays[i].wait_to_read()

    def add_nothing(i: int) -> None:
        arrays[i] += 0

    ways = {
        "push_pull": Way(lambda i: bps.byteps_push_pull(arrays[i], name=f"cost.{i}"), wait),
        "the core alone": Way(
            lambda i: push_pull_buffer(buffers[i], buffers[i], f"core.{i}", Sum, 0, finish=lambda: None),
            lambda _, handle: synchronize(handle),
        ),
        "v += 0": Way(add_nothing, wait),
    }
    say(f"{bps.size()} ranks, us for each of {OPERATIONS} operations on one float32:")
    say(f"{'':20}" + "".join(f"{name:>16}" for name in ways) + f"{'beyond the core':>18}")
    for title, pattern in (("one at a time", one_at_a_time), ("all at once", all_at_once)):
        ours_us, core_us, native_us = in_turns([lambda way=way: pattern(way) for way in ways.values()])  # type: ignore[misc]
        columns = f"{ours_us:16.1f}{core_us:16.1f}{native_us:16.1f}{ours_us - core_us:18.1f}"
        say(f"{title:20}{columns}  {'at most' if ours_us - core_us <= GOAL_US else 'MISSED:'} {GOAL_US:g}")
    ours_us, native_us = in_turns([lambda: chained(ways["push_pull"]), lambda: chained(ways["v += 0"])])
    say(f"{'chained':20}{ours_us:16.1f}{'':16}{native_us:16.1f}")


def one_at_a_time(way: Way) -> None:
    for i in range(OPERATIONS):
        way.finish(i, way.start(i))


def all_at_once(way: Way) -> None:
    for i, started in enumerate([way.start(i) for i in range(OPERATIONS)]):
        way.finish(i, started)


def chained(way: Way) -> None:
    for _ in range(OPERATIONS):
        started = way.start(0)
    way.finish(0, started)


def in_turns(functions: Sequence[Callable[[], object]]) -> list[float]:
    """Microseconds of an operation by each function, as a median. Ranks meet before the clock starts."""
    taken: list[list[float]] = [[] for _ in functions]
    for turn in range(ROUNDS + 1):
        for function, times in zip(functions, taken, strict=True):
            bps.push_pull(mx.nd.ones((1,)), name="meet").wait_to_read()
            begin = time.perf_counter()
            function()
            if turn:  # the first one prepares
                times.append((time.perf_counter() - begin) * 1e6 / OPERATIONS)
    return [statistics.median(times) for times in taken]


class Event(NamedTuple):
    """An operation of the engine; seconds."""

    name: str
    begin: float
    end: float


def timeline() -> None:
    mx.random.seed(0)
    net = gluon.nn.HybridSequential()
    for _ in range(LAYERS):
        net.add(gluon.nn.Dense(WIDTH, activation="tanh", use_bias=False, in_units=WIDTH))
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True, static_shape=True)
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 1e-3})
    images = mx.nd.random.normal(shape=(BATCH, WIDTH))

    def step() -> None:
        with autograd.record():
            outputs = net(images)
        outputs.backward()
        trainer.step(BATCH)
        mx.nd.waitall()

    for _ in range(3):
        step()
    bps.barrier()
    show_timeline(profiled(step))


def profiled(step: Callable[[], None]) -> list[Event]:
    """What the engine did in it, in the order of the ends."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        mx.profiler.set_config(profile_symbolic=True, profile_imperative=True, filename=str(path))
        mx.profiler.set_state("run")
        step()
        mx.profiler.set_state("stop")
        mx.profiler.dump()
        records = [each for each in json.loads(path.read_text())["traceEvents"] if each["ph"] in "BE"]
    # The end of an operation follows its begin, whatever else happened between them.
    pairs = zip(records[::2], records[1::2], strict=True)
    events = [Event(begin["name"], begin["ts"] / 1e6, end["ts"] / 1e6) for begin, end in pairs]
    return sorted(events, key=lambda event: event.end)


def show_timeline(events: Sequence[Event]) -> None:
    for e in events: say(f"{e.name[:90]} {1e3*(e.begin-events[0].begin):.1f} {1e3*(e.end-events[0].begin):.1f}")


def say(text: str) -> None:
    if bps.rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    main()
